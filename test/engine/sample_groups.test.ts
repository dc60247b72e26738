/**
 * Samples of one prompt in the engine: each has the tokens that it has alone, the prompt is computed once and held once, whatever
 * becomes of the other samples. Budget: 15 s.
 */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, describe, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { Random } from '../../shared/base/random.ts';
import { loadModel, type LoadedModel } from '../../shared/engine/load_model.ts';
import { SampleGroups } from '../../shared/engine/sample_groups.ts';
import { Sequence } from '../../shared/engine/sequence.ts';
import type { Digest } from '../../shared/kv/block_key.ts';
import { kvSpec } from '../../shared/kv/kv_spec.ts';
import { Harness } from '../support/engine_harness.ts';
import { goldenFolder } from '../support/golden.ts';
import { generate, greedy, loadDefaults, loadReference } from '../support/reference_loop.ts';
import { sequenceRequest, type TestSampling, type TestSequence } from '../support/request.ts';

const path = goldenFolder('llama-odd');
const random = new Random(77);
const promptOf = (length: number): number[] => Array.from({ length }, () => random.below(333));

let reference: LoadedModel;
beforeAll(async () => {
  reference = await loadReference(path, 'f16', 512);
});
afterAll(async () => {
  await reference.executable.close();
});

async function harness(numBlocks = 64, maxNumSeqs = 8): Promise<Harness> {
  const model = await loadModel({ ...loadDefaults, modelPath: path, numBlocks, chunkTokens: 64, maxNumSeqs });
  return new Harness(model, numBlocks, 64, maxNumSeqs);
}

const sampled = (i: number, more: Partial<TestSampling> = {}): TestSampling => ({
  ...greedy,
  temperature: 1,
  seed: 40 + i,
  ...more,
});
const want = async (prompt: number[], params: TestSampling, count: number): Promise<number[]> =>
  (await generate(reference.executable, prompt, params, count)).map(({ token }) => token);

/** Submits `size` samples of a prompt; returns their ids. */
function submitAll(
  h: Harness,
  prompt: number[],
  size: number,
  count: number,
  more: Partial<TestSequence> = {},
): number[] {
  return Array.from({ length: size }, (_, index) =>
    h.submit(prompt, count, { sampling: sampled(index), group: { id: 'g', index, size }, ...more }),
  );
}

async function expectSamples(h: Harness, prompt: number[], ids: readonly number[], count: number): Promise<void> {
  for (const [i, id] of ids.entries())
    assert.deepEqual(h.outputs.get(id), await want(prompt, sampled(i), count), `sample ${i}`);
}

const computed = (h: Harness, ids: readonly number[]): number[] =>
  ids.map((id) => h.reports.get(id)?.computedTokens ?? -1);

for (const length of [150, 160, 31, 32, 1]) {
  test(`five samples of a prompt of ${length} tokens have the tokens of five requests, and its tokens are computed once`, async () => {
    const h = await harness();
    const prompt = promptOf(length);
    const ids = submitAll(h, prompt, 5, 40);
    await h.run();
    await expectSamples(h, prompt, ids, 40);
    assert.deepEqual(computed(h, ids), [length, 0, 0, 0, 0]);
    const [first, ...others] = ids.map((id) => h.reports.get(id));
    assert.equal(first?.cachedTokens, 0);
    for (const report of others) assert.equal(report?.cachedTokens, length);
    assert.deepEqual([h.engine.load.numRunning, h.engine.load.numWaiting], [0, 0]);
  });
}

test('the prompt’s full blocks are held once: samples take a block each for what is their own', async () => {
  const h = await harness();
  const prompt = promptOf(150);
  const before = h.engine.pool.numAvailable;
  submitAll(h, prompt, 5, 8);
  while (h.outputs.size === 0) await h.engine.step();
  // Four full blocks, and five that the prompt fills in part.
  assert.equal(before - h.engine.pool.numAvailable, 4 + 5);
  await h.run();
  assert.equal(h.engine.pool.numAvailable, before);
});

test('equal samples share what they may, and none is disturbed', async () => {
  const h = await harness();
  const prompt = promptOf(70);
  const ids = submitAll(h, prompt, 3, 60, { sampling: greedy });
  await h.run();
  const expected = await want(prompt, greedy, 60);
  for (const id of ids) assert.deepEqual(h.outputs.get(id), expected);
});

test('penalties, biases, log-probabilities of the prompt and the samples with other requests', async () => {
  const h = await harness(80);
  const [prompt, other] = [promptOf(100), promptOf(90)];
  const params = (i: number): TestSampling =>
    sampled(i, { presencePenalty: 1.2, logitBias: [[7, 3]], numLogprobs: 2, ...(i === 2 ? { temperature: 0 } : {}) });
  const ids = Array.from({ length: 4 }, (_, index) =>
    h.submit(prompt, 20, {
      sampling: params(index),
      group: { id: 'g', index, size: 4 },
      ...(index === 0 ? { promptLogprobs: { numTop: 1, from: 1 } } : {}),
    }),
  );
  const otherId = h.submit(other, 20);
  await h.run();
  for (const [i, id] of ids.entries()) assert.deepEqual(h.outputs.get(id), await want(prompt, params(i), 20));
  assert.deepEqual(h.outputs.get(otherId), await want(other, greedy, 20));
  assert.deepEqual(computed(h, ids), [100, 0, 0, 0]);
  assert.equal(h.prompts.get(ids[0]!)?.filter(Boolean).length, 99);
});

test('samples beyond the sequences that run at once come after the others', async () => {
  const h = await harness(64, 4);
  const prompt = promptOf(150);
  const ids = submitAll(h, prompt, 10, 30);
  await h.run();
  await expectSamples(h, prompt, ids, 30);
  // The others hit the full blocks, and compute what the last block has of the prompt.
  assert.deepEqual(computed(h, ids), [150, 0, 0, 0, ...new Array<number>(6).fill(150 - 128)]);
});

