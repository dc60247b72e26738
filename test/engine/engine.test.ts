/**
 * The engine in one thread, on a tiny model: continuous batching, preemption, fetched blocks, and K1: equal keys have equal
 * payloads however they came about. Budget: 20 s.
 */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, test } from 'vitest';
import { NO_TOKEN } from '../../kernels/sampling.ts';
import { Failure } from '../../shared/base/failure.ts';
import { Random } from '../../shared/base/random.ts';
import { loadModel, type LoadedModel } from '../../shared/engine/load_model.ts';
import type { TestSampling } from '../support/request.ts';
import { Harness } from '../support/engine_harness.ts';
import { goldenCases, goldenFolder, logitsAt } from '../support/golden.ts';
import { generate, greedy, loadDefaults, loadReference } from '../support/reference_loop.ts';

const path = goldenFolder('llama-odd');
const random = new Random(31);
const promptOf = (length: number): number[] => Array.from({ length }, () => random.below(333));

let reference: LoadedModel;
beforeAll(async () => {
  reference = await loadReference(path, 'f16', 512);
});
afterAll(async () => {
  await reference.executable.close();
});

async function harness(numBlocks = 64, chunkTokens = 64): Promise<Harness> {
  const model = await loadModel({ ...loadDefaults, modelPath: path, numBlocks, chunkTokens });
  return new Harness(model, numBlocks, chunkTokens);
}

const want = async (prompt: number[], params: TestSampling, count: number): Promise<number[]> =>
  (await generate(reference.executable, prompt, params, count)).map(({ token }) => token);

test('a batch of sequences gives each the tokens it gets alone', async () => {
  const h = await harness();
  const cases = Array.from({ length: 20 }, (_, i) => ({
    prompt: promptOf(1 + random.below(200)),
    params: i % 2 ? { ...greedy, temperature: 1, seed: i } : greedy,
  }));
  const ids = cases.map(({ prompt, params }) => h.submit(prompt, 12, { sampling: params }));
  await h.run();
  for (const [i, { prompt, params }] of cases.entries())
    assert.deepEqual(h.outputs.get(ids[i]!), await want(prompt, params, 12));
  assert.deepEqual([h.engine.load.numRunning, h.engine.load.numWaiting], [0, 0]);
});

test('when blocks run out sequences are preempted and come back with the same tokens', async () => {
  const h = await harness(12, 64);
  const prompts = Array.from({ length: 6 }, () => promptOf(60 + random.below(60)));
  const ids = prompts.map((prompt) => h.submit(prompt, 80));
  await h.run();
  assert(h.engine.load.numPreemptions > 0, 'the pool was small enough to preempt');
  for (const [i, prompt] of prompts.entries()) assert.deepEqual(h.outputs.get(ids[i]!), await want(prompt, greedy, 80));
});

test('what can never fit is refused, and a full queue is overload', async () => {
  const h = await harness(4, 64);
  assert.throws(
    () => h.submit(promptOf(100), 100),
    (error: unknown) => error instanceof Failure && error.code === 'context_too_long',
  );
  for (let i = 0; i < 100; i++) h.submit(promptOf(4), 1);
  assert.throws(
    () => h.submit(promptOf(4), 1),
    (error: unknown) => error instanceof Failure && error.code === 'overloaded',
  );
});

test('a cancelled sequence leaves no block used and no batch (R2)', async () => {
  const h = await harness();
  const before = h.engine.pool.numAvailable;
  const id = h.submit(promptOf(150), 50);
  for (let i = 0; i < 6; i++) await h.engine.step();
  assert(h.engine.pool.numAvailable < before);
  h.engine.cancel(id);
  assert.equal(h.engine.pool.numAvailable, before);
  assert.equal(await h.engine.step(), false);
});

