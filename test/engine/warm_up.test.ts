/** Steps before the first request: how many, and what they tell. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import type { Segment } from '../../kernels/device.ts';
import { pairsOf } from '../../shared/protocol/instance_work.ts';
import { warmUp } from '../../shared/engine/warm_up.ts';

/** No room for a long context. */
const options = { chunkTokens: 512, maxModelLen: 256, blockSize: 32, numBlocks: 100 };

/** A device on which a row takes so long, and steps of a number of rows that was never seen so much more. */
function deviceOf(rowMs: number, firstMs: number, stepMs = 0, pairMs = 0) {
  const device = { nowMs: 0, steps: [] as number[], last: -1 };
  const seen = new Set<number>();
  return Object.assign(device, {
    run: ([segment]: readonly Segment[]) => {
      assert.ok(segment);
      const rows = segment.tokens.length;
      const pairs = pairsOf(segment.start, rows);
      device.nowMs += stepMs + rows * rowMs + pairs * pairMs + (seen.has(rows) ? 0 : firstMs);
      device.steps.push(rows);
      device.last = Math.max(device.last, segment.start + rows - 1);
      seen.add(rows);
      return Promise.resolve([]);
    },
  });
}

const cases = [
  { name: 'a quick device', rowMs: 0.01, firstMs: 0, promptRows: 64, mostMs: 210 },
  { name: 'one whose first steps wait for pipelines', rowMs: 0.1, firstMs: 500, promptRows: 64, mostMs: 1_520 },
  {
    name: 'a slow one, where many rows would take longer than there is time',
    rowMs: 12,
    firstMs: 50,
    promptRows: 8,
    mostMs: 400,
  },
];
for (const { name, rowMs, firstMs, promptRows, mostMs } of cases)
  test(`${name}: what steps take, in time that is bounded`, async () => {
    const device = deviceOf(rowMs, firstMs);
    const times = await warmUp(device, { ...options, nowMs: () => device.nowMs });
    assert.deepEqual(
      times.map((time) => [time.tokenRows, time.promptRows, +time.ms.toFixed(6)]),
      [
        [1, 0, rowMs],
        [0, promptRows, +(promptRows * rowMs).toFixed(6)],
      ],
    );
    assert.ok(device.nowMs <= mostMs, `${device.nowMs} ms`);
  });

test('a device whose steps take long, however many rows they have, is asked for many', async () => {
  const device = deviceOf(0.25, 0, 20);
  const [token, prompt] = await warmUp(device, { ...options, nowMs: () => device.nowMs });
  assert.deepEqual(
    [token, prompt],
    [
      { tokenRows: 1, promptRows: 0, pairs: 0, contextTokens: 65, sequences: 1, ms: 20.25 },
      { tokenRows: 0, promptRows: 64, pairs: 2_080, contextTokens: 0, sequences: 1, ms: 36 },
    ],
  );
});

test('after a long context, as far as there is room and time for it: what a token of KV costs', async () => {
  const measured = async (pairMs: number, maxModelLen: number) => {
    const device = deviceOf(0.25, 0, 20, pairMs);
    const times = await warmUp(device, { ...options, maxModelLen, nowMs: () => device.nowMs });
    assert.ok(device.last < maxModelLen, `row ${device.last}`);
    return times.slice(2).map(({ tokenRows, contextTokens, pairs }) => [tokenRows, contextTokens, pairs]);
  };
  assert.deepEqual(await measured(0.0001, 4_096), [
    [1, 2_049, 0],
    [0, 0, 64 * 2_048 + 2_080],
  ]);
  assert.deepEqual(await measured(0.0001, 1_024), [
    [1, 960, 0],
    [0, 0, 64 * 959 + 2_080],
  ]);
  // A prompt of 64 rows would take 300 ms.
  assert.deepEqual(await measured(0.002, 4_096), [[1, 2_049, 0]]);
});

test('rows that a step, a sequence and the pool hold, and steps without a clock too', async () => {
  const bounds = [{ chunkTokens: 5 }, { maxModelLen: 6 }, { blockSize: 2, numBlocks: 3 }];
  for (const bound of bounds) {
    const device = deviceOf(0.01, 0);
    const [, prompt] = await warmUp(device, { ...options, ...bound, nowMs: () => device.nowMs });
    assert.equal(prompt?.promptRows, 5);
    assert.equal(device.last, 5);
  }
  const device = deviceOf(0.01, 0);
  assert.deepEqual(await warmUp(device, options), []);
  assert.deepEqual(new Set(device.steps), new Set([8, 64, 1]));
  assert.deepEqual(await warmUp(device, { ...options, maxModelLen: 1 }), []);
});
