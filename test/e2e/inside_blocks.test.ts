/**
 * The blocks of prompts in a running cluster: a look-up before a request says what the request then reports, each token that was computed
 * has a reason, and the cost of a node's loss is what is computed again. Reasons that processes show seldom (`absent`):
 * test/router/record/miss_reasons.test.ts. Budget: 70 s.
 */
import assert from 'node:assert/strict';
import { afterEach, expect, test } from 'vitest';
import type { BlocksBody, LookupBody, LossCost, Miss, MissReason } from '../../shared/protocol/router_api.ts';
import { Random } from '../../shared/base/random.ts';
import { Cluster, heartbeats } from '../support/cluster.ts';
import { sized } from '../support/long.ts';
import { until } from '../support/until.ts';

const BLOCK = 32;
const NUM_PROMPTS = sized(200, 60);

let cluster: Cluster | undefined;
afterEach(async () => {
  await cluster?.close();
  cluster = undefined;
});

interface Shown {
  readonly tokens: { readonly computed: number };
  readonly misses: readonly Miss[];
  readonly miss_tokens: Partial<Record<MissReason, number>>;
}

async function post<T>(path: string, body: object): Promise<T> {
  const response = await fetch(`${cluster?.url}${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  const answer = await response.text();
  expect(response.status, answer).toBe(200);
  return JSON.parse(answer) as T;
}

const lookUp = (body: object): Promise<LookupBody> => post('/api/lookup', body);

/** Sends a request, and returns its cached tokens and what is shown of it. */
async function send(body: object): Promise<{ cached: number; shown: Shown }> {
  const path = 'messages' in body ? '/v1/chat/completions' : '/v1/completions';
  const { usage } = await post<{ usage: { prompt_tokens_details: { cached_tokens: number } } }>(path, body);
  const response = await fetch(`${cluster?.url}/api/requests?limit=1`);
  const [shown] = ((await response.json()) as { requests: [Shown] }).requests;
  return { cached: usage.prompt_tokens_details.cached_tokens, shown };
}

/** Waits until the index has all full blocks of a prompt. */
async function announced(body: object): Promise<void> {
  await until('the blocks are announced', async () => {
    const { prompt_tokens: numTokens, ranges } = await lookUp(body);
    return (ranges.at(-1)?.end ?? 0) >= BLOCK * Math.floor((numTokens - 1) / BLOCK);
  });
}

async function blocks(): Promise<BlocksBody> {
  return (await (await fetch(`${cluster?.url}/api/blocks?limit=5000`)).json()) as BlocksBody;
}

async function lossOf(name: string): Promise<LossCost | null | undefined> {
  const { nodes } = (await (await fetch(`${cluster?.url}/api/pool`)).json()) as {
    nodes: { name: string; loss: LossCost | null }[];
  };
  return nodes.find((node) => node.name === name)?.loss;
}

function sumOf(misses: readonly Miss[]): Partial<Record<MissReason, number>> {
  const sums: Partial<Record<MissReason, number>> = {};
  for (const { start, end, reason } of misses) sums[reason] = (sums[reason] ?? 0) + end - start;
  return sums;
}

/** Returns the prompts by turns: token ids with beginnings in common, texts and chats, some under a salt. */
function prompts(random: Random): (i: number) => object {
  const ids = (count: number): number[] => Array.from({ length: count }, () => 3 + random.below(1_500));
  const words = (count: number): string =>
    Array.from({ length: count }, () =>
      random.pick(['harbour', 'the ship', 'rope', 'and', 'a', 'crane', 'lifts']),
    ).join(' ');
  const beginnings = Array.from({ length: 8 }, () => ids(100 + random.below(100)));
  const texts = Array.from({ length: 4 }, () => words(60));
  return (i) => {
    const salt = random.chance(1, 8) ? { cache_salt: 'tenant' } : {};
    if (i % 4 === 3) return { messages: [{ role: 'user', content: `${texts[i % 4]} ${words(10)}` }], ...salt };
    if (i % 4 === 2) return { prompt: `${random.pick(texts as [string])} ${words(10)}`, ...salt };
    const beginning = random.pick(beginnings as [number[]]);
    return {
      prompt: [...beginning.slice(0, 40 + random.below(beginning.length - 40)), ...ids(1 + random.below(60))],
      ...salt,
    };
  };
}

test(`of ${NUM_PROMPTS} prompts a look-up says how many tokens are cached, and why the others are computed`, async () => {
  cluster = await Cluster.inProcess('--prefill', '1', '--decode', '2', '--store', '1', '--policy', 'longest_prefix');
  const next = prompts(new Random(40));
  let numHits = 0;
  for (let i = 0; i < NUM_PROMPTS; i++) {
    const body = { ...next(i), max_tokens: 1, temperature: 0 };
    const said = await lookUp(body);
    const { cached, shown } = await send(body);
    expect(said.cached_tokens, `prompt ${i}: ${JSON.stringify(body)}`).toBe(cached);
    expect(shown.miss_tokens, `prompt ${i}`).toEqual(sumOf(said.misses));
    expect(said.prompt_tokens - said.cached_tokens).toBe(shown.tokens.computed);
    expect(said.placements.filter((one) => one.is_chosen)).toHaveLength(1);
    if (cached > 0) numHits++;
    await announced(body);
  }
  expect(numHits).toBeGreaterThan(NUM_PROMPTS / 4);
  const tree = await until('the tree is gathered', async () => {
    const now = await blocks();
    return now.is_ready && now;
  });
  expect(tree.runs.reduce((sum, { length }) => sum + length, 0)).toBe(tree.total_blocks);
  // Eight beginnings of token ids and four texts, each under a salt or none: few prompts begin anew.
  expect(tree.runs.filter(({ parent }) => parent === null).length).toBeLessThanOrEqual(2 * (8 + 4) + 4);
  // A look-up is in the log under its own endpoint, with who asked, and leaves nothing open.
  const logged = (await cluster.requests(1_000)) as unknown as readonly LoggedRequest[];
  const lookups = logged.filter(({ endpoint }) => endpoint === '/api/lookup');
  expect(logged.filter(({ endpoint }) => endpoint !== '/api/lookup')).toHaveLength(NUM_PROMPTS);
  expect(lookups.length).toBeGreaterThanOrEqual(NUM_PROMPTS);
  for (const { client, phase, output_tokens: numTokens } of lookups)
    expect([client, phase, numTokens]).toEqual(['127.0.0.1', 'finished', 0]);
  await cluster.idle();
  expect((await cluster.open()).promises).toBe(0);
});

interface LoggedRequest {
  readonly endpoint: string;
  readonly client: string;
  readonly phase: string;
  readonly output_tokens: number;
}

interface LastRequest extends LoggedRequest {
  readonly prompt_tokens: number;
  readonly tokens: { readonly cached: number };
  readonly misses: readonly Miss[];
}

test('where prices decide, a look-up says who holds each token, whatever placement the request then gets', async () => {
  cluster = await Cluster.inProcess('--prefill', '1', '--decode', '2', '--store', '1');
  const next = prompts(new Random(41));
  for (let i = 0; i < sized(40, 20); i++) {
    const body = { ...next(i), max_tokens: 1, temperature: 0 };
    const said = await lookUp(body);
    await send(body);
    // A store may have become a holder since the first look-up.
    const ranges = [...said.ranges, ...(await lookUp(body)).ranges];
    const { requests } = (await (await fetch(`${cluster.url}/api/requests?limit=4`)).json()) as {
      requests: LastRequest[];
    };
    const answered = requests.find(({ endpoint }) => endpoint !== '/api/lookup');
    assert(answered, 'after two look-ups');
    const { prompt_tokens: numTokens, tokens, misses } = answered;
    expect(said.prompt_tokens).toBe(numTokens);
    expect(said.placements.filter((one) => one.is_chosen)).toHaveLength(1);
    const isHeld = (token: number): boolean => said.ranges.some(({ start, end }) => start <= token && token < end);
    // Every cached token was held, and every computed one has the reason that follows from who holds it.
    for (let token = 0; token < tokens.cached; token++) expect(isHeld(token), `prompt ${i}: token ${token}`).toBe(true);
    expect(misses[0]?.start ?? numTokens).toBe(tokens.cached);
    for (const { start, end, reason, node } of misses) {
      const isOfHeld = reason === 'held_elsewhere' || reason === 'absent';
      if (reason !== 'tail')
        for (let token = start; token < end; token++)
          expect(isHeld(token), `prompt ${i}: token ${token}`).toBe(isOfHeld);
      const holders = ranges.filter((range) => range.start <= start && start < range.end);
      if (isOfHeld) expect(holders.flatMap(({ held_by: by }) => by.map((holder) => holder.node))).toContain(node);
    }
    await announced(body);
  }
});

test('every reason has its name, and what a lost node alone had is computed again', async () => {
  // Each instance uses the blocks that it has itself, by turns, and has room for few.
  const room = ['--kv-blocks', '40', '--dram-bytes', '2000000'];
  cluster = await Cluster.inProcess(
    // eslint-disable-next-line time/speed -- a role that is killed in its process is lost by its silence
    ...['--silence-ms', '3000'],
    '--prefill',
    '0',
    '--decode',
    '2',
    '--store',
    '0',
    '--policy',
    'round_robin',
    ...room,
  );
  const random = new Random(41);
  const prompt = (): { prompt: number[]; max_tokens: number } => ({
    prompt: Array.from({ length: 3 * BLOCK + 4 }, () => 3 + random.below(1_500)),
    max_tokens: 1,
  });
  const first = prompt();
  expect((await send(first)).shown.miss_tokens).toEqual({ never_seen: 96, tail: 4 });
  await announced(first);
  const elsewhere = (await send(first)).shown;
  expect(elsewhere.miss_tokens).toEqual({ held_elsewhere: 96, tail: 4 });
  expect(elsewhere.misses[0]).toMatchObject({ node: 'decode-1', tier: 'device' });
  expect((await send({ ...first, cache_salt: 'tenant' })).shown.miss_tokens).toEqual({ other_scope: 96, tail: 4 });
  await send(prompt());
  // Others take the room of both instances.
  const sent = Array.from({ length: 60 }, prompt);
  for (const one of sent) await send(one);
  const evicted = (await send(first)).shown;
  expect(evicted.miss_tokens).toEqual({ evicted: 96, tail: 4 });
  expect(evicted.misses[0]?.node).toMatch(/^decode-[12]$/);
  await announced(first);

  const { url } = cluster;
  const cost = await until('the cost has settled', async () => {
    const before = await lossOf('decode-1');
    await heartbeats(url);
    const after = await lossOf('decode-1');
    return before && after && after.only_blocks === before.only_blocks ? after : undefined;
  });
  expect(cost.only_blocks).toBeGreaterThan(0);
  expect(cost.recompute_ms).toBeGreaterThan(0);
  cluster.kill('decode-1');
  await until('the router has lost the instance', async () => {
    const { misses } = await lookUp(first);
    return misses.some(({ reason, node }) => reason === 'lost' && node === 'decode-1');
  });
  let numLost = 0;
  for (const one of [first, ...sent]) numLost += sumOf((await lookUp(one)).misses).lost ?? 0;
  expect(numLost / BLOCK).toBe(cost.only_blocks);
  expect((await send(first)).shown.miss_tokens).toEqual({ lost: 96, tail: 4 });
});