test('K1: equal keys have equal payloads: chunks of 512, of 37, decode steps, after hits, after a fetch', async () => {
  const prompt = promptOf(290);
  const whole = await harness(64, 512);
  whole.submit(prompt, 1);
  await whole.run();
  const sums = await whole.checksums();
  assert.equal(sums.size, 9);
  const expectSame = async (name: string, h: Harness): Promise<void> => {
    const others = await h.checksums();
    for (const [key, sum] of sums) assert.equal(others.get(key), sum, name);
  };

  const small = await harness(64, 37);
  small.submit(prompt, 1);
  await small.run();
  await expectSame('chunks of 37', small);

  const steps = await harness(64, 512);
  for (const length of [40, 100, 180, 290]) {
    steps.submit(prompt.slice(0, length), 1);
    await steps.run();
  }
  await expectSame('in four parts, each after hits', steps);

  const prefill = await harness(64, 100);
  const id = prefill.submit(prompt, 0, { kind: 'prefill', maxLength: prompt.length });
  await prefill.run();
  assert(prefill.prefilled.has(id));
  await expectSame('a prefill sequence', prefill);

  const decode = await harness(64, 512);
  const fetching = decode.submit(prompt, 20, { isFetching: true });
  await decode.engine.step();
  for (const [index, hash] of [...prefill.hashes.values()].entries()) {
    const payload = new Uint8Array(prefill.model.executable.blockBytes);
    await prefill.engine.exportTo([{ hash, out: payload }]);
    await decode.engine.incoming.blocks(fetching, [{ blockIndex: index, payload, origin: 'instance' }]);
  }
  decode.engine.incoming.ended(fetching);
  await decode.run();
  await expectSame('after a fetch', decode);
  assert.deepEqual(decode.outputs.get(fetching), await want(prompt, greedy, 20));
});

test('K1: blocks that filled up during decode are those of a prefill over the same tokens', async () => {
  const prompt = promptOf(20);
  const decode = await harness();
  const id = decode.submit(prompt, 120);
  await decode.run();
  const tokens = [...prompt, ...decode.outputs.get(id)!];
  const sums = await decode.checksums();
  assert.equal(sums.size, 4);
  const prefill = await harness(64, 512);
  prefill.submit(tokens, 0, { kind: 'prefill', maxLength: tokens.length });
  await prefill.run();
  assert.deepEqual(await prefill.checksums(), sums);
});

test('a fetch that stops early is computed from there', async () => {
  const prompt = promptOf(200);
  const h = await harness();
  const id = h.submit(prompt, 10, { isFetching: true });
  await h.engine.step();
  assert.equal(h.engine.stateOf(id), 'loading');
  h.engine.incoming.ended(id);
  await h.run();
  assert.deepEqual(h.outputs.get(id), await want(prompt, greedy, 10));
});

test('a block that is missing before delivered ones is computed, and those are used', async () => {
  const prompt = promptOf(330);
  const source = await harness();
  source.submit(prompt, 0, { kind: 'prefill', maxLength: prompt.length });
  await source.run();
  const h = await harness();
  const id = h.submit(prompt, 10, { isFetching: true });
  await h.engine.step();
  for (const [index, hash] of [...source.hashes.values()].entries()) {
    // The first was in the device when the fetch was planned, and evicted before it was admitted.
    if (index === 0 || index === 4) continue;
    const payload = new Uint8Array(h.model.executable.blockBytes);
    await source.engine.exportTo([{ hash, out: payload }]);
    await h.engine.incoming.blocks(id, [{ blockIndex: index, payload, origin: index < 7 ? 'storeDisk' : 'handoff' }]);
  }
  h.engine.incoming.ended(id);
  await h.run();
  assert.deepEqual(h.outputs.get(id), await want(prompt, greedy, 10));
  assert.deepEqual([h.reports.get(id)?.fetchedTokens, h.reports.get(id)?.computedTokens], [8 * 32, 330 - 8 * 32]);
  const nowhere = { device: 0, dram: 0, instance: 0, storeDram: 0 };
  assert.deepEqual(h.reports.get(id)?.sources, { ...nowhere, storeDisk: 5 * 32, handoff: 3 * 32 });
});

test('a preempted sequence says so, and fetched blocks it had are not needed to go on', async () => {
  const h = await harness(12, 64);
  const ids = Array.from({ length: 6 }, () => h.submit(promptOf(60 + random.below(60)), 80));
  await h.run();
  assert(h.preempted.size > 0);
  for (const id of h.preempted) assert(ids.includes(id));
});

