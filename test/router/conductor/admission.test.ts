/** Places of a router, shared among tenants. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Admission, type Entrant } from '../../../services/router/conductor/admission.ts';
import { Random } from '../../../shared/base/random.ts';

/** Enters prompts, and records those that lose their place. */
class Asked {
  readonly admission: Admission;
  readonly refused: string[] = [];
  readonly begun = new Set<string>();
  #num = 0;

  constructor(maxRequests: number) {
    this.admission = new Admission(maxRequests);
  }

  enter(tenant: string, more: Partial<Entrant> = {}): Entrant {
    const name = `${tenant}${this.#num++}`;
    const entrant: Entrant = {
      tenant,
      hasBegun: () => this.begun.has(name),
      refuse: ({ code }) => this.refused.push(`${name} ${code}`),
      ...more,
    };
    this.admission.enter(entrant);
    return entrant;
  }
}

test('one tenant has all places, and is refused when they are taken', () => {
  const asked = new Asked(4);
  for (let i = 0; i < 4; i++) asked.enter('a');
  assert.throws(() => asked.enter('a'), { code: 'overloaded', reason: 'max_requests' });
  assert.deepEqual([asked.refused, asked.admission.numRequests], [[], 4]);
});

test('a tenant with fewer places takes that of the newest prompt of the one with the most, until both have as many', () => {
  const asked = new Asked(4);
  for (let i = 0; i < 4; i++) asked.enter('a');
  asked.enter('b');
  asked.enter('b');
  assert.throws(() => asked.enter('b'), { code: 'overloaded' });
  assert.deepEqual(asked.refused, ['a3 overloaded', 'a2 overloaded']);
  assert.equal(asked.admission.numRequests, 4);
});

test('a prompt whose answer has begun keeps its place', () => {
  const asked = new Asked(3);
  for (let i = 0; i < 3; i++) asked.enter('a');
  asked.begun.add('a2');
  asked.enter('b');
  assert.deepEqual(asked.refused, ['a1 overloaded']);
  asked.begun.add('a0');
  assert.throws(() => asked.enter('c'), { code: 'overloaded' });
});

test('places are shared by weight', () => {
  const asked = new Asked(9);
  for (let i = 0; i < 9; i++) asked.enter('a');
  for (let i = 0; i < 6; i++) asked.enter('b', { weight: 2 });
  assert.throws(() => asked.enter('b', { weight: 2 }), { code: 'overloaded' });
  assert.deepEqual([asked.admission.numOf('a'), asked.admission.numOf('b')], [3, 6]);
});

test('a prompt that has lost its place leaves it to the other; counts are those of the places', () => {
  const random = new Random(4);
  const asked = new Asked(6);
  const open: Entrant[] = [];
  for (let i = 0; i < 2_000; i++) {
    const tenant = 'abc'[random.below(3)]!;
    if (random.below(2) === 0 && open.length > 0) asked.admission.leave(open.splice(random.below(open.length), 1)[0]!);
    else
      try {
        open.push(asked.enter(tenant, { refuse: () => undefined }));
      } catch {
        assert.equal(asked.admission.numRequests, 6);
      }
    const counts = ['a', 'b', 'c'].map((name) => asked.admission.numOf(name));
    assert.equal(
      counts.reduce((sum, count) => sum + count, 0),
      asked.admission.numRequests,
    );
    assert(asked.admission.numRequests <= 6);
  }
  for (const one of open) asked.admission.leave(one);
  assert.equal(asked.admission.numRequests, 0);
});

test('everybody is refused while the router drains', () => {
  const asked = new Asked(8);
  asked.enter('a');
  asked.admission.drain();
  assert.throws(() => asked.enter('b'), { code: 'overloaded', reason: 'draining' });
});
