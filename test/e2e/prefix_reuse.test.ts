/**
 * A second request with the same 1,000-token prefix computes fewer than 64 of those 1,000, wherever it lands, also after its
 * holders were killed and started again. Under the default policy, blocks that a placement counts on are found. Budget: 80 s.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { TokenSources } from '../../shared/protocol/router_api.ts';
import { Random } from '../../shared/base/random.ts';
import { Cluster, type RequestView } from '../support/cluster.ts';
import { until } from '../support/until.ts';

const random = new Random(11);
const token = (): number => 3 + random.below(1_500);
const prefix = Array.from({ length: 1_000 }, token);

let cluster: Cluster;
beforeAll(async () => {
  // Blocks are fetched wherever somebody holds them, also where computing them takes less time.
  const policy = ['--policy', 'longest_prefix', '--local-prefill-tokens', '64'];
  cluster = await Cluster.up('--prefill', '1', '--decode', '2', '--store', '1', ...policy);
});
afterAll(async () => {
  await cluster.close();
});

/** Asks for the prefix and a fresh tail of 20 tokens; what was computed besides the tail is of the prefix. */
async function ask(): Promise<{ computedOfPrefix: number; view: RequestView; cached: number; tokens: number[] }> {
  const tail = Array.from({ length: 20 }, token);
  const { choices, usage } = await cluster.completion({ prompt: [...prefix, ...tail], max_tokens: 4 });
  const [view] = await cluster.requests(1);
  if (!view) throw new Error('the request is not in the log');
  return {
    computedOfPrefix: Math.max(0, view.tokens.computed - tail.length),
    view,
    cached: usage.prompt_tokens_details.cached_tokens,
    tokens: choices[0]?.token_ids ?? [],
  };
}

/** The request with the prefix as `from` names it: 31 blocks of 32 tokens, and 28 tokens after them that are always computed. */
const prefixFrom = (from: keyof TokenSources): TokenSources => ({
  device: 0,
  dram: 0,
  instance: 0,
  store_dram: 0,
  store_disk: 0,
  handoff: 0,
  [from]: 992,
  computed: 28,
});

const blocksInStore = async (tier: string): Promise<number> => (await cluster.node('store-1')).tiers[tier]?.blocks ?? 0;

test('the first request computes everything, and its blocks reach the store', async () => {
  const { view, cached } = await ask();
  expect(cached).toBe(0);
  expect(view.tokens.computed).toBe(1_020);
  expect(view.sources).toEqual(prefixFrom('handoff'));
  await until('31 blocks are durable', async () => (await blocksInStore('disk')) >= 31);
});

test('the second computes fewer than 64 of the 1,000', async () => {
  const { computedOfPrefix, view } = await ask();
  expect(computedOfPrefix).toBeLessThan(64);
  expect(view.sources).toEqual(prefixFrom('device'));
});

test('a request with a cache salt shares blocks with those of the same salt only, and has the same tokens', async () => {
  const prompt = [...prefix, 5, 6, 7];
  const of = async (cacheSalt?: string): Promise<{ cached: number; tokens: number[] }> => {
    const { choices, usage } = await cluster.completion({
      prompt,
      max_tokens: 4,
      temperature: 0,
      ...(cacheSalt === undefined ? {} : { cache_salt: cacheSalt }),
    });
    return { cached: usage.prompt_tokens_details.cached_tokens, tokens: choices[0]?.token_ids ?? [] };
  };
  const plain = await of();
  const first = await of('tenant-a');
  expect(plain.cached).toBeGreaterThan(900);
  expect(first.cached).toBe(0);
  expect((await of('tenant-a')).cached).toBeGreaterThan(900);
  expect((await of('tenant-b')).cached).toBe(0);
  expect(first.tokens).toEqual(plain.tokens);
});

test('a chat goes on with the tokens and the blocks of its own answer, which no tokenizer would have', async () => {
  interface Chat {
    choices: { message: { content: string }; token_ids: number[] }[];
    prompt_token_ids: number[];
    usage: { prompt_tokens_details: { cached_tokens: number } };
  }
  const post = async (path: string, body: object): Promise<unknown> => {
    const headers = { 'content-type': 'application/json' };
    const response = await fetch(`${cluster.url}${path}`, { method: 'POST', headers, body: JSON.stringify(body) });
    expect(response.status).toBe(200);
    return response.json();
  };
  const chat = async (messages: object[], more: object): Promise<Chat> =>
    (await post('/v1/chat/completions', { messages, return_token_ids: true, ...more })) as Chat;
  let numOther = 0;
  for (let seed = 1; seed <= 12 && numOther < 2; seed++) {
    const first = [{ role: 'user', content: `What of the harbour, ${seed}?` }];
    // Not the tokens that would end it.
    const bias = { 0: -100, 1: -100, 2: -100 };
    const options = { temperature: 1.5, top_k: 400, seed, max_tokens: 100, ignore_eos: true, logit_bias: bias };
    const { choices, prompt_token_ids: prompt } = await chat(first, options);
    const [{ message, token_ids: answer } = { message: { content: '' }, token_ids: [] }] = choices;
    if (message.content.includes('\uFFFD')) continue;
    const asked = { prompt: message.content, add_special_tokens: false };
    const { tokens: own } = (await post('/tokenize', asked)) as { tokens: number[] };
    if (own.join() === answer.join()) continue;
    numOther++;
    const next = [...first, { role: 'assistant', content: message.content }, { role: 'user', content: 'And then?' }];
    const { prompt_token_ids: goesOn, usage } = await chat(next, { max_tokens: 1, temperature: 0 });
    expect(goesOn.slice(0, prompt.length + answer.length)).toEqual([...prompt, ...answer]);
    expect(usage.prompt_tokens_details.cached_tokens).toBeGreaterThan(prompt.length + answer.length - 64);
  }
  expect(numOther).toBe(2);
});

