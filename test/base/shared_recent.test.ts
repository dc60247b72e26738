/** A map that several users share: bounded, fair to those that use little of it, and one of what was used last for a user alone. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Recent } from '../../shared/base/recent.ts';
import { SharedRecent } from '../../shared/base/shared_recent.ts';
import { Random } from '../../shared/base/random.ts';

const has = (map: SharedRecent<number>, key: string, user = 'nobody'): boolean => map.get(key, user) !== undefined;

test('for one user it is a map of what was used last (P1)', () => {
  const random = new Random(7);
  const [shared, recent] = [new SharedRecent<number>(12, 100), new Recent<string, number>(12, 100)];
  for (let i = 0; i < 5_000; i++) {
    const key = String(random.below(40));
    if (random.below(2) === 0) assert.equal(shared.get(key, 'a'), recent.get(key), `after ${i}`);
    else {
      const size = random.below(30);
      shared.set(key, i, size, 'a');
      recent.set(key, i, size);
    }
  }
});

test('who adds many entries, or large ones, displaces its own', () => {
  const map = new SharedRecent<number>(10, 1_000);
  map.set('q1', 1, 10, 'quiet');
  map.set('q2', 2, 400, 'quiet');
  for (let i = 0; i < 100; i++) map.set(`many ${i}`, i, 1, 'many');
  assert(has(map, 'many 99') && !has(map, 'many 91'), 'the newest are kept');
  for (let i = 0; i < 10; i++) map.set(`large ${i}`, i, 500, 'many');
  assert(has(map, 'large 9') && !has(map, 'large 8'), 'the newest is kept');
  // Larger than all together may be.
  map.set('huge', 0, 2_000, 'many');
  assert(!has(map, 'huge'));
  for (const key of ['q1', 'q2']) assert(has(map, key), key);
});

test('an entry that several users have used stays until none of them keeps it, also after it is set again', () => {
  const map = new SharedRecent<number>(4, 1_000);
  map.set('common', 1, 1, 'many');
  assert.equal(map.get('common', 'quiet'), 1);
  map.set('common', 2, 1, 'many');
  for (let i = 0; i < 10; i++) map.set(`many ${i}`, i, 1, 'many');
  assert.equal(map.get('common', 'nobody'), 2);
  // Nobody has used it last, and three users have one entry each.
  map.set('other', 3, 1, 'other');
  for (let i = 0; i < 10; i++) map.set(`quiet ${i}`, i, 1, 'quiet');
  assert(has(map, 'common') && has(map, 'other'));
  for (let i = 0; i < 10; i++) map.set(`nobody ${i}`, i, 1, 'nobody');
  assert(!has(map, 'common') && has(map, 'other'));
});

test('the users of an entry are bounded, and it is kept for those that came first (P1)', () => {
  const map = new SharedRecent<number>(20, 1_000);
  map.set('common', 1, 1, 'user 0');
  for (let i = 1; i < 1_000; i++) map.get('common', `user ${i}`);
  for (let one = 0; one < 8; one++) {
    if (one === 7) assert(has(map, 'common', 'user 7'));
    for (let i = 0; i < 30; i++) map.set(`user ${one}, ${i}`, i, 1, `user ${one}`);
  }
  // The ninth does not keep it.
  assert(!has(map, 'common'));
});
