/**
 * The two rules of admission: a prompt whose blocks are being computed waits for them, and prompts far back in the queue take no device
 * blocks; neither waits for ever nor changes a token (E2). Budget: 20 s.
 */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { loadModel, type LoadedModel } from '../../shared/engine/load_model.ts';
import { Harness } from '../support/engine_harness.ts';
import { goldenFolder } from '../support/golden.ts';
import { generate, greedy, loadDefaults, loadReference } from '../support/reference_loop.ts';

const path = goldenFolder('llama-odd');
const BLOCK = 32;
const random = new Random(47);
const promptOf = (length: number): number[] => Array.from({ length }, () => random.below(333));

let reference: LoadedModel;
beforeAll(async () => {
  reference = await loadReference(path, 'f16', 512);
});
afterAll(async () => {
  await reference.executable.close();
});

async function harness(numBlocks: number, chunkTokens: number, maxNumSeqs = 8): Promise<Harness> {
  const model = await loadModel({ ...loadDefaults, modelPath: path, numBlocks, chunkTokens, maxNumSeqs });
  return new Harness(model, numBlocks, chunkTokens, maxNumSeqs);
}

async function assertTokens(h: Harness, id: number, prompt: number[], count: number): Promise<void> {
  const want = await generate(reference.executable, prompt, greedy, count);
  assert.deepEqual(
    h.outputs.get(id),
    want.map(({ token }) => token),
  );
}

test('eight prompts with a common prefix at once: the prefix is computed once', async () => {
  const prefix = promptOf(9 * BLOCK);
  const prompts = Array.from({ length: 8 }, () => [...prefix, ...promptOf(10 + random.below(60))]);
  const h = await harness(128, 64);
  const ids = prompts.map((prompt) => h.submit(prompt, 6));
  await h.run();
  const ownRows = prompts.reduce((sum, prompt) => sum + prompt.length - prefix.length, 0);
  const computed = ids.reduce((sum, id) => sum + h.reports.get(id)!.computedTokens, 0);
  assert.equal(computed, prefix.length + ownRows);
  for (const [i, prompt] of prompts.entries()) await assertTokens(h, ids[i]!, prompt, 6);
});

test('a prompt that shares the first of its blocks waits for these only, and others pass it', async () => {
  const h = await harness(128, 64);
  const long = promptOf(4 * BLOCK);
  const sharing = [...long.slice(0, BLOCK), ...promptOf(40)];
  const other = promptOf(BLOCK);
  const [first, second, third] = [long, sharing, other].map((prompt) => h.submit(prompt, 40));
  await h.engine.step();
  assert.deepEqual(
    [first, second, third].map((id) => h.engine.stateOf(id!)),
    ['running', 'waiting', 'running'],
  );
  // Two steps compute the long prompt; the first of them has the block that is shared.
  await h.engine.step();
  assert.deepEqual([h.engine.stateOf(second!), h.outputs.get(first!)?.length], ['running', 1]);
  await h.run();
  for (const [id, prompt] of [
    [first, long],
    [second, sharing],
    [third, other],
  ] as const)
    await assertTokens(h, id!, prompt, 40);
  assert.equal(h.reports.get(second!)!.cachedTokens, BLOCK);
});

test('when the sequence that computes a prefix is cancelled, the one that waits for it computes the rest', async () => {
  const h = await harness(128, 64);
  const prefix = promptOf(10 * BLOCK);
  const [first, second] = [1, 2].map(() => h.submit([...prefix, ...promptOf(20)], 6));
  await h.engine.step();
  await h.engine.step();
  assert.equal(h.engine.stateOf(second!), 'waiting');
  h.engine.cancel(first!);
  await h.run();
  const { cachedTokens, computedTokens } = h.reports.get(second!)!;
  assert(cachedTokens >= 2 * BLOCK && cachedTokens < prefix.length, `${cachedTokens} tokens were hit`);
  assert.equal(cachedTokens + computedTokens, prefix.length + 20);
  assert.equal(h.outputs.get(second!)?.length, 6);
});

test('a prompt far back takes no device blocks before its turn, and short ones and those that are fetched pass it', async () => {
  const h = await harness(128, 64);
  const prompts = [promptOf(5 * BLOCK), promptOf(5 * BLOCK), promptOf(5 * BLOCK)];
  const ids = prompts.map((prompt) => h.submit(prompt, 6));
  const short = promptOf(20);
  const shortId = h.submit(short, 6);
  const fetched = promptOf(4 * BLOCK + 5);
  const fetchedId = h.submit(fetched, 6, { isFetching: true });
  await h.engine.step();
  assert.deepEqual(
    ids.map((id) => h.engine.stateOf(id)),
    ['running', 'waiting', 'waiting'],
  );
  assert.deepEqual([h.engine.stateOf(shortId), h.engine.stateOf(fetchedId)], ['running', 'loading']);
  h.engine.incoming.ended(fetchedId);
  await h.run();
  for (const [i, prompt] of [...prompts, short, fetched].entries())
    await assertTokens(h, [...ids, shortId, fetchedId][i]!, prompt, 6);
});

test('prompts that load and get no blocks hold up no others', async () => {
  const h = await harness(128, 64);
  const loading = h.submit(promptOf(20 * BLOCK), 6, { isFetching: true, fetchEnd: 1 });
  await h.engine.step();
  assert.equal(h.engine.stateOf(loading), 'loading');
  const prompt = promptOf(10 * BLOCK);
  const id = h.submit(prompt, 6);
  await h.run();
  await assertTokens(h, id, prompt, 6);
  assert.equal(h.engine.stateOf(loading), 'loading');
  h.engine.incoming.ended(loading);
  await h.run();
  assert.equal(h.outputs.get(loading)?.length, 6);
});

test('under a shortage of blocks, with preemptions and cancels, every prompt of some shared prefixes gets its tokens', async () => {
  const prefixes = [promptOf(3 * BLOCK), promptOf(5 * BLOCK), promptOf(2 * BLOCK)];
  const h = await harness(16, 32);
  const cases = Array.from({ length: 24 }, (_, i) => {
    const prompt = [...prefixes[i % 3]!, ...promptOf(1 + random.below(60))];
    return { prompt, id: h.submit(prompt, 50), isCancelled: i % 7 === 3 };
  });
  for (const { id, isCancelled } of cases) {
    await h.engine.step();
    if (isCancelled) h.engine.cancel(id);
  }
  await h.run();
  assert(h.engine.load.numPreemptions > 0);
  assert.deepEqual([h.engine.load.numRunning, h.engine.load.numWaiting], [0, 0]);
  for (const { prompt, id, isCancelled } of cases) if (!isCancelled) await assertTokens(h, id, prompt, 50);
});