interface Details {
  cached_tokens: number;
  lost_tokens?: number;
  rewritten_from?: number;
}

test('a client that rewrites its first line between two turns learns how many cache hits that lost, and where', async () => {
  const post = async (path: string, body: object): Promise<{ answer: unknown; header: Details }> => {
    const headers = { 'content-type': 'application/json' };
    const response = await fetch(`${cluster.url}${path}`, { method: 'POST', headers, body: JSON.stringify(body) });
    expect(response.status).toBe(200);
    const header = JSON.parse(response.headers.get('x-penstock-request') ?? '{}') as Details;
    return { answer: await response.json(), header };
  };
  const valueOf = async (series: string): Promise<number> => {
    const text = await (await fetch(`${cluster.url}/metrics`)).text();
    return Number(new RegExp(`^${series}(?:\\{.*\\})? (.*)$`, 'm').exec(text)?.[1] ?? 0);
  };
  interface Chat {
    choices: { message: { content: string }; token_ids: number[] }[];
    prompt_token_ids: number[];
    usage: { prompt_tokens_details: Details };
  }
  const log = Array.from({ length: 30 }, (_, i) => `Locker ${20 + i} opens with code ${3_000 + 37 * i}.`).join('\n');
  const more = { temperature: 0, max_tokens: 24, return_token_ids: true };
  const system = (request: number): object => ({
    role: 'system',
    content: `Request ${request} of today.\nYou keep the harbour log.\n${log}`,
  });
  const question = { role: 'user', content: 'What is the code of locker 42?' };
  const next = { role: 'user', content: 'And what is the code of locker 31?' };
  const numKeys = await valueOf('penstock_index_keys');
  const first = await post('/v1/chat/completions', { messages: [system(71), question], ...more });
  const { choices, prompt_token_ids: prompt, usage } = first.answer as Chat;
  expect(usage.prompt_tokens_details).toEqual({ cached_tokens: 0 });
  const [{ message, token_ids: output } = { message: { content: '' }, token_ids: [] }] = choices;
  const numBlocks = Math.floor((prompt.length - 1) / 32);
  await until('its blocks are indexed', async () => (await valueOf('penstock_index_keys')) >= numKeys + numBlocks);

  const goesOn: object[] = [question, { role: 'assistant', content: message.content }, next];
  const rewritten = await post('/v1/chat/completions', { messages: [system(72), ...goesOn], ...more });
  const { prompt_token_ids: second, usage: usageOfSecond } = rewritten.answer as Chat;
  // The numbers have equally many tokens, so that what reappears stands where it stood.
  const earlier = [...prompt, ...output];
  const start = earlier.findIndex((token, i) => token !== second[i]);
  const same = earlier.filter((token, i) => token === second[i]).length;
  expect(start).toBeLessThan(32);
  expect(same).toBeGreaterThan(prompt.length - 8);
  const lost = { lost_tokens: 32 * Math.floor(Math.min(same, earlier.length - 1) / 32), rewritten_from: start };
  expect(usageOfSecond.prompt_tokens_details).toEqual({ cached_tokens: 0, ...lost });
  expect(rewritten.header).toMatchObject(lost);
  const [view] = await cluster.requests(1);
  expect(view).toMatchObject(lost);
  expect(await valueOf('penstock_lost_cached_tokens_total')).toBe(lost.lost_tokens);

  // The same turn again is a hit, and so is the turn that goes on as it was: nothing is lost.
  let answer = '';
  for (const request of [72, 71]) {
    const plain = await post('/v1/chat/completions', { messages: [system(request), ...goesOn], ...more });
    const { usage: usageOfPlain, choices: own } = plain.answer as Chat;
    const { prompt_tokens_details: details } = usageOfPlain;
    expect(Object.keys(details)).toEqual(['cached_tokens']);
    expect(details.cached_tokens).toBeGreaterThan(prompt.length - 64);
    expect(plain.header).not.toHaveProperty('lost_tokens');
    answer = own[0]?.message.content ?? '';
  }

  // The other APIs have the same keys, each for one more turn under another line.
  goesOn.push({ role: 'assistant', content: answer }, question);
  const input = [system(73), ...goesOn];
  const { answer: response } = await post('/v1/responses', { input, temperature: 0, max_output_tokens: 24 });
  const { usage: usageOfThird, output: items } = response as {
    usage: { input_tokens_details: Details };
    output: { content: { text: string }[] }[];
  };
  const { input_tokens_details: details } = usageOfThird;
  expect(details).toMatchObject({ cached_tokens: 0, rewritten_from: start });
  expect(details.lost_tokens).toBeGreaterThan(second.length - 64);
  goesOn.push({ role: 'assistant', content: items[0]?.content[0]?.text }, next);
  const { content } = system(74) as { content: string };
  const messages = { system: content, messages: goesOn, temperature: 0, max_tokens: 24 };
  const { answer: anthropic } = await post('/v1/messages', messages);
  const { usage: own } = anthropic as { usage: Details & { cache_read_input_tokens: number } };
  expect(own).toMatchObject({ cache_read_input_tokens: 0, rewritten_from: start });
  expect(own.lost_tokens).toBeGreaterThan(second.length - 64);
});

