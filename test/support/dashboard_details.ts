/**
 * The part of the dashboard's fixture that answers about single requests, runs of blocks and prompts: filters of the list, one request with its
 * attempts, the tree below a run, where a prompt lies, and a chat whose answer comes in parts.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type {
  BlockRunView,
  BlocksBody,
  LookupBody,
  Miss,
  RequestPage,
  RequestRow,
  TokenSources,
} from '../../shared/protocol/router_api.ts';
import type { AttemptPart, RequestDetail, StageReport } from '../../shared/protocol/request_detail.ts';
import type { World } from './dashboard_world.ts';
import { turn } from './until.ts';

/** Runs of the made-up tree, before a question's limit. */
const MAX_TREE = 4_000;
const MODEL = 'harbour-8b';
const ANSWER = 'Cached prefixes are blocks of keys and values that an earlier prompt has left behind .';

/** Answers a question about details. @returns false when it is about something else. */
export function answerDetails(world: World, request: IncomingMessage, url: URL, reply: ServerResponse): boolean {
  const { pathname, searchParams } = url;
  const send = (body: object | undefined): true => {
    reply.writeHead(body ? 200 : 404, { 'content-type': 'application/json' });
    reply.end(JSON.stringify(body ?? { error: { message: 'it is not known, or not kept any more' } }));
    return true;
  };
  const [, id] = /^\/api\/requests\/(.+)$/.exec(pathname) ?? [];
  if (id !== undefined) return send(detailOf(world, decodeURIComponent(id)));
  if (pathname === '/api/requests') return send(filtered(world, searchParams));
  if (pathname === '/api/blocks')
    return send(treeBelow(world, searchParams.get('root'), Number(searchParams.get('limit'))));
  if (pathname === '/v1/models') return send({ data: [{ id: MODEL }, { id: 'harbour-small' }] });
  if (request.method !== 'POST') return false;
  if (pathname === '/api/lookup') {
    void bodyOf(request).then((body) => send(lookup(world, textOf(body))));
    return true;
  }
  if (pathname !== '/v1/chat/completions') return false;
  void bodyOf(request).then((body) => chat(world, textOf(body), reply));
  return true;
}

type Body = { messages?: { role: string; content: string }[]; prompt?: string };

async function bodyOf(request: IncomingMessage): Promise<Body> {
  const parts: Buffer[] = [];
  for await (const part of request) parts.push(part as Buffer);
  return JSON.parse(Buffer.concat(parts).toString()) as Body;
}

function textOf({ messages, prompt = '' }: Body): string {
  return messages ? messages.map(({ role, content }) => `<|${role}|>\n${content}\n`).join('') : prompt;
}

function filtered(world: World, query: URLSearchParams): RequestPage {
  const text = query.get('q') ?? '';
  const { phase, model, tenant, node } = Object.fromEntries(query) as Record<string, string | undefined>;
  const rows = world.requests.filter(
    (row) =>
      (row.id.includes(text) || (row.client_id ?? '').includes(text)) &&
      (phase === undefined || row.phase === phase) &&
      (model === undefined || row.model === model) &&
      (tenant === undefined || row.tenant === tenant) &&
      (node === undefined || row.decode === node || row.prefill === node),
  );
  if (query.get('slowest') === '1') rows.sort((a, b) => b.total_ms - a.total_ms);
  const [limit, cursor] = [Number(query.get('limit') ?? 100), Number(query.get('cursor') ?? 0)];
  const next = cursor + limit < rows.length ? String(cursor + limit) : null;
  const requests = rows.slice(cursor, cursor + limit);
  return { as_of: world.pool().as_of, requests, next, kept: world.requests.length };
}

function reportOf(row: RequestRow, share: number): StageReport {
  const { device, dram, instance, store_dram: storeDram, store_disk: storeDisk, computed } = row.sources;
  const ttft = row.ttft_ms ?? 100;
  return {
    cached_tokens: device + dram,
    fetched_tokens: instance + storeDram + storeDisk,
    computed_tokens: computed,
    sources: null,

    fetched_bytes: (instance + storeDram + storeDisk) * 131_072,
    queue_ms: 0.05 * ttft * share,
    load_ms: 0.3 * ttft * share,
    compute_ms: 0.4 * ttft * share,
  };
}