test('more sequences than a step has rows: each gets its tokens', async () => {
  const h = await harness(64, 4);
  const prompts = Array.from({ length: 8 }, () => promptOf(3));
  const ids = prompts.map((prompt) => h.submit(prompt, 20));
  for (let i = 0; i < 12; i++) await h.engine.step();
  assert(h.engine.load.numRunning <= 4, 'no more are admitted than can move');
  await h.run();
  for (const [i, prompt] of prompts.entries()) assert.deepEqual(h.outputs.get(ids[i]!), await want(prompt, greedy, 20));
});

test('min_tokens: no stop token is sampled before', async () => {
  const prompt = promptOf(30);
  const [first] = await want(prompt, greedy, 1);
  const h = await harness();
  const id = h.submit(prompt, 12, { stopTokenIds: [first!], sampling: { ...greedy, minTokens: 5 } });
  await h.run();
  const output = h.outputs.get(id)!;
  assert(!output.slice(0, 5).includes(first!));
  assert(output.length >= 6);
});

test('log-probabilities of a prompt are those of the reference, in any chunks, with others, after hits and a preemption', async () => {
  const name = 'llama-tied';
  const golden = goldenCases(name).find(({ positions, prompt }) => positions === 'all' && prompt.length > 8)!;
  const { prompt } = golden;
  for (const [numBlocks, chunkTokens] of [
    [64, 512],
    [64, 5],
    [7, 64],
  ] as const) {
    const model = await loadModel({
      ...loadDefaults,
      modelPath: goldenFolder(name),
      numBlocks,
      chunkTokens,
      kvDtype: 'f32',
      weightFormat: 'f32',
    });
    const { vocabSize } = model.folder.config;
    const h = new Harness(model, numBlocks, chunkTokens);
    // The prompt is cached, but sequences that request its log-probabilities must compute their rows anyway.
    h.submit(prompt, 1);
    await h.run();
    const others = Array.from({ length: 3 }, () =>
      h.submit(
        Array.from({ length: 40 }, () => random.below(vocabSize)),
        30,
      ),
    );
    const whole = h.submit(prompt, 4, { promptLogprobs: { numTop: 2, from: 1 } });
    const late = h.submit(prompt, 4, { promptLogprobs: { numTop: 0, from: prompt.length - 3 } });
    await h.run();
    for (const id of [...others, whole, late]) assert(h.outputs.get(id)!.length >= 4);
    assert.deepEqual(h.outputs.get(whole)!.slice(0, 2), h.outputs.get(late)!.slice(0, 2));
    const notified = h.prompts.get(whole)!;
    assert.equal(notified.length, prompt.length);
    assert.deepEqual(Object.keys(h.prompts.get(late)!).map(Number), [
      prompt.length - 3,
      prompt.length - 2,
      prompt.length - 1,
    ]);
    for (let position = 1; position < prompt.length; position++) {
      const logits = [...logitsAt(name, golden, position - 1, vocabSize)];
      const highest = Math.max(...logits);
      const sum = highest + Math.log(logits.reduce((total, logit) => total + Math.exp(logit - highest), 0));
      const { token, logprob, topLogprobs } = notified[position]!;
      assert.equal(token, prompt[position]);
      assert(Math.abs(logprob[0]! - (logits[token]! - sum)) < 1e-2, `${position}: ${logprob[0]}`);
      assert.equal(topLogprobs.length, 2);
      assert(Math.abs(topLogprobs[0]! - (highest - sum)) < 1e-2);
    }
    await model.executable.close();
  }
});

test('a row of logits that are no numbers fails its own request and no other', async () => {
  const h = await harness();
  const run = h.model.executable.run.bind(h.model.executable);
  let numSteps = 0;
  // The second sequence's third token.
  h.model.executable.run = async (batch) => {
    const results = await run(batch);
    numSteps++;
    return numSteps === 3 ? results.map((one, i) => (i === 1 ? { ...one, token: NO_TOKEN } : one)) : results;
  };
  const prompts = [promptOf(5), promptOf(6)];
  const [good, bad] = prompts.map((prompt) => h.submit(prompt, 8));
  await h.run();
  assert.deepEqual(h.outputs.get(good!), await want(prompts[0]!, greedy, 8));
  assert.equal(h.outputs.get(bad!)?.length, 2);
  assert.match(h.failed.get(bad!)!, /no token can be sampled: a logit of the model is no number/);
  assert.equal(h.engine.pool.numAvailable, 64);
});

