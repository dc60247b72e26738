/** `/v1/embeddings` as the official client asks for it, over real processes. Budget: 40 s. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { Cluster, type RequestView } from '../support/cluster.ts';
import { goldenFolder } from '../support/golden.ts';
import { projectPath } from '../support/project.ts';
import { until } from '../support/until.ts';

const model = 'harbour';
const WIDTH = 192;
const CONTEXT = 2_048;
let cluster: Cluster;
let client: OpenAI;
beforeAll(async () => {
  cluster = await Cluster.up(
    ...['--prefill', '1', '--decode', '2', '--store', '1'],
    ...['--policy', 'longest_prefix', '--local-prefill-tokens', '64', '--chunk-tokens', '64'],
  );
  client = new OpenAI({ baseURL: `${cluster.url}/v1`, apiKey: 'none', maxRetries: 0 });
});
afterAll(async () => {
  await cluster.close();
});

const random = new Random(8);
const promptOf = (length: number): number[] => Array.from({ length }, () => 3 + random.below(1_500));
const embed = (input: string | string[] | number[] | number[][], more: object = {}) =>
  client.embeddings.create({ model, input, ...more });
const vectorOf = async (input: string | number[], more: object = {}): Promise<number[]> =>
  (await embed(input, more)).data[0]?.embedding ?? [];

function post(path: string, body: object): Promise<Response> {
  const headers = { 'content-type': 'application/json' };
  return fetch(`${cluster.url}${path}`, { method: 'POST', headers, body: JSON.stringify(body) });
}

async function tokensOf(prompt: string): Promise<number[]> {
  return ((await (await post('/tokenize', { model, prompt })).json()) as { tokens: number[] }).tokens;
}

async function newest(): Promise<RequestView> {
  const [request] = await cluster.requests(1);
  assert(request);
  return request;
}

async function expectIdle(): Promise<void> {
  await until('the router has none', async () => (await cluster.open()).requests === 0);
  await cluster.idle();
}

test('base64, which the client asks for by itself, and float are the same numbers, a vector of length 1', async () => {
  const text = 'The harbour master keeps the red key.';
  const answer = await embed(text);
  const vector = answer.data[0]?.embedding ?? [];
  assert.equal(vector.length, WIDTH);
  expect(Math.hypot(...vector)).toBeCloseTo(1, 5);
  assert.deepEqual(await vectorOf(text, { encoding_format: 'float' }), vector);
  const numTokens = (await tokensOf(text)).length;
  expect(answer).toMatchObject({ object: 'list', model, data: [{ object: 'embedding', index: 0 }] });
  expect(answer.usage).toMatchObject({ prompt_tokens: numTokens, total_tokens: numTokens });
  const raw = await post('/v1/embeddings', { input: text, encoding_format: 'base64', user: 'someone' });
  const { data } = (await raw.json()) as { data: { embedding: string }[] };
  const bytes = Buffer.from(data[0]?.embedding ?? '', 'base64');
  assert.deepEqual(
    Array.from({ length: WIDTH }, (_, i) => bytes.readFloatLE(4 * i)),
    vector,
  );
  // Texts differ by more than rounding.
  const other = await vectorOf('Where do the gulls sleep?');
  expect(vector.reduce((sum, value, i) => sum + value * other[i]!, 0)).toBeLessThan(0.999);
});

test('token ids, alone or in lists as LangChain sends them, are the text that they encode', async () => {
  const texts = ['Who keeps the red key?', 'A lighthouse stands on the pier.'];
  const ids = await Promise.all(texts.map(tokensOf));
  const ofTexts = (await embed(texts)).data.map(({ embedding }) => embedding);
  assert.deepEqual(
    (await embed(ids)).data.map(({ embedding }) => embedding),
    ofTexts,
  );
  assert.deepEqual(await vectorOf(ids[0]!), ofTexts[0]);
});

test('a batch of 256 comes in its order, each vector as it is alone; one more is refused', async () => {
  const prompts = Array.from({ length: 256 }, (_, i) => (i === 7 ? promptOf(300) : promptOf(1 + (i % 70))));
  const { data, usage } = await embed(prompts);
  assert.deepEqual(
    data.map(({ index }) => index),
    prompts.map((_, i) => i),
  );
  assert.equal(usage.prompt_tokens, prompts.flat().length);
  // Without the blocks of the batch.
  for (const i of [0, 7, 69, 255])
    assert.deepEqual(await vectorOf(prompts[i]!, { cache_salt: `alone ${i}` }), data[i]?.embedding, `prompt ${i}`);
  await assert.rejects(embed([...prompts, [5]]), /400 input: .* 1 to 256 of either, not 257/);
  await expectIdle();
});

test('blocks are shared with completions: hits show in usage and in the request log, and change no bit', async () => {
  const prompt = promptOf(200);
  await cluster.completion({ prompt, max_tokens: 2 });
  const hit = await embed(prompt);
  const cached = (hit.usage as { prompt_tokens_details?: { cached_tokens: number } }).prompt_tokens_details;
  // The last token's hidden state is computed, and with it the block that it is in.
  assert.equal(cached?.cached_tokens, 192);
  const request = await newest();
  expect(request.tokens).toMatchObject({ cached: 192, computed: 8 });
  assert.equal(request.attempts.length, 1);
  const fresh = await vectorOf(prompt, { cache_salt: 'fresh' });
  expect((await newest()).tokens).toMatchObject({ cached: 0, computed: 200 });
  assert.deepEqual(hit.data[0]?.embedding, fresh);
  // The other way round.
  const second = promptOf(160);
  await embed(second);
  const { usage } = await cluster.completion({ prompt: [...second, 9], max_tokens: 1 });
  // Blocks that were computed last may not be announced yet.
  expect(usage.prompt_tokens_details.cached_tokens).toBeGreaterThanOrEqual(96);
});

test('instances of both roles compute embeddings, bit for bit the same; a long prompt goes to a prefill instance', async () => {
  const prompt = promptOf(900);
  const byPrefill = await vectorOf(prompt, { cache_salt: 'first' });
  assert.equal((await newest()).attempts[0]?.decode, 'prefill-1');
  // With few tokens left to compute, the instance that has most of the blocks computes them, whatever its role.
  await cluster.completion({ prompt: prompt.slice(0, 890), max_tokens: 1, cache_salt: 'second' });
  await until('a decode instance holds the blocks', async () => {
    const { attempts } = await newest();
    return attempts[0]?.outcome === 'finished';
  });
  const names = new Set<string | undefined>();
  for (let i = 0; i < 6; i++) {
    assert.deepEqual(await vectorOf(prompt, { cache_salt: 'second' }), byPrefill);
    names.add((await newest()).attempts[0]?.decode);
  }
  const short = await vectorOf(prompt.slice(0, 20));
  assert.equal(short.length, WIDTH);
  names.add((await newest()).attempts[0]?.decode);
  expect([...names].some((name) => name?.startsWith('decode'))).toBe(true);
});

describe('what is refused', () => {
  const refused: readonly (readonly [name: string, body: object, status: number, message: RegExp])[] = [
    ['dimensions', { input: 'a', dimensions: 64 }, 400, /^dimensions: is not supported/],
    ['an empty text', { input: '' }, 400, /^input: cannot be empty/],
    ['an empty text in a batch', { input: ['a', ''] }, 400, /^input\.1: cannot be empty/],
    ['an empty batch', { input: [] }, 400, /^input: .*none empty/],
    ['no input', {}, 400, /^input: a text, a list of token ids/],
    ['an id that is none', { input: [5, 1_536] }, 400, /^input\.1: token id 1536 is outside the vocabulary of 1536/],
    ['too many tokens', { input: promptOf(CONTEXT + 1) }, 400, /maximum context length is 2048 tokens/],
    ['too long a text', { input: 'red key '.repeat(2_000) }, 400, /maximum context length is 2048 tokens/],
    ['another format', { input: 'a', encoding_format: 'int8' }, 400, /^encoding_format: float or base64/],
    ['another model', { input: 'a', model: 'other' }, 404, /The model `other` does not exist/],
  ];
  test.each(refused)('%s', async (_name, body, status, message) => {
    const response = await post('/v1/embeddings', body);
    const { error } = (await response.json()) as { error: { message: string; param: string | null } };
    assert.equal(response.status, status, error.message);
    expect(error.message).toMatch(message);
    expect(error.param).not.toBeNull();
  });

  test('the whole context is not too long', async () => {
    const prompt = promptOf(CONTEXT);
    const { data, usage } = await embed(prompt);
    assert.equal(data[0]?.embedding.length, WIDTH);
    assert.equal(usage.prompt_tokens, CONTEXT);
  });
});

test('a client that leaves cancels what it asked for (R2)', async () => {
  const leaving = new AbortController();
  const asked = client.embeddings.create(
    { model, input: Array.from({ length: 40 }, () => promptOf(1_500)) },
    { signal: leaving.signal },
  );
  await until('some of them run', async () => (await cluster.node('prefill-1')).running > 0);
  leaving.abort();
  await assert.rejects(asked, /aborted/);
  await expectIdle();
  expect((await cluster.requests(40)).some(({ phase }) => phase === 'cancelled')).toBe(true);
});

test('an instance that is killed in the middle of a batch: every vector is that of an undisturbed one', async () => {
  const prompts = Array.from({ length: 12 }, () => promptOf(1_000));
  const asked = embed(prompts);
  await until('the prefill instance computes them', async () => (await cluster.node('prefill-1')).running > 0);
  cluster.kill('prefill-1', 'SIGKILL');
  const { data } = await asked;
  const requests = await cluster.requests(12);
  assert(
    requests.some(({ attempts }) => attempts.length > 1),
    'some were computed elsewhere',
  );
  for (const i of [0, 5, 11])
    assert.deepEqual(await vectorOf(prompts[i]!, { cache_salt: 'undisturbed' }), data[i]?.embedding, `prompt ${i}`);
  await expectIdle();
});

describe.each(['last', 'mean'] as const)('golden vectors, --pooling %s', (pooling) => {
  let golden: Cluster;
  beforeAll(async () => {
    golden = await Cluster.inProcess(
      ...['--model', goldenFolder('llama-untied'), '--weights', 'f32', '--kv-dtype', 'f32'],
      ...['--prefill', '1', '--decode', '1', '--store', '0', '--pooling', pooling, '--local-prefill-tokens', '40'],
    );
  });
  afterAll(async () => {
    await golden.close();
  });

  test('the API answers those of the reference implementation, twice', async () => {
    const { cases } = JSON.parse(readFileSync(projectPath('test/golden/embeddings/golden.json'), 'utf8')) as {
      readonly cases: readonly { readonly prompt: number[]; readonly last: number[]; readonly mean: number[] }[];
    };
    const openai = new OpenAI({ baseURL: `${golden.url}/v1`, apiKey: 'none', maxRetries: 0 });
    for (let round = 0; round < 2; round++) {
      const input = cases.map(({ prompt }) => prompt);
      const { data, usage } = await openai.embeddings.create({ model: 'llama-untied', input });
      cases.forEach((want, i) => {
        const highest = Math.max(...want[pooling].map(Math.abs));
        const error =
          Math.max(...want[pooling].map((value, at) => Math.abs(value - data[i]!.embedding[at]!))) / highest;
        assert(error <= 1e-3, `${want.prompt.length} tokens: ${error}`);
      });
      const { prompt_tokens_details: details } = usage as { prompt_tokens_details?: { cached_tokens: number } };
      // An instance is asked for what it has announced: one block each of two prompts, three of the third.
      if (pooling === 'last')
        await until('the blocks are announced', async () => {
          const pool = (await (await fetch(`${golden.url}/api/pool`)).json()) as { index_keys: number };
          return pool.index_keys >= 5;
        });
      // The mean needs the hidden states of all tokens, so no block is a hit.
      if (round === 1) expect(details?.cached_tokens).toBe(pooling === 'mean' ? 0 : 32 + 96);
    }
  });
});
