/** How a step is cut into submits that no driver ends, by what steps took. Budget: 2 s. */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import type { Dispatch } from '../../kernels/wgsl/dispatch_plan.ts';
import type { GridCounts } from '../../kernels/wgsl/step_state.ts';
import { SubmitBudget } from '../../kernels/wgsl/submit_budget.ts';

const countsOf = (rows: number): GridCounts => ({
  rows,
  samples: 1,
  hidden: 0,
  segments: 0,
  decodeItems: 0,
  prefillItems: 1,
  merges: 0,
  listed: 0,
  sampled: 0,
  weighed: 0,
  topK: 0,
  topP: 0,
});
const alone = { decodePairs: 0, prefillPairs: 0 };
/** `flopsPerRow` of a product; the same for pairs where it is attention. */
const dispatchOf = (flopsPerRow: number, flopsPerPair = 0): Dispatch => ({
  label: 'product',
  launch: ({ rows }) => (rows > 0 ? ({} as NonNullable<ReturnType<Dispatch['launch']>>) : undefined),
  work: ({ rows }, { prefillPairs, decodePairs }) => ({
    bytes: 1e6,
    flops: flopsPerRow * rows + flopsPerPair * (prefillPairs + decodePairs),
  }),
});
/** Dispatches of an 8B-parameter model: seven in each of 32 layers, one of them attention. */
const layers = Array.from({ length: 32 * 7 }, (_, i) =>
  i % 7 === 2 ? dispatchOf(1e4, 16_384) : dispatchOf(i % 7 === 4 ? 235e6 : 30e6),
);

/** Milliseconds of each submit on a device of so many operations a ms. */
function submits(cuts: readonly number[], rows: number, operationsPerMs: number): number[] {
  const ends = [...cuts, layers.length];
  let first = 0;
  return ends.map((end) => {
    const flops = layers.slice(first, end).reduce((sum, { work }) => sum + work(countsOf(rows), alone).flops, 0);
    first = end;
    return flops / operationsPerMs;
  });
}

test.each([0.2e9, 1.6e9, 30e9, 400e9])(
  'a device of %d operations a ms: no submit of 512 rows takes over 250 ms',
  (speed) => {
    let now = 0;
    const budget = new SubmitBudget(layers, 2_048, () => now);
    for (let step = 0; step < 40; step++) {
      const rows = Math.min(512, budget.maxRows);
      const cuts = budget.cuts(countsOf(rows), alone);
      const times = submits(cuts, rows, speed);
      // A slower one than is thought at first is known after three steps.
      if (step > 2 || speed >= 0.4e9) assert(Math.max(...times) <= 260, `${Math.max(...times)} ms`);
      const done = budget.begin(countsOf(rows), alone);
      now += times.reduce((sum, ms) => sum + ms, 0);
      done();
    }
    // A fast one is not cut for nothing.
    const rows = Math.min(512, budget.maxRows);
    const total = submits([], rows, speed)[0]!;
    expect(budget.cuts(countsOf(rows), alone).length).toBeLessThanOrEqual(Math.ceil(total / 100));
    assert(budget.maxRows >= Math.min(512, (0.8 * 250 * speed) / 235e6));
  },
);

test('what a short step takes says little: it does not make the device slow', () => {
  let now = 0;
  const budget = new SubmitBudget([dispatchOf(1)], 64, () => now);
  for (let step = 0; step < 10; step++) {
    const done = budget.begin(countsOf(1), alone);
    now += 4;
    done();
  }
  assert.deepEqual(budget.cuts(countsOf(4_096), alone), []);
  expect(budget.maxRows).toBeGreaterThan(65_535);
});

test('a step after one that exports took what is left, and one that exports tells nothing', () => {
  let now = 0;
  const budget = new SubmitBudget(layers, 2_048, () => now);
  for (let i = 0; i < 40; i++) {
    const done = budget.begin(countsOf(64), alone);
    now += 20;
    done();
  }
  const before = budget.maxRows;
  for (let i = 0; i < 5; i++) {
    const exporting = budget.begin(countsOf(512), alone, false);
    const after = budget.begin(countsOf(10), alone);
    now += 160;
    exporting();
    now += 4;
    after();
  }
  expect(budget.maxRows).toBeGreaterThanOrEqual(0.8 * before);
});

test('products of samples are counted by samples', () => {
  const head: Dispatch = {
    ...dispatchOf(0),
    work: ({ samples }) => ({ bytes: 1e6, flops: 1e9 * samples }),
  };
  const budget = new SubmitBudget([...layers, head], 2_048, () => 0);
  assert.equal(budget.maxRows, new SubmitBudget(layers, 2_048, () => 0).maxRows);
});

test('one step that is slow is not believed, three are', () => {
  let now = 0;
  const budget = new SubmitBudget(layers, 2_048, () => now);
  const rowsAfter = (ms: number): number => {
    const done = budget.begin(countsOf(64), alone);
    now += ms;
    done();
    return budget.maxRows;
  };
  for (let i = 0; i < 40; i++) rowsAfter(20);
  const before = budget.maxRows;
  // First use includes compilation: a prompt, then a token.
  assert.deepEqual([rowsAfter(5_000), rowsAfter(3_000)], [before, before]);
  rowsAfter(20);
  expect(budget.maxRows).toBeGreaterThanOrEqual(before);
  rowsAfter(4_000);
  rowsAfter(5_000);
  expect(rowsAfter(3_000)).toBeLessThan(before / 50);
});

test('a step that waits for the one before it took what is left', () => {
  let now = 0;
  const budget = new SubmitBudget(layers, 2_048, () => now);
  let before = budget.begin(countsOf(64), alone);
  const rows: number[] = [];
  for (let step = 1; step <= 6; step++) {
    const next = budget.begin(countsOf(64), alone);
    now = 40_000 * step;
    before();
    rows.push(budget.maxRows);
    before = next;
  }
  assert.deepEqual(rows.slice(3), [rows[2], rows[2], rows[2]]);
});
