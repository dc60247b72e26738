/** The wasm device against the reference implementation, in f32. Bounds are those of the golden vectors. Budget: 15 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { comparableSteps, goldenCases, goldenFolder, goldenModels, lastLogits, maxAbs } from '../support/golden.ts';
import { generate, greedy, loadReference } from '../support/reference_loop.ts';

const BOUND = 1e-3;

describe.each(goldenModels)('%s', (name) => {
  test('logits and greedy ids are those of the reference', async () => {
    const { executable, folder } = await loadReference(goldenFolder(name), 'f32');
    for (const golden of goldenCases(name)) {
      const blockTable = Array.from({ length: Math.ceil(golden.prompt.length / 32) }, (_, i) => i);
      const want = lastLogits(name, golden, folder.config.vocabSize);
      const highest = maxAbs(want);
      const sample = { numCandidates: 1, askedTokens: [], isFullRowWanted: true };
      const [result] = await executable.run([{ tokens: golden.prompt, start: 0, blockTable, sample }]);
      assert(result?.fullRow);
      const error = maxAbs(result.fullRow.map((value, i) => value - (want[i] ?? 0))) / highest;
      assert(error <= BOUND, `${golden.prompt.length} tokens: max |Δ logit| / max |logit| is ${error}`);

      const numSteps = comparableSteps(golden, 2 * BOUND * highest);
      const output = await generate(executable, golden.prompt, greedy, golden.greedy.length);
      assert.deepEqual(
        output.slice(0, numSteps).map(({ token }) => token),
        golden.greedy.slice(0, numSteps),
      );
    }
    await executable.close();
  });
});
