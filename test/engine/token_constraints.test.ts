/**
 * Constraints in the engine: each sequence samples what its constraint allows, and the same tokens alone, in a batch, as a sample of a
 * group and where it goes on with tokens of another instance. Budget: 15 s.
 */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { MAX_MASKS } from '../../kernels/device.ts';
import { systemClock } from '../../shared/base/clock.ts';
import { Random } from '../../shared/base/random.ts';
import { loadModel, type LoadedModel } from '../../shared/engine/load_model.ts';
import type { TokenConstraintMessage } from '../../shared/protocol/messages.ts';
import { allowedAfter, anyTokens, HashedGrammars, maskOf } from '../support/constraints.ts';
import { Harness } from '../support/engine_harness.ts';
import { goldenFolder } from '../support/golden.ts';
import { generate, greedy, loadDefaults, loadReference } from '../support/reference_loop.ts';
import type { TestSampling, TestSequence } from '../support/request.ts';

const path = goldenFolder('llama-odd');
const VOCAB = 333;
const END = 2;
const random = new Random(31);
const promptOf = (length: number): number[] => Array.from({ length }, () => 3 + random.below(VOCAB - 3));

let reference: LoadedModel;
beforeAll(async () => {
  reference = await loadReference(path, 'f16', 512);
});
afterAll(async () => {
  await reference.executable.close();
});

async function harness({ numBlocks = 256, maxNumSeqs = 8, ms = 0 } = {}): Promise<[Harness, HashedGrammars]> {
  const model = await loadModel({ ...loadDefaults, modelPath: path, numBlocks, chunkTokens: 128, maxNumSeqs });
  const grammars = new HashedGrammars(VOCAB, systemClock, () => ms * random.below(3));
  return [new Harness(model, numBlocks, 128, maxNumSeqs, grammars), grammars];
}

/** Runs until none of the sequences is left. */
async function runAll(h: Harness, ids: readonly number[]): Promise<void> {
  for (;;) {
    await h.run();
    if (ids.every((id) => h.engine.stateOf(id) === undefined)) return;
    await h.ready();
  }
}

const grammarOf = (seed: string): TokenConstraintMessage => ({ ...anyTokens, grammar: seed, endTokens: [END] });
const runs = (...forbidden: number[][]): TokenConstraintMessage['forbidden'] => forbidden.map((tokens) => ({ tokens }));
const maskFor = (tokens: readonly number[]): Buffer => {
  const bytes = Buffer.alloc(Math.ceil(VOCAB / 8));
  for (const token of tokens) bytes[token >> 3]! |= 1 << (token & 7);
  return bytes;
};

const sampled = (seed: number, more: Partial<TestSampling> = {}): TestSampling => ({
  ...greedy,
  temperature: 1,
  seed,
  ...more,
});

interface Case extends Partial<TestSequence> {
  readonly prompt: readonly number[];
  readonly count: number;
  readonly params: TestSampling;
  readonly constraint: TokenConstraintMessage | undefined;
}

async function want({ prompt, params, count, constraint, stopTokenIds }: Case): Promise<number[]> {
  const expected = constraint && {
    endTokens: constraint.grammar === '' ? [] : constraint.endTokens,
    after: (output: readonly number[]) => {
      const state = allowedAfter(constraint, output, stopTokenIds ?? []);
      return Promise.resolve({ words: maskOf(state, VOCAB), isComplete: state.isComplete });
    },
  };
  const all = await generate(reference.executable, [...prompt], params, count, stopTokenIds, expected);
  return all.map(({ token }) => token);
}

function submit(h: Harness, { prompt, count, params, ...more }: Case): number {
  return h.submit(prompt, count, { ...more, sampling: params });
}

async function expectAll(h: Harness, cases: readonly Case[], ids: readonly number[]): Promise<void> {
  await runAll(h, ids);
  for (const [i, one] of cases.entries()) {
    const output = h.outputs.get(ids[i]!);
    assert.deepEqual(output, await want(one), `case ${i}: ${h.failed.get(ids[i]!)}`);
    if (one.constraint) {
      const { constraint } = one;
      output.forEach((token, at) => {
        const { isAllowed } = allowedAfter(constraint, output.slice(0, at), one.stopTokenIds ?? []);
        assert(isAllowed(token), `case ${i}, token ${at}`);
      });
    }
  }
}

const kinds: readonly [string, Omit<Case, 'prompt' | 'count'>][] = [
  ['a grammar', { params: sampled(1), constraint: grammarOf('a') }],
  ['a grammar, greedy', { params: greedy, constraint: grammarOf('b') }],
  ['a mask', { params: sampled(2), constraint: { ...anyTokens, allowedTokens: maskFor([5, 9, 11, 200, 332]) } }],
  ['forbidden runs', { params: sampled(3), constraint: { ...anyTokens, forbidden: runs([5], [7, 9], [9, 7, 9]) } }],
  ['nothing', { params: sampled(4), constraint: undefined }],
  [
    'all, with penalties and a bias',
    {
      params: sampled(5, { repetitionPenalty: 1.2, presencePenalty: 0.4, logitBias: [[8, 3]] }),
      constraint: { ...grammarOf('c'), allowedTokens: maskFor(promptOf(250)), forbidden: runs([8]) },
    },
  ],
];

