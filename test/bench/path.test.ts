/** The benchmark runs, tiny, so that it cannot rot. Its figures are not judged. Budget: 45 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { longTest } from '../support/long.ts';
import { percentile, report } from './figures.ts';
import { benchPath } from './path.ts';
import { benchPipeline } from './pipeline.ts';

test('path reports every figure it promises', async () => {
  const { figures } = report(await benchPath({ promptTokens: 200, numRequests: 8, numTokens: 4 }));
  const names = figures.map(({ name }) => name);
  for (const name of [
    'path/ttft/cold',
    'path/ttft/cached-on-decode',
    'path/ttft/cached-in-store',
    'path/ttft/cold/router',
    'path/moved/cold',
    'path/concurrency1/requests',
    'path/concurrency8/tbt/p99',
    'path/concurrency8/router',
  ]) {
    assert(names.includes(name), name);
  }
  for (const { name, value } of figures) assert(Number.isFinite(value), `${name} is ${value}`);
});

longTest(
  'a long prompt has the same answer with two prefill instances as with one, and a figure of its time',
  async () => {
    const figures = await benchPipeline({ promptTokens: 500, numPrompts: 2, chunkTokens: 64 });
    assert.deepEqual(
      figures.map(({ name }) => name),
      ['path/pipeline/small/500/ttft', 'path/pipeline/small/500/computed-by-two'],
    );
    const [ttft, share] = figures;
    for (const value of [ttft?.value, ttft?.reference?.value, share?.value]) assert(Number.isFinite(value));
  },
);

test('percentiles interpolate between ranks', () => {
  assert.equal(percentile([4, 1, 3, 2], 0.5), 2.5);
  assert.equal(percentile([1], 0.99), 1);
});
