/** Several samples of a prompt (`n`, `best_of`) as the official client asks for them. Budget: 30 s. */
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { Cluster } from '../support/cluster.ts';

const model = 'harbour';
let cluster: Cluster;
let client: OpenAI;
beforeAll(async () => {
  // Prompts are computed elsewhere than answers, whatever that costs.
  const policy = ['--policy', 'longest_prefix', '--local-prefill-tokens', '48'];
  cluster = await Cluster.inProcess('--prefill', '1', '--decode', '1', '--store', '1', ...policy);
  client = new OpenAI({ baseURL: `${cluster.url}/v1`, apiKey: 'none', maxRetries: 0 });
});
afterAll(async () => {
  await cluster.close();
});

const random = new Random(5);
const promptOf = (length: number): number[] => Array.from({ length }, () => 3 + random.below(1_500));
const messages = [{ role: 'user' as const, content: 'Who keeps the red key?' }];
const sampling = { model, temperature: 1.3, max_tokens: 10 };

test('choice i of a chat is the answer of the single request with the seed plus i; the prompt counts once', async () => {
  const { choices, usage } = await client.chat.completions.create({ ...sampling, messages, n: 4, seed: 70 });
  assert.deepEqual(
    choices.map(({ index }) => index),
    [0, 1, 2, 3],
  );
  let numTokens = 0;
  for (const [i, { message, finish_reason: finish }] of choices.entries()) {
    const single = await client.chat.completions.create({ ...sampling, messages, seed: 70 + i });
    assert.deepEqual([message, finish], [single.choices[0]?.message, single.choices[0]?.finish_reason]);
    numTokens += single.usage?.completion_tokens ?? 0;
    if (i === 0) assert.equal(usage?.prompt_tokens, single.usage?.prompt_tokens);
  }
  assert.equal(usage?.completion_tokens, numTokens);
  expect(new Set(choices.map(({ message }) => message.content)).size).toBeGreaterThan(1);
});

test('a stream carries the index of each choice: its role first, its finish last, and one usage', async () => {
  const whole = await client.chat.completions.create({ ...sampling, messages, n: 3, seed: 9 });
  const stream = await client.chat.completions.create({
    ...sampling,
    messages,
    n: 3,
    seed: 9,
    stream: true,
    stream_options: { include_usage: true },
  });
  const seen = [0, 1, 2].map(() => ({ text: '', numRoles: 0, finishes: [] as (string | null)[] }));
  const usages: unknown[] = [];
  for await (const { choices, usage } of stream) {
    if (usage) usages.push(usage);
    for (const { index, delta, finish_reason: finish } of choices) {
      const one = seen[index];
      assert(one && one.finishes.length === 0, 'nothing comes after the finish of a choice');
      if (delta.role) one.numRoles++;
      assert.equal(one.numRoles, 1, 'the role comes first, and once');
      one.text += delta.content ?? '';
      if (finish) one.finishes.push(finish);
    }
  }
  assert.deepEqual(
    seen,
    whole.choices.map(({ message, finish_reason: finish }) => ({
      text: message.content,
      numRoles: 1,
      finishes: [finish],
    })),
  );
  expect(usages).toEqual([{ ...whole.usage, prompt_tokens_details: expect.anything() as unknown }]);
});

test('a prompt that is prefilled elsewhere is fetched once for all of its samples, and no token of it is computed twice', async () => {
  const prompt = promptOf(700);
  const { choices } = await cluster.completion({ prompt, n: 6, max_tokens: 5, temperature: 1, seed: 3 });
  expect(choices).toHaveLength(6);
  const all = await cluster.requests(6);
  const first = all.find(({ sample_of: of }) => of === null);
  assert(first);
  const others = all.filter(({ sample_of: of }) => of === first.id);
  expect(others).toHaveLength(5);
  assert.equal(first.tokens.computed, 700);
  expect(first.attempts[0]?.prefills).toHaveLength(1);
  const computed = all.map(({ attempts }) => attempts[0]?.report?.computed_tokens ?? 0);
  const fetched = all.map(({ attempts }) => attempts[0]?.report?.fetched_tokens ?? 0);
  // 21 full blocks of 32 are prefilled elsewhere; the decode instance computes the rest, once.
  assert.deepEqual([sum(computed), sum(fetched)], [700 - 21 * 32, 21 * 32]);
  for (const { attempts, tokens } of others) {
    assert.deepEqual([attempts.length, attempts[0]?.prefills.length, tokens.computed], [1, 0, 0]);
    assert.equal(attempts[0]?.decode, first.attempts[0]?.decode);
  }
});

