/**
 * Greedy ids of 200 tokens are the same cold, after a hit prefix and in the reference loop, in each format that a device keeps weights
 * in. Budget: 40 s.
 */
import assert from 'node:assert/strict';
import { describe, expect, test } from 'vitest';
import { weightFormats } from '../../kernels/weights/weight_format.ts';
import { Random } from '../../shared/base/random.ts';
import { loadModel } from '../../shared/engine/load_model.ts';
import { Harness } from '../support/engine_harness.ts';
import { goldenFolder } from '../support/golden.ts';
import { halfOf } from '../support/long.ts';
import { generate, greedy, loadDefaults, loadReference } from '../support/reference_loop.ts';

const [BLOCK, MAX_PROMPT, NEW] = [32, 150, 200];
const models = [
  ...['qwen3_5', 'qwen3_5-moe', 'qwen3_next', 'gemma4', 'gemma4-e', 'gemma4-moe', 'gpt_oss', 'deepseek_v3'],
  ...['glm4_moe_lite', 'glm4_moe', 'ministral3', 'olmo3'],
];
const random = new Random(53);

describe.each(weightFormats)('weights in %s', (weightFormat) => {
  test.each(halfOf(models, weightFormats.indexOf(weightFormat)))('%s', async (name) => {
    const modelPath = goldenFolder(name);
    const reference = await loadReference(modelPath, 'f16', 512, { weightFormat });
    const model = await loadModel({
      ...loadDefaults,
      modelPath,
      weightFormat,
      numBlocks: 64,
      chunkTokens: 96,
      numStateSlots: 24,
    });
    const { maxPositions, vocabSize } = model.shape;
    const length = Math.min(MAX_PROMPT, maxPositions - NEW);
    const prompt = Array.from({ length }, () => random.below(vocabSize));
    const want = (await generate(reference.executable, prompt, greedy, NEW)).map(({ token }) => token);
    const harness = new Harness(model, 64, 96);
    for (const cached of [0, length - (length % BLOCK)]) {
      const id = harness.submit(prompt, NEW);
      await harness.run();
      assert.deepEqual(harness.outputs.get(id), want);
      assert.equal(harness.reports.get(id)?.cachedTokens, cached);
    }
    expect(new Set(want).size).toBeGreaterThan(1);
    await reference.executable.close();
    await model.executable.close();
  });
});
