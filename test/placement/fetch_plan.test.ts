/** Sources that the fetch plan chooses for blocks. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { coveredTo, fetchPlan, matchesOf } from '../../shared/placement/fetch_plan.ts';
import type { HeldSnapshot } from '../../shared/placement/policy.ts';

/** `a` has it in memory, `a~` on disk only. */
function held(start: number, end: number, ...names: string[]): HeldSnapshot {
  const holders = names.map((name) => {
    const address = name.replace('~', '');
    const isInMemory = !name.endsWith('~');
    return { id: `${address}/e`, address, isInMemory, isOnDevice: isInMemory };
  });
  return { start, end, holders };
}

function planned(ranges: readonly HeldSnapshot[], from = 0): string {
  return fetchPlan(ranges, from)
    .map(({ address, start, end }) => `${address}[${start},${end})`)
    .join(' ');
}

test('who goes furthest is asked first; what it lacks comes from others, up to the first block that nobody has', () => {
  const ranges = [held(0, 4, 'a', 'b'), held(4, 6, 'b'), held(6, 9, 'c'), held(10, 12, 'a')];
  assert.equal(planned(ranges), 'b[0,6) c[6,9)');
  assert.equal(planned(ranges, 5), 'b[5,6) c[6,9)');
  assert.equal(planned(ranges, 9), '');
  assert.equal(planned(ranges, 10), 'a[10,12)');
  assert.equal(planned([held(0, 3)]), '', 'nobody may be asked');
});

test('memory comes before a disk, unless the disk goes much further', () => {
  assert.equal(planned([held(0, 8, 'store~', 'engine')]), 'engine[0,8)');
  assert.equal(planned([held(0, 2, 'store~', 'engine'), held(2, 8, 'store~')]), 'store[0,8)');
  assert.equal(planned([held(0, 6, 'store~', 'engine'), held(6, 8, 'store~')]), 'engine[0,6) store[6,8)');
  assert.equal(planned([held(0, 4, 'store'), held(4, 8, 'store~', 'engine')]), 'store[0,4) engine[4,8)');
});

test('no plan has a hole, overlaps, or names who does not hold: every set of holders of four ranges', () => {
  const names = ['a', 'a~', 'b', 'b~'];
  const sets = Array.from({ length: 16 }, (_, bits) =>
    names.filter((name, i) => (bits >> i) & 1 && !(name.endsWith('~') && bits & (1 << (i - 1)))),
  );
  for (let code = 0; code < 16 ** 4; code++) {
    const ranges = [0, 1, 2, 3].map((i) => held(2 * i, 2 * i + 2, ...sets[(code >> (4 * i)) & 15]!));
    let next = 1;
    for (const { address, start, end } of fetchPlan(ranges, 1)) {
      assert(start === next && end > start);
      for (const range of ranges)
        if (range.end > start && range.start < end) assert(range.holders.some((one) => one.address === address));
      next = end;
    }
    const first = ranges.find((range) => range.end > 1 && range.holders.length === 0);
    assert.equal(next, Math.max(1, first ? first.start : 8));
    assert.equal(coveredTo(ranges, 1), next);
  }
});

test('a run ends at the first block that its holder has not, whoever else has it', () => {
  const ranges = [held(0, 4, 'a', 'b'), held(4, 6, 'b'), held(6, 9, 'a', 'c'), held(10, 12, 'b')];
  assert.deepEqual(Object.fromEntries(matchesOf(ranges)), { 'a/e': 4, 'b/e': 6 });
  assert.deepEqual([...matchesOf([held(1, 4, 'a')])], []);
});
