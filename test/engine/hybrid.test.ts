/**
 * Hybrids in the engine: sequences with recurrent state have the tokens of the reference loop whatever was hit, saved, preempted or
 * forked (E2), and hit prefixes as far as a state is held. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { loadModel, type LoadedModel } from '../../shared/engine/load_model.ts';
import { goldenFolder } from '../support/golden.ts';
import { Harness } from '../support/engine_harness.ts';
import { generate, greedy, loadDefaults, loadReference } from '../support/reference_loop.ts';

const BLOCK = 32;

describe.each(['qwen3_5-simple', 'qwen3_5', 'qwen3_5-moe', 'qwen3_next', 'lfm2', 'granitemoehybrid'] as const)(
  '%s',
  (name) => {
    const path = goldenFolder(name);
    const random = new Random(41);
    let reference: LoadedModel;
    let model: LoadedModel;
    beforeAll(async () => {
      reference = await loadReference(path, 'f16', 512);
      model = await loadModel({ ...loadDefaults, modelPath: path, numBlocks: 64, chunkTokens: 96, numStateSlots: 24 });
    });
    afterAll(async () => {
      await reference.executable.close();
      await model.executable.close();
    });

    const promptOf = (length: number): number[] => Array.from({ length }, () => random.below(model.shape.vocabSize));
    const expected = async (prompt: readonly number[], maxTokens: number): Promise<number[]> =>
      (await generate(reference.executable, prompt, greedy, maxTokens)).map(({ token }) => token);

    test('the same prompt again hits up to its last full block, one that begins alike up to the last state before it parts', async () => {
      const harness = new Harness(model, 64, 96, 8, undefined, undefined, 2);
      const prompt = promptOf(200);
      for (const [tokens, cached] of [
        [prompt, 0],
        [prompt, 192],
        [[...prompt.slice(0, 150), ...promptOf(30)], 128],
        [[...prompt.slice(0, 100), ...promptOf(60)], 64],
        // The one before has left a state where its prefix ended.
        [[...prompt.slice(0, 100), ...promptOf(61)], 96],
      ] as const) {
        const id = harness.submit(tokens, 6);
        await harness.run();
        assert.deepEqual(harness.outputs.get(id), await expected(tokens, 6));
        assert.equal(harness.reports.get(id)?.cachedTokens, cached);
      }
      harness.engine.states?.pool.checkIntegrity();
      const { slots, used, hits, evictions } = harness.engine.states?.usage ?? {};
      assert.deepEqual({ slots, used, hits, evictions }, { slots: 24, used: 0, hits: 4, evictions: 0 });
    });

    test('each turn of a chat computes its own tokens and at most two blocks', async () => {
      const harness = new Harness(model, 64, 96, 8, undefined, undefined, 16);
      let history = promptOf(70);
      for (let turn = 0; turn < 5; turn++) {
        const id = harness.submit(history, 45);
        await harness.run();
        const answer = harness.outputs.get(id) ?? [];
        assert.deepEqual(answer, await expected(history, 45));
        const { cachedTokens = 0 } = harness.reports.get(id) ?? {};
        if (turn > 0) expect(history.length - cachedTokens).toBeLessThanOrEqual(20 + 2 * BLOCK);
        history = [...history, ...answer, ...promptOf(20)];
      }
    });

    test('many at once, with each other, with few blocks and few slots: preempted, and the tokens are the same', async () => {
      const tight = await loadModel({
        ...loadDefaults,
        modelPath: path,
        numBlocks: 20,
        chunkTokens: 64,
        numStateSlots: 5,
      });
      const harness = new Harness(tight, 20, 64, 4, undefined, undefined, 1);
      const common = promptOf(70);
      const prompts = Array.from({ length: 6 }, (_, i) => [...common.slice(0, 64 - 8 * i), ...promptOf(40 + 10 * i)]);
      const ids = prompts.map((prompt) => harness.submit(prompt, 90));
      await harness.run();
      for (const [i, prompt] of prompts.entries())
        assert.deepEqual(harness.outputs.get(ids[i]!), await expected(prompt, 90));
      assert(harness.preempted.size > 0, 'blocks did not run out');
      const { states, pool } = harness.engine;
      assert.equal(states?.pool.numAvailable, 5);
      const { used, saved, evictions } = states.usage;
      assert.equal(used, 0);
      assert(saved > 0 && saved <= 5, `${saved} of 5 slots are saved ones`);
      assert(evictions > 0, 'slots did not run out');
      assert.equal(pool.numAvailable, 20);
      await tight.executable.close();
    });

    test('a sequence that waits for blocks hits its state once, however often it is tried', async () => {
      const harness = new Harness(model, 20, 96, 8, undefined, undefined, 16);
      const prompt = promptOf(200);
      harness.submit(prompt, 1);
      await harness.run();
      harness.submit(promptOf(320), 60);
      const tokens = [...prompt, ...promptOf(200)];
      const id = harness.submit(tokens, 4);
      await harness.run();
      assert.deepEqual(harness.outputs.get(id), await expected(tokens, 4));
      assert.equal(harness.reports.get(id)?.cachedTokens, 192);
      assert.equal(harness.engine.states?.usage.hits, 1);
    });

    test('samples of one prompt start from its state', async () => {
      const harness = new Harness(model, 64, 96, 8, undefined, undefined, 16);
      const prompt = promptOf(75);
      const ids = Array.from({ length: 3 }, (_, index) =>
        harness.submit(prompt, 40, { group: { id: 'of one', index, size: 3 } }),
      );
      await harness.run();
      const want = await expected(prompt, 40);
      for (const id of ids) assert.deepEqual(harness.outputs.get(id), want);
      const rows = ids.map((id) => harness.reports.get(id)?.computedTokens ?? 0);
      assert.deepEqual(rows, [75, 0, 0]);
    });
  },
);
