/** The benchmark runs, tiny, so that it cannot rot. Its figures are not judged. Budget: 30 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { benchSamples } from './samples.ts';

test('samples reports every figure it promises', async () => {
  const figures = await benchSamples({
    shape: 'tiny',
    promptTokens: 100,
    numSamples: 4,
    numRounds: 1,
    print: () => undefined,
    onFigure: () => undefined,
  });
  assert.deepEqual(
    figures.map(({ name }) => name),
    ['samples/n1/first-token', 'samples/n4/last-first-token', 'samples/n4/as-requests', 'samples/n4/computed'],
  );
  const computed = figures.at(-1);
  assert.equal(computed?.ratio, 1, 'no token of the prompt is computed twice');
});
