/**
 * Sample of a router for `penstock top`: `/api/pool`, and counters of `/metrics`. A field that a router lacks, or that has another type,
 * counts as absent; text is stripped of all that a terminal would obey.
 */

/** Fill and hits of one tier of a node, in bytes and lookups. */
interface TierSample {
  readonly name: string;
  readonly bytes: number;
  readonly capacity: number;
  readonly hits: number;
  readonly misses: number;
}

/** One process of the cluster. */
export interface NodeSample {
  readonly name: string;
  readonly epoch: string;
  readonly role: string;
  readonly model: string;
  readonly state: string;
  readonly running: number;
  readonly waiting: number;
  /** Fraction of the KV blocks in use; undefined for a node without an engine. */
  readonly kvUsage: number | undefined;
  readonly tiers: readonly TierSample[];
  /** Bytes that the node fetched since it started, over all ways. */
  readonly fetchedBytes: number;
}

/** Counters of a router since it started. */
export interface CounterSample {
  readonly requests: number;
  readonly promptTokens: number;
  readonly outputTokens: number;
  readonly cacheQueries: number;
  readonly cacheHits: number;
  readonly ttftSeconds: number;
  readonly ttftCount: number;
}

/** One look at a router. */
export interface PoolSample {
  /** When this process read it, on its monotonic clock. */
  readonly atMs: number;
  /** Wall time of the values, in milliseconds: the router's where it says so, else that of this machine. */
  readonly asOfMs: number;
  readonly policy: string;
  readonly indexKeys: number;
  readonly inFlight: number;
  readonly problems: readonly string[];
  readonly nodes: readonly NodeSample[];
  readonly counters: CounterSample;
}

/** Nodes that are read at most (P1). */
const MAX_NODES = 4_096;
const MAX_TIERS = 8;
const MAX_PROBLEMS = 8;
const MAX_TEXT = 200;

/** Returns text without control characters, marks and invisible characters, of at most MAX_TEXT characters. */
export function plainText(value: unknown): string {
  if (typeof value !== 'string' && typeof value !== 'number') return '';
  return String(value)
    .slice(0, MAX_TEXT)
    .replaceAll(/[\p{C}\p{M}\p{Zl}\p{Zp}]/gu, '?');
}

/** Returns the sample of a body of `/api/pool` and a text of `/metrics`. @throws Error for a body that is not that of a router */
export function sampleOf(
  body: unknown,
  metrics: string,
  { nowMs, wallMs }: { readonly nowMs: number; readonly wallMs: number },
): PoolSample {
  const pool = objectOf(body);
  if (!Array.isArray(pool['nodes'])) throw new Error('this is no /api/pool of a router');
  const problems = objectOf(pool['health'])['problems'];
  return {
    atMs: nowMs,
    asOfMs: typeof pool['as_of'] === 'number' ? pool['as_of'] : wallMs,
    policy: plainText(objectOf(pool['policy'])['places_by']),
    indexKeys: numberOf(pool['index_keys']),
    inFlight: numberOf(objectOf(pool['router'])['requests']),
    problems: Array.isArray(problems) ? problems.slice(0, MAX_PROBLEMS).map(plainText) : [],
    nodes: pool['nodes'].slice(0, MAX_NODES).map(nodeOf),
    counters: countersOf(metrics),
  };
}

function nodeOf(value: unknown): NodeSample {
  const node = objectOf(value);
  const usage = node['kv_usage'];
  return {
    name: plainText(node['name']),
    epoch: plainText(node['epoch']),
    role: plainText(node['role']),
    model: plainText(node['model']),
    state: plainText(node['state']),
    running: numberOf(node['running']),
    waiting: numberOf(node['waiting']),
    kvUsage: typeof usage === 'number' ? usage : undefined,
    tiers: Object.entries(objectOf(node['tiers'])).slice(0, MAX_TIERS).map(tierOf),
    fetchedBytes: Object.values(objectOf(node['fetched_bytes'])).reduce<number>((sum, one) => sum + numberOf(one), 0),
  };
}

function tierOf([name, value]: [string, unknown]): TierSample {
  const { bytes, capacity_bytes: capacity, hits, misses } = objectOf(value);
  return {
    name: plainText(name),
    bytes: numberOf(bytes),
    capacity: numberOf(capacity),
    hits: numberOf(hits),
    misses: numberOf(misses),
  };
}

/** Returns the sums of the counters over all their labels. */
function countersOf(metrics: string): CounterSample {
  const sums = new Map<string, number>();
  for (const [, name = '', value = ''] of metrics.matchAll(/^(vllm:\w+)(?:\{[^\n]*\})? (\S+)$/gm))
    sums.set(name, (sums.get(name) ?? 0) + (Number(value) || 0));
  const sum = (name: string): number => sums.get(`vllm:${name}`) ?? 0;
  return {
    requests: sum('request_success_total'),
    promptTokens: sum('prompt_tokens_total'),
    outputTokens: sum('generation_tokens_total'),
    cacheQueries: sum('prefix_cache_queries_total'),
    cacheHits: sum('prefix_cache_hits_total'),
    ttftSeconds: sum('time_to_first_token_seconds_sum'),
    ttftCount: sum('time_to_first_token_seconds_count'),
  };
}

function objectOf(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}

function numberOf(value: unknown): number {
  return typeof value === 'number' && Number.isFinite(value) ? value : 0;
}
