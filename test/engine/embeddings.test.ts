/** Embeddings on the wasm device: golden vectors, and sequences of the engine that want one with others. Budget: 10 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { loadModel } from '../../shared/engine/load_model.ts';
import { Pooling } from '../../shared/protocol/messages.ts';
import { Harness } from '../support/engine_harness.ts';
import { goldenFolder } from '../support/golden.ts';
import { generate, greedy, loadDefaults, loadReference } from '../support/reference_loop.ts';
import { embeddingSuite } from './embedding_suite.ts';

embeddingSuite();

const path = goldenFolder('llama-odd');
const random = new Random(5);
const promptOf = (length: number): number[] => Array.from({ length }, () => random.below(333));

async function harness(numBlocks = 64, chunkTokens = 64): Promise<Harness> {
  const model = await loadModel({ ...loadDefaults, modelPath: path, numBlocks, chunkTokens });
  return new Harness(model, numBlocks, chunkTokens);
}

/** The embedding of a prompt, alone in an engine. */
async function aloneOf(prompt: readonly number[], pooling: Pooling): Promise<Float32Array | undefined> {
  const h = await harness();
  const id = h.submit(prompt, 0, { kind: 'embed', pooling });
  await h.run();
  return h.embeddings.get(id);
}

test('a chat hits the blocks of an embedding, and an embedding those of a chat, up to the block of the last token', async () => {
  const h = await harness();
  const prompt = promptOf(100);
  const first = h.submit(prompt, 0, { kind: 'embed' });
  await h.run();
  assert.equal(h.reports.get(first)?.cachedTokens, 0);
  const chat = h.submit([...prompt, 7, 8], 6);
  await h.run();
  assert.equal(h.reports.get(chat)?.cachedTokens, 96);
  const second = h.submit([...prompt, 7, 8, ...h.outputs.get(chat)!], 0, { kind: 'embed' });
  const again = h.submit(prompt.slice(0, 96), 0, { kind: 'embed' });
  await h.run();
  assert.deepEqual(
    [second, again].map((id) => h.reports.get(id)?.cachedTokens),
    [96, 64],
  );
  assert.deepEqual(
    [second, again].map((id) => h.reports.get(id)?.computedTokens),
    [12, 32],
  );
  assert.deepEqual(h.embeddings.get(again), await aloneOf(prompt.slice(0, 96), Pooling.LAST));
});

test('embeddings and streams in one batch: each has what it has alone, with preemptions', async () => {
  // Half of the blocks that all of them need.
  const h = await harness(16);
  const prompts = Array.from({ length: 12 }, () => promptOf(1 + random.below(150)));
  const ids = prompts.map((prompt, i) =>
    i % 3 === 0
      ? h.submit(prompt, 60)
      : h.submit(prompt, 0, { kind: 'embed', pooling: i % 3 === 1 ? Pooling.LAST : Pooling.MEAN }),
  );
  await h.run();
  const reference = await loadReference(path, 'f16', 512);
  for (const [i, prompt] of prompts.entries()) {
    if (i % 3 === 0) {
      const want = (await generate(reference.executable, prompt, greedy, 60)).map(({ token }) => token);
      assert.deepEqual(h.outputs.get(ids[i]!), want);
    } else {
      const want = await aloneOf(prompt, i % 3 === 1 ? Pooling.LAST : Pooling.MEAN);
      assert.deepEqual(h.embeddings.get(ids[i]!), want, `prompt ${i}`);
    }
  }
  assert(h.preempted.size > 0, 'blocks ran out');
  assert.deepEqual([h.engine.load.numRunning, h.engine.load.numWaiting], [0, 0]);
  await reference.executable.close();
});

test('a mean that was preempted in the middle begins again', async () => {
  const h = await harness(8, 32);
  // The stream's third block is one that the embedding holds.
  h.submit(promptOf(60), 40);
  const prompt = promptOf(192);
  const id = h.submit(prompt, 0, { kind: 'embed', pooling: Pooling.MEAN });
  await h.run();
  assert(h.preempted.has(id), 'it was preempted');
  assert.deepEqual(h.embeddings.get(id), await aloneOf(prompt, Pooling.MEAN));
});

test('a cancelled embedding leaves no block used, and none comes (R2)', async () => {
  const h = await harness();
  const before = h.engine.pool.numAvailable;
  const id = h.submit(promptOf(150), 0, { kind: 'embed', pooling: Pooling.MEAN });
  await h.engine.step();
  assert(h.engine.pool.numAvailable < before);
  h.engine.cancel(id);
  assert.equal(h.engine.pool.numAvailable, before);
  await h.run();
  assert.equal(h.embeddings.size, 0);
});