function missesOf(row: RequestRow): Miss[] {
  const { prompt_tokens: total, sources, started_at: at } = row;
  const start = total - sources.computed - sources.handoff;
  const tail = Math.min(total - start, 1 + (total % 16));
  const middle = Math.floor((start + total - tail) / 2);
  const misses: Miss[] = [
    { start, end: middle, reason: 'evicted', node: 'decode-1', tier: 'device', at: at - 40_000 },
    { start: middle, end: total - tail, reason: 'never_seen' },
    { start: total - tail, end: total, reason: 'tail' },
  ];
  return misses.filter((miss) => miss.end > miss.start);
}

function attemptsOf(world: World, row: RequestRow): AttemptPart[] {
  const instances = world.nodes.filter(({ role }) => role !== 'store').map(({ name }) => name);
  const parts = (price: number): Record<string, number> => ({
    ttft: price * 0.3,
    of_which_wait: price * 0.05,
    answer: price * 0.6,
    lost_by_answer: price * 0.07,
    lost_by_prompt: price * 0.03,
    late: 0,
    role: 0,
  });
  const priced = (price: number) => ({
    price_ms: price,
    price_parts_ms: parts(price),
    prediction: { ttft_ms: price * 0.3, wait_ms: 2, tbt_ms: 18, total_ms: price, cached_tokens: row.sources.device },
  });
  const alternatives = instances.slice(0, 6).map((decode, i) => ({
    decode: `${decode}/epoch`,
    prefill: i % 2 === 0 ? null : (instances[i - 1] ?? null),
    matched_blocks: 3 * i,
    queue_length: i,
    ...priced(700 + 130 * i),
  }));
  const attempt: AttemptPart = {
    decode: row.decode ?? 'decode-1',
    reason: row.reason,
    outcome: row.phase,
    report: reportOf(row, 1),
    placement: { ...priced(640), policy: 'priced', is_late: false, alternatives },
    prefills: row.prefill
      ? [{ prefill: row.prefill, ready_tokens: 1_024, outcome: 'finished', report: reportOf(row, 0.6) }]
      : [],
  };
  if (row.attempts === 1) return [attempt];
  const lost = { ...attempt, decode: 'decode-9', outcome: 'decode-9 was lost: no heartbeat for 3 s', report: null };
  return [
    { ...lost, prefills: [] },
    { ...attempt, report: row.ttft_ms === null ? null : attempt.report },
  ];
}

/** Returns one request with its attempts; undefined for an unknown id. */
function detailOf(world: World, id: string): RequestDetail | undefined {
  const row = world.requests.find((one) => one.id === id);
  if (!row) return undefined;
  const attempts = attemptsOf(world, row);
  const { ttft_ms: ttft } = row;
  const report = attempts.at(-1)?.report;
  const failover = row.attempts > 1 ? 35 : 0;
  const measured = 2.4 + failover + (report?.queue_ms ?? 0) + (report?.load_ms ?? 0) + (report?.compute_ms ?? 0);
  const parts = {
    router: 2.4,
    failover,
    queue: report?.queue_ms ?? 0,
    load: report?.load_ms ?? 0,
    compute: report?.compute_ms ?? 0,
    transport: Math.max(0.5, (ttft ?? 0) - measured),
  };
  const off = (real: number, factor: number) => ({ predicted: real * factor, real });
  return {
    ...row,
    model: row.model ?? undefined,
    started_at: new Date(row.started_at).toISOString(),
    as_of: world.pool().as_of,
    tokens: { cached: 0, fetched: 0, computed: 0, computed_by_prefill: 0, computed_by_decode: 0 },
    miss_tokens: row.misses,
    trace_id: '4bf92f3577b34da6a3ce929d0e0e4736',
    sample_of: null,
    misses: missesOf(row),
    fetched_bytes: report?.fetched_bytes ?? 0,
    ttft_parts_ms: ttft === null ? null : parts,
    predictions: {
      ttft_ms: ttft === null ? null : off(ttft, 0.87),
      tbt_ms: off(18.4, 1.05),
      cached_tokens: off(row.sources.device + row.sources.dram, 1),
      output_tokens: off(row.output_tokens, 1.4),
    },
    targets: null,
    rejection: null,
    attempts,
    notes: row.attempts > 1 ? ['37.2 ms: decode-9 failed after 0 tokens: decode-9 was lost: no heartbeat for 3 s'] : [],
  };
}