test('when blocks run out samples are preempted and come back with the same tokens', async () => {
  const h = await harness(14);
  const prompt = promptOf(70);
  const ids = submitAll(h, prompt, 6, 90);
  await h.run();
  assert(h.engine.load.numPreemptions > 0, 'the pool was small enough to preempt');
  await expectSamples(h, prompt, ids, 90);
});

test('a first sample that is cancelled while it computes the prompt leaves it to the next one', async () => {
  const h = await harness();
  const prompt = promptOf(200);
  const ids = submitAll(h, prompt, 4, 20);
  await h.engine.step();
  h.engine.cancel(ids[0]!);
  h.engine.cancel(ids[2]!);
  await h.run();
  for (const i of [1, 3]) assert.deepEqual(h.outputs.get(ids[i]!), await want(prompt, sampled(i), 20));
  assert.equal(h.outputs.get(ids[0]!), undefined);
  assert.deepEqual([h.engine.load.numRunning, h.engine.load.numWaiting], [0, 0]);
});

test('a sample whose own step has returned does not need the first one any more', async () => {
  const h = await harness();
  const prompt = promptOf(100);
  const ids = submitAll(h, prompt, 3, 60);
  while (h.outputs.size < 3) await h.engine.step();
  h.engine.cancel(ids[0]!);
  await h.run();
  for (const i of [1, 2]) assert.deepEqual(h.outputs.get(ids[i]!), await want(prompt, sampled(i), 60));
});

test('a sample that never comes is waited for a second (P1), and one that comes late is computed like any request', async () => {
  const h = await harness();
  const prompt = promptOf(90);
  const [first = 0, second = 0] = [0, 1].map((index) =>
    h.submit(prompt, 10, { sampling: sampled(index), group: { id: 'g', index, size: 3 } }),
  );
  await h.run();
  assert.deepEqual([h.outputs.size, h.engine.load.numRunning, h.engine.load.numWaiting], [0, 1, 1]);
  await h.ready();
  await h.run();
  const late = h.submit(prompt, 10, { sampling: sampled(2), group: { id: 'g', index: 2, size: 3 } });
  await h.run();
  await expectSamples(h, prompt, [first, second, late], 10);
});

test('samples whose first one never comes: one of them leads after a second', async () => {
  const h = await harness();
  const prompt = promptOf(90);
  const ids = [1, 2].map((index) =>
    h.submit(prompt, 10, { sampling: sampled(index), group: { id: 'g', index, size: 3 } }),
  );
  assert.equal(await h.engine.step(), false);
  await h.ready();
  await h.run();
  for (const [i, id] of ids.entries()) assert.deepEqual(h.outputs.get(id), await want(prompt, sampled(i + 1), 10));
  assert.deepEqual(computed(h, ids), [90, 0]);
});

test('samples that go on elsewhere with tokens of their own wait for the prompt’s blocks, and compute only what is theirs', async () => {
  const h = await harness();
  const prompt = promptOf(150);
  const outputs: number[][] = [];
  for (const i of [0, 1, 2]) outputs.push(await want(prompt, sampled(i), 40));
  const ids = outputs.map((output, index) =>
    h.submit([...prompt, ...output.slice(0, 5 * index)], 40 - 5 * index, {
      sampling: sampled(index),
      promptLength: 150,
      group: { id: 'g', index, size: 1 },
    }),
  );
  await h.run();
  ids.forEach((id, i) => {
    assert.deepEqual(h.outputs.get(id), outputs[i]!.slice(5 * i));
  });
  assert.deepEqual(computed(h, ids), [150, 155 - 128, 160 - 128]);
});

test('a member with another prompt is no sample of this one: it gets its own tokens', async () => {
  const h = await harness();
  const [prompt, other] = [promptOf(100), promptOf(100)];
  const first = h.submit(prompt, 10, { group: { id: 'g', index: 0, size: 2 } });
  const second = h.submit(other, 10, { group: { id: 'g', index: 1, size: 2 } });
  await h.run();
  assert.deepEqual(h.outputs.get(first), await want(prompt, greedy, 10));
  assert.deepEqual(h.outputs.get(second), await want(other, greedy, 10));
});

describe('the groups', () => {
  const spec = kvSpec([{ kind: 'paged', planes: [4], window: 0 }], { blockSize: 4, valueType: 'f32' });
  let nextId = 1;
  const sequence = (): Sequence =>
    new Sequence(
      sequenceRequest({ id: nextId++, root: 'ab'.repeat(16) as Digest, tokens: [1, 2, 3], maxLength: 9 }),
      spec,
      0,
    );

  test('P1: of groups that have ended a bounded number is known, and none that waits is left behind', () => {
    const groups = new SampleGroups(systemClock, () => undefined);
    for (let i = 0; i < 3_000; i++) {
      const [leader, follower] = [sequence(), sequence()];
      assert.equal(groups.join(leader, { id: `${i}`, index: 0, size: 2 }), 'leads');
      assert.equal(groups.maySample(leader), false);
      assert.equal(groups.join(follower, { id: `${i}`, index: 1, size: 2 }), 'follows');
      assert.equal(groups.maySample(leader), true);
      assert.equal(groups.numFollowing, 1);
      if (i % 2 === 0) assert.deepEqual(groups.end(leader), [follower]);
      else assert.deepEqual([groups.leave(follower), groups.leave(leader)], [undefined, undefined]);
      assert.deepEqual([groups.numFollowing, groups.isEmpty], [0, true]);
      assert.equal(groups.join(sequence(), { id: `${i}`, index: 1, size: 2 }), 'alone');
    }
  });
});