test('several prompts: the choices of each lie together; echo, log-probabilities and ids are those of single requests', async () => {
  const prompts = [promptOf(40), promptOf(90)];
  const wish = {
    model,
    max_tokens: 4,
    temperature: 1,
    echo: true,
    logprobs: 2,
    prompt_logprobs: 1,
    return_token_ids: true,
  };
  const { choices, usage } = await cluster.completion({ ...wish, prompt: prompts, n: 3, seed: 21 });
  expect(choices).toHaveLength(6);
  assert.equal(usage.prompt_tokens, 130);
  for (const [p, prompt] of prompts.entries()) {
    for (let i = 0; i < 3; i++) {
      const single = await cluster.completion({ ...wish, prompt, seed: 21 + i });
      const index = 3 * p + i;
      assert.deepEqual(choices[index], { ...single.choices[0], index }, `choice ${index}`);
    }
  }
});

test('best_of returns the samples with the highest log-probability per token, the best first', async () => {
  const prompt = promptOf(50);
  const wish = { model, prompt, max_tokens: 6, temperature: 1.5, seed: 100 };
  const all = (await client.completions.create({ ...wish, logprobs: 0, n: 8 })).choices;
  const mean = (values: readonly (number | null)[]): number => sum(values.map((one) => one ?? 0)) / values.length;
  const order = all
    .map(({ text, logprobs }) => ({ text, mean: mean(logprobs?.token_logprobs ?? []) }))
    .sort((a, b) => b.mean - a.mean);
  const { choices, usage } = await client.completions.create({ ...wish, logprobs: 0, n: 3, best_of: 8 });
  assert.deepEqual(
    choices.map(({ index, text }) => [index, text]),
    order.slice(0, 3).map(({ text }, index) => [index, text]),
  );
  expect(usage?.completion_tokens).toBe(48);
  const silent = await client.completions.create({ ...wish, best_of: 8 });
  assert.deepEqual(
    silent.choices.map(({ text, logprobs }) => [text, logprobs]),
    [[order[0]?.text, null]],
  );
});

describe('what is refused', () => {
  test.each([
    [{ n: 1.5 }, 'n'],
    [{ n: 129, prompt: ['a', 'b'] }, 'n'],
    [{ n: 2, best_of: 129, prompt: ['a', 'b'] }, 'best_of'],
  ])('%j', async (more, param) => {
    const response = await fetch(`${cluster.url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model, prompt: 'a', max_tokens: 1, ...more }),
    });
    const { error } = (await response.json()) as { error: { param: string; message: string } };
    assert.deepEqual([response.status, error.param], [400, param], error.message);
  });

  test('256 samples are answered', async () => {
    const { choices } = await cluster.completion({ prompt: promptOf(20), n: 256, max_tokens: 1, temperature: 1 });
    expect(choices).toHaveLength(256);
  });
});

test('a reader that leaves ends all samples (R2)', async () => {
  const gone = new AbortController();
  const stream = await client.chat.completions.create(
    { ...sampling, max_tokens: 500, messages, n: 8, stream: true, ignore_eos: true } as never,
    { signal: gone.signal },
  );
  await (stream as unknown as AsyncIterable<unknown>)[Symbol.asyncIterator]().next();
  gone.abort();
  await cluster.idle();
  for (const { phase } of await cluster.requests(8)) assert.equal(phase, 'cancelled');
});

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