test.each(kinds)('alone: %s', async (_, one) => {
  const [h] = await harness();
  const all = [20, 64, 131].map((length): Case => ({ ...one, prompt: promptOf(length), count: 12 }));
  for (const single of all) await expectAll(h, [single], [submit(h, single)]);
  await h.model.executable.close();
});

test('all together, while masks come late', async () => {
  const [h, grammars] = await harness({ ms: 2 });
  const cases = Array.from({ length: 24 }, (_, i): Case => ({
    ...kinds[i % kinds.length]![1],
    prompt: promptOf(10 + random.below(150)),
    count: 10,
  }));
  await expectAll(
    h,
    cases,
    cases.map((one) => submit(h, one)),
  );
  assert.equal(grammars.numOpen, 0);
  await h.model.executable.close();
});

test('more rows with a mask than a step has masks: the rest waits, and every one gets its tokens', async () => {
  const numSeqs = MAX_MASKS + 20;
  const [h] = await harness({ numBlocks: 4 * numSeqs, maxNumSeqs: numSeqs });
  const cases = Array.from({ length: numSeqs }, (_, i): Case => ({
    params: sampled(i),
    constraint: grammarOf(`m${i % 7}`),
    prompt: promptOf(6 + (i % 3)),
    count: 5,
  }));
  await expectAll(
    h,
    cases,
    cases.map((one) => submit(h, one)),
  );
  await h.model.executable.close();
});

test('samples of a prompt are forked with their masks, more of them than a step has masks too', async () => {
  const size = MAX_MASKS + 6;
  const [h] = await harness({ numBlocks: 4 * size, maxNumSeqs: size, ms: 1 });
  const prompt = promptOf(70);
  const cases = Array.from({ length: size }, (_, index): Case => ({
    params: sampled(index),
    constraint: grammarOf('g'),
    prompt,
    count: 6,
    group: { id: 'g', index, size },
  }));
  const ids = cases.map((one) => submit(h, one));
  await expectAll(h, cases, ids);
  const computed = ids.map((id) => h.reports.get(id)?.computedTokens ?? -1);
  expect(computed.filter((count) => count === 0).length).toBe(MAX_MASKS - 1);
  await h.model.executable.close();
});

test('an output that must end does, whatever min_tokens says and although no stop token is named', async () => {
  const [h] = await harness();
  const constraint = grammarOf('e');
  const cases = [
    { params: sampled(9), constraint, prompt: promptOf(30), count: 60 },
    { params: sampled(9, { minTokens: 60 }), constraint, stopTokenIds: [END], prompt: promptOf(30), count: 60 },
    { params: sampled(9, { minTokens: 60 }), constraint, prompt: promptOf(30), count: 60 },
  ];
  const ids = cases.map((one) => submit(h, one));
  await expectAll(h, cases, ids);
  for (const id of ids) {
    assert.equal(h.outputs.get(id)?.at(-1), END);
    assert((h.outputs.get(id)?.length ?? 60) < 30);
  }
  await h.model.executable.close();
});

test('an instance that goes on with the tokens of another samples the same', async () => {
  const [h] = await harness();
  for (const seed of ['u', 'v', 'w']) {
    const one: Case = {
      params: sampled(12),
      prompt: promptOf(40),
      count: 14,
      constraint: { ...grammarOf(seed), forbidden: runs([4, 5], [6]) },
    };
    const all = await want(one);
    for (let known = 1; known < all.length; known += 3) {
      const tokens = [...one.prompt, ...all.slice(0, known)];
      const id = h.submit(tokens, one.count - known, {
        sampling: one.params,
        constraint: one.constraint,
        promptLength: one.prompt.length,
      });
      await runAll(h, [id]);
      assert.deepEqual(h.outputs.get(id), all.slice(known));
    }
  }
  await h.model.executable.close();
});

describe('what goes wrong', () => {
  test('a grammar that cannot be opened refuses its sequence, and no other', async () => {
    const [h, grammars] = await harness({ ms: 1 });
    const good: Case = { params: sampled(3), constraint: grammarOf('a'), prompt: promptOf(40), count: 6 };
    const bad = submit(h, { ...good, constraint: grammarOf('bad') });
    await expectAll(h, [good], [submit(h, good)]);
    await runAll(h, [bad]);
    assert.match(h.failed.get(bad) ?? '', /the grammar is bad/);
    assert.equal(grammars.numOpen, 0);
    await h.model.executable.close();
  });

  test('a constraint that leaves no token refuses its sequence', async () => {
    const [h] = await harness();
    const constraint = { ...anyTokens, allowedTokens: maskFor([9]), forbidden: runs([9, 9]) };
    const id = submit(h, { params: sampled(3), constraint, prompt: promptOf(40), count: 6 });
    await runAll(h, [id]);
    assert.deepEqual(h.outputs.get(id), [9]);
    assert.match(h.failed.get(id) ?? '', /no token is left/);
    await h.model.executable.close();
  });

  test('a sequence that is cancelled while its mask is on the way leaves nothing', async () => {
    const [h, grammars] = await harness({ ms: 20 });
    const one: Case = { params: sampled(3), constraint: grammarOf('a'), prompt: promptOf(40), count: 6 };
    const ids = Array.from({ length: 6 }, () => submit(h, one));
    await h.run();
    for (const id of ids.slice(0, 3)) h.engine.cancel(id);
    await runAll(h, ids);
    assert.equal(grammars.numOpen, 0);
    assert.equal(h.engine.pool.numAvailable, 256);
    await h.model.executable.close();
  });
});