function treeBelow(world: World, root: string | null, limit: number): BlocksBody {
  const whole = world.blocks(MAX_TREE);
  const inside = new Set<string>();
  const runs = whole.runs.filter((run) => {
    const isInside = root === null || run.key === root || (run.parent !== null && inside.has(run.parent));
    if (isInside) inside.add(run.key);
    return isInside;
  });
  const kept = new Set(largest(runs, limit).map(({ key }) => key));
  return {
    ...whole,
    runs: runs.filter(({ key }) => kept.has(key)),
    is_truncated: whole.is_truncated || kept.size < runs.length,
  };
}

function largest(runs: readonly BlockRunView[], limit: number): BlockRunView[] {
  return [...runs].sort((a, b) => b.blocks - a.blocks || a.depth - b.depth).slice(0, limit);
}

/** Where a prompt of words lies: its first third on two nodes, the next one on a store. */
function lookup(world: World, text: string): LookupBody {
  const texts = text.split(/(?<=\s)/);
  const total = texts.length;
  const block = Math.floor(total / 3);
  const [first, second] = world.nodes.filter(({ role }) => role !== 'store').map(({ name }) => name);
  const store = world.nodes.find(({ role }) => role === 'store')?.name ?? 'store-1';
  const names = [first ?? 'decode-1', second ?? 'prefill-1'] as const;
  const placement = (decode: string, price: number, isChosen: boolean) => ({
    decode,
    prefill: isChosen ? null : names[1],
    price_ms: price,
    is_chosen: isChosen,
    parts: { ttft: price / 3, answer: (price * 2) / 3 },
    reason: isChosen ? 'lowest price' : 'dearer',
  });
  return {
    as_of: world.pool().as_of,
    model: MODEL,
    block_size: 16,
    texts,
    prompt_tokens: total,
    ranges: [
      {
        start: 0,
        end: block,
        held_by: names.map((node, i) => ({ node, tiers: i === 0 ? ['device', 'dram'] : ['dram'] })),
      },
      { start: block, end: 2 * block, held_by: [{ node: store, tiers: ['disk'] }] },
    ],
    misses: [{ start: 2 * block, end: total, reason: 'never_seen' }],
    cached_tokens: 2 * block,
    unplaced: null,
    placements: [placement(names[0], 640, true), placement(names[1], 810, false)],
  };
}

/** Answers a chat token by token, and adds it to the requests of the cluster. */
async function chat(world: World, text: string, reply: ServerResponse): Promise<void> {
  const { prompt_tokens: total, cached_tokens: cached } = lookup(world, text);
  const half = Math.floor(cached / 2);
  const none = { device: 0, dram: 0, instance: 0, store_dram: 0, store_disk: 0, handoff: 0, computed: 0 };
  const sources: TokenSources = { ...none, device: half, store_disk: cached - half, computed: total - cached };
  const words = ANSWER.split(/(?= )/);
  const row: RequestRow = {
    ...world.requests[0]!,
    id: `chat-${world.requests.length}`,
    phase: 'finished',
    finish_reason: 'stop',
    error: null,
    sources,
    prompt_tokens: total,
    output_tokens: words.length,
    ttft_ms: 182,
    total_ms: 420,
    attempts: 1,
    started_at: world.pool().as_of,
    misses: { never_seen: total - cached },
  };
  world.requests.unshift(row);
  reply.writeHead(200, { 'content-type': 'text/event-stream', 'x-penstock-request': JSON.stringify({ id: row.id }) });
  const event = (delta: object, finish: string | null): string =>
    `data: ${JSON.stringify({ choices: [{ delta, finish_reason: finish }] })}\n\n`;
  // An endless answer lasts until the page stops it.
  const numWords = text.includes('endless') ? Infinity : words.length;
  for (let i = 0; i < numWords && !reply.destroyed; i++) {
    reply.write(event({ content: words[i % words.length] }, i === numWords - 1 ? 'stop' : null));
    await turn();
  }
  reply.end('data: [DONE]\n\n');
}