test('the conductor’s decisions can be looked at: what was asked, what was known, what was chosen', async () => {
  const { view } = await ask();
  const response = await fetch(`${cluster.url}/api/decisions?limit=2`);
  const { decisions } = (await response.json()) as {
    decisions: {
      requestId: string;
      question: { numTokens: number };
      snapshot: { decode: { name: string }[]; ranges: { start: number; end: number }[] };
      decision: { kind: string; placement: { reason: string }; alternatives: object[] };
    }[];
  };
  const decision = decisions.find(({ requestId }) => requestId === view.id);
  expect(decision?.question.numTokens).toBe(1_020);
  expect(decision?.snapshot.decode.map(({ name }) => name).sort()).toEqual(['decode-1', 'decode-2']);
  expect(decision?.snapshot.ranges.at(-1)?.end).toBe(31);
  expect(decision?.decision.kind).toBe('place');
  expect(decision?.decision.placement.reason).toBe(view.reason);
  expect(decision?.decision.alternatives).toHaveLength(1);
  expect((await fetch(`${cluster.url}/api/decisions?limit=x`)).status).toBe(400);
});

test('the other decode instance computes fewer than 64 of them too: it fetches', async () => {
  // Many at once: the placement spreads them over both instances, unless one has answered before the next arrives.
  const requests = await until('both have answered some', async () => {
    await Promise.all(Array.from({ length: 24 }, ask));
    const last = await cluster.requests(24);
    return new Set(last.map(({ attempts }) => attempts[0]?.decode)).size === 2 && last;
  });
  for (const request of requests) expect(Math.max(0, request.tokens.computed - 20)).toBeLessThan(64);
});

test('after prefill and decode were killed and restarted the store has it', async () => {
  await cluster.killAndAwait(['prefill-1', 'decode-1', 'decode-2']);
  const { computedOfPrefix, view } = await ask();
  expect(computedOfPrefix).toBeLessThan(64);
  expect(view.tokens.fetched).toBeGreaterThan(900);
  expect(view.sources).toEqual(prefixFrom('store_dram'));
});

test('after the store was killed and restarted, and everybody else too, its disk has it', async () => {
  await cluster.killAndAwait(['store-1']);
  await cluster.killAndAwait(['prefill-1', 'decode-1', 'decode-2']);
  await until('the store announces what survived', async () => (await blocksInStore('disk')) >= 31);
  expect(await blocksInStore('dram')).toBe(0);
  const { computedOfPrefix, view } = await ask();
  expect(computedOfPrefix).toBeLessThan(64);
  expect(view.tokens.fetched).toBeGreaterThan(900);
  expect(view.sources).toEqual(prefixFrom('store_disk'));
});

test('of 24 at once under the default policy, each finds the blocks of the prefix that its placement counts on', async () => {
  interface Predicted {
    readonly predictions: { readonly cached_tokens: { readonly predicted: number; readonly real: number } };
  }
  const up = await Cluster.up('--prefill', '1', '--decode', '2', '--store', '1');
  try {
    for (let burst = 0; burst < 4; burst++) {
      const common = Array.from({ length: 1_000 }, token);
      const askFor = async (): Promise<void> => {
        await up.completion({ prompt: [...common, ...Array.from({ length: 20 }, token)], max_tokens: 4 });
      };
      await askFor();
      const isDurable = async (): Promise<boolean> =>
        ((await up.node('store-1')).tiers['disk']?.blocks ?? 0) >= 31 * (burst + 1);
      await until('the prefix is durable', isDurable);
      await Promise.all(Array.from({ length: 24 }, askFor));
      const views = (await up.requests(24)) as unknown as (RequestView & Predicted)[];
      const isHit = ({ tokens }: RequestView): boolean => tokens.computed < 20 + 64;
      const numHits = views.filter(isHit).length;
      console.log(`burst ${burst}: ${numHits} of 24 found the prefix`);
      expect(numHits).toBeGreaterThan(12);
      for (const { reason, predictions } of views) {
        const { predicted, real } = predictions.cached_tokens;
        expect(real, `burst ${burst}: ${reason}`).toBeGreaterThan(predicted - 64);
      }
    }
  } finally {
    await up.close();
  }
});
