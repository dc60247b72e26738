/**
 * Sample of a router for `penstock top`: `/api/pool`, and counters of `/metrics`. A field that a router lacks, or that has another type,
 * counts as absent; text is stripped of all that a terminal would obey.
 */
import { readPool, type ReadNode } from '../../../shared/protocol/router_api_schemas.ts';
import type { PoolLoad } from '../../../shared/protocol/load_fields.ts';

/** Fill and hits of one tier of a node, in bytes and lookups. */
interface TierSample {
  readonly name: string;
  readonly bytes: number;
  readonly capacity: number;
  readonly hits: number;
  readonly misses: number;
}

/** One process of the cluster, with the plain values of its load. */
export interface NodeSample extends PoolLoad {
  readonly name: string;
  readonly epoch: string;
  readonly role: string;
  readonly model: string;
  readonly state: string;
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
export function plainText(value: string): string {
  return value.slice(0, MAX_TEXT).replaceAll(/[\p{C}\p{M}\p{Zl}\p{Zp}]/gu, '?');
}

/** Returns the sample of a body of `/api/pool` and a text of `/metrics`. @throws Error for a body that is not that of a router */
export function sampleOf(
  body: unknown,
  metrics: string,
  { nowMs, wallMs }: { readonly nowMs: number; readonly wallMs: number },
): PoolSample {
  const pool = readPool(body, MAX_NODES);
  if (!pool.nodes) throw new Error('this is no /api/pool of a router');
  return {
    atMs: nowMs,
    asOfMs: pool.as_of ?? wallMs,
    policy: plainText(pool.policy.places_by),
    indexKeys: pool.index_keys,
    inFlight: pool.router.requests,
    problems: pool.health.problems.slice(0, MAX_PROBLEMS).map(plainText),
    nodes: pool.nodes.map(nodeOf),
    counters: countersOf(metrics),
  };
}

function nodeOf({ name, epoch, role, model, state, tiers, fetched_bytes: fetched, ...rest }: ReadNode): NodeSample {
  return {
    ...rest,
    name: plainText(name),
    epoch: plainText(epoch),
    role: plainText(role),
    model: plainText(model),
    state: plainText(state),
    tiers: Object.entries(tiers)
      .slice(0, MAX_TIERS)
      .map(([tier, { bytes, capacity_bytes: capacity, hits, misses }]) => ({
        name: plainText(tier),
        bytes,
        capacity,
        hits,
        misses,
      })),
    fetchedBytes: Object.values(fetched).reduce((sum, bytes) => sum + bytes, 0),
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
