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

/** Counters of one tenant since the router started, and its prompts that wait now. */
export interface TenantSample {
  readonly requests: number;
  readonly outputTokens: number;
  readonly engineMs: number;
  readonly waiting: number;
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
  /** Tenants by name; none where the router asks for no keys. */
  readonly tenants: ReadonlyMap<string, TenantSample>;
}

/** Nodes that are read at most (P1). */
const MAX_NODES = 4_096;
const MAX_TIERS = 8;
const MAX_PROBLEMS = 8;
const MAX_TENANTS = 128;
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
    tenants: tenantsOf(metrics),
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

const tenantSeries: Readonly<Record<string, keyof TenantSample>> = {
  requests_total: 'requests',
  output_tokens_total: 'outputTokens',
  engine_ms_total: 'engineMs',
  waiting: 'waiting',
};

/** Returns the values of each tenant, over all other labels. */
function tenantsOf(metrics: string): ReadonlyMap<string, TenantSample> {
  const tenants = new Map<string, TenantSample>();
  const samples = metrics.matchAll(/^penstock_tenant_(\w+)\{tenant="((?:[^"\\\n]|\\.)*)"[^\n]*\} (\S+)$/gm);
  for (const [, name = '', tenant = '', value = ''] of samples) {
    const key = Object.hasOwn(tenantSeries, name) ? tenantSeries[name] : undefined;
    const shown = plainText(tenant);
    if (!key || (tenants.size >= MAX_TENANTS && !tenants.has(shown))) continue;
    const before = tenants.get(shown) ?? { requests: 0, outputTokens: 0, engineMs: 0, waiting: 0 };
    tenants.set(shown, { ...before, [key]: before[key] + (Number(value) || 0) });
  }
  return tenants;
}
