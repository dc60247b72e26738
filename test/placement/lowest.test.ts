/** Items of the lowest costs, most of which are only estimated. Budget: 2 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { lowest } from '../../shared/placement/priced/lowest.ts';
import { Random } from '../../shared/base/random.ts';

interface Item {
  readonly name: number;
  readonly cost: number;
}

const items = (count: number): Item[] => {
  const random = new Random(4);
  return Array.from({ length: count }, (_, name) => ({ name, cost: random.below(50) }));
};

test('of few items all costs are computed, whatever the estimates say; equal ones stay in their order, uncounted ones are left out', () => {
  const all = items(32);
  const costed = (item: Item): { item: number; cost: number } | undefined =>
    item.name % 5 === 0 ? undefined : { item: item.name, cost: item.cost };
  const wanted = all
    .filter(({ name }) => name % 5 !== 0)
    .sort((a, b) => a.cost - b.cost || a.name - b.name)
    .map(({ name }) => name);
  assert.deepEqual(
    lowest(all, 9, ({ cost }) => -cost, costed),
    wanted.slice(0, 9),
  );
});

test('of many items those of the lowest estimates are costed, no more than 32 of them', () => {
  const all = items(1_000);
  const asked: number[] = [];
  const found = lowest(
    all,
    8,
    ({ cost }) => cost,
    (item) => {
      asked.push(item.name);
      return { item, cost: item.cost };
    },
  );
  assert.equal(asked.length, 32);
  const best = all.map(({ cost }) => cost).sort((a, b) => a - b);
  assert.deepEqual(
    found.map(({ cost }) => cost),
    best.slice(0, 8),
  );
  assert(Math.max(...asked.map((name) => all[name]?.cost ?? NaN)) <= (best[31] ?? 0));
});