test('ten sequences whose tokens the host samples, and ten that the device does: each gets its own', async () => {
  const model = await loadModel({ ...loadDefaults, modelPath: path, numBlocks: 64, chunkTokens: 64, maxNumSeqs: 20 });
  // Room for two pages: most sequences with penalties have none.
  const sampling = { ...model.executable.sampling, numPages: 2 };
  Object.defineProperty(model.executable, 'sampling', { value: sampling });
  const h = new Harness(model, 64, 64, 20);
  const cases = Array.from({ length: 20 }, (_, i) => ({
    prompt: promptOf(3 + random.below(20)),
    params: i % 2 ? { ...greedy, temperature: 0.9, seed: i, frequencyPenalty: 0.5, repetitionPenalty: 1.1 } : greedy,
  }));
  const ids = cases.map(({ prompt, params }) => h.submit(prompt, 10, { sampling: params }));
  await h.run();
  for (const [i, { prompt, params }] of cases.entries())
    assert.deepEqual(h.outputs.get(ids[i]!), await want(prompt, params, 10), `${i}`);
});

test('twenty sequences whose tokens the host samples and whose prompts are read: none waits for ever', async () => {
  const model = await loadModel({ ...loadDefaults, modelPath: path, numBlocks: 80, chunkTokens: 32, maxNumSeqs: 20 });
  Object.defineProperty(model.executable, 'sampling', { value: { ...model.executable.sampling, numPages: 0 } });
  const h = new Harness(model, 80, 32, 20);
  const params: TestSampling = { ...greedy, frequencyPenalty: 0.5 };
  const prompts = Array.from({ length: 24 }, () => promptOf(20 + random.below(60)));
  const ids = prompts.map((prompt) =>
    h.submit(prompt, 5, { sampling: params, promptLogprobs: { numTop: 1, from: 1 } }),
  );
  await h.run();
  for (const [i, prompt] of prompts.entries()) {
    assert.deepEqual(h.outputs.get(ids[i]!), await want(prompt, params, 5), `${i}`);
    assert.equal(Object.keys(h.prompts.get(ids[i]!)!).length, prompt.length - 1);
  }
});

test('where every layer has a window, blocks that none sees any more serve others, and tokens are the same', async () => {
  const modelPath = goldenFolder('mistral');
  const [numBlocks, chunkTokens, maxTokens] = [14, 64, 280];
  const model = await loadModel({ ...loadDefaults, modelPath, numBlocks, chunkTokens });
  const own = await loadReference(modelPath, 'f16', 64);
  assert.deepEqual(new Set(model.layout.spec.frames.map(({ window }) => window)), new Set([48]));
  const h = new Harness(model, numBlocks, chunkTokens, 8);
  const prompts = Array.from({ length: 4 }, () => Array.from({ length: 40 }, () => random.below(320)));
  const ids = prompts.map((prompt) => h.submit(prompt, maxTokens));
  let mostUsed = 0;
  while (await h.engine.step()) {
    h.engine.pool.checkIntegrity();
    const { pool } = h.engine;
    mostUsed = Math.max(mostUsed, Array.from({ length: numBlocks }, (_, i) => pool.isUsed(i)).filter(Boolean).length);
  }
  // Ten blocks each at the end, and never more than what 48 tokens lie in.
  assert(mostUsed <= 4 * 3, `${mostUsed} of ${numBlocks} were used`);
  assert.equal(h.engine.load.numPreemptions, 0);
  for (const [i, prompt] of prompts.entries()) {
    const wanted = await generate(own.executable, prompt, greedy, maxTokens);
    assert.deepEqual(
      h.outputs.get(ids[i]!),
      wanted.map(({ token }) => token),
    );
  }
  // A cancelled one gives back what it holds, once.
  const late = h.submit(prompts[0]!, maxTokens);
  for (let step = 0; step < 150; step++) await h.engine.step();
  h.engine.cancel(late);
  await h.run();
  assert.equal(h.engine.pool.numAvailable, numBlocks);
  await own.executable.close();
  await model.executable.close();
});
