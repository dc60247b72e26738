/**
 * How far prompts of a hybrid hit cached prefixes: as far as a model without recurrent layers, less at most the blocks between two saved
 * states. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import { cpSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { loadModel, type LoadedModel } from '../../shared/engine/load_model.ts';
import { temporaryFolder } from '../support/cluster.ts';
import { goldenFolder } from '../support/golden.ts';
import { Harness } from '../support/engine_harness.ts';
import { loadDefaults } from '../support/reference_loop.ts';

const BLOCK = 32;
const [LENGTH, SHARED, NUM_BLOCKS] = [2_200, 2_100, 1_024];
const folder = temporaryFolder();
const random = new Random(77);
let model: LoadedModel;

beforeAll(async () => {
  // The tiny model as it would be served with a longer context.
  cpSync(goldenFolder('qwen3_5-simple'), folder.path, { recursive: true });
  const path = join(folder.path, 'config.json');
  const config = JSON.parse(readFileSync(path, 'utf8')) as Record<string, unknown>;
  writeFileSync(path, JSON.stringify({ ...config, max_position_embeddings: 4_096 }));
  const sizes = { numBlocks: NUM_BLOCKS, chunkTokens: 512, numStateSlots: 400, maxNumSeqs: 4 };
  model = await loadModel({ ...loadDefaults, ...sizes, modelPath: folder.path });
});
afterAll(async () => {
  await model.executable.close();
  folder.remove();
});

const promptOf = (length: number): number[] => Array.from({ length }, () => random.below(model.shape.vocabSize));

describe.each([8, 16])('with a state every %i blocks', (interval) => {
  const begin = (): Harness => new Harness(model, NUM_BLOCKS, 512, 4, undefined, undefined, interval);

  async function computed(harness: Harness, prompt: readonly number[], count = 1): Promise<number> {
    const id = harness.submit(prompt, count);
    await harness.run();
    const { cachedTokens = 0 } = harness.reports.get(id) ?? {};
    return prompt.length - cachedTokens;
  }

  test.each([0, 1, 31, 100, 500])(
    'a prompt that shares all but %i of 2,100 tokens computes at most an interval of them',
    async (k) => {
      const harness = begin();
      const first = promptOf(LENGTH);
      assert.equal(await computed(harness, first), LENGTH);
      const shared = SHARED - k;
      const second = [...first.slice(0, shared), ...promptOf(LENGTH - shared)];
      expect(await computed(harness, second)).toBeLessThanOrEqual(LENGTH - shared + interval * BLOCK);
      // The second one has left a state where it parted from the first: a third loses less than two blocks.
      const third = [...first.slice(0, shared), ...promptOf(LENGTH - shared)];
      expect(await computed(harness, third)).toBeLessThanOrEqual(LENGTH - shared + 2 * BLOCK);
    },
  );

  test('each of eight turns of a chat computes its new tokens and at most two blocks', async () => {
    const harness = begin();
    let history = promptOf(700);
    for (let turn = 0; turn < 8; turn++) {
      const id = harness.submit(history, 60);
      await harness.run();
      const { cachedTokens = 0 } = harness.reports.get(id) ?? {};
      const numNew = 50;
      if (turn > 0) expect(history.length - cachedTokens).toBeLessThanOrEqual(numNew + 2 * BLOCK);
      history = [...history, ...(harness.outputs.get(id) ?? []), ...promptOf(numNew)];
    }
  });

  test('64 prompts with one prefix, each cut elsewhere, hit what they share, less an interval', async () => {
    const harness = begin();
    const common = promptOf(SHARED);
    assert.equal(await computed(harness, [...common, ...promptOf(40)]), SHARED + 40);
    for (let i = 0; i < 64; i++) {
      const shared = SHARED - 100 * (i % 20);
      const prompt = [...common.slice(0, shared), ...promptOf(40)];
      const llama = BLOCK * Math.floor(Math.min(shared, prompt.length - 1) / BLOCK);
      const hit = prompt.length - (await computed(harness, prompt));
      expect(hit).toBeGreaterThanOrEqual(llama - interval * BLOCK);
    }
  });
});
