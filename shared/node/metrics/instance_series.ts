/**
 * Series that describe instances and stores, made from their load: a router exports those of all members from their heartbeats, and each
 * process its own on `--metrics-bind`. A series of an engine carries the name of its own model; what is of no model, a store for instance, has none.
 */
import type { Registry } from 'prom-client';
import type { BucketState } from '../../base/bucket_counts.ts';
import { iterationBuckets, residencyBuckets } from '../../protocol/engine_histograms.ts';
import { loadFields } from '../../protocol/load_fields.ts';
import type { InstanceLoad, Member, Registration, StateSlots, TierStats } from '../../protocol/membership.ts';
import { CollectedMetric, histogramSamples, type Labels, type Sample } from './collected_metric.ts';

/** A member of the cluster whose series are exported. */
export interface SeriesSource {
  readonly member: Pick<Member, 'name' | 'role'>;
  /** Name of its model; undefined for a store. */
  readonly model: string | undefined;
  /** Undefined before the first heartbeat. */
  readonly load: InstanceLoad | undefined;
  /** Properties of its engine; undefined for a store. */
  readonly engine: Registration['engine'];
}

type Value = readonly [labels: Labels, value: number];

const LABELS = ['engine', 'role', 'model_name'];

/** Adds the series of these members to a registry; they are read from the sources at each scrape, so members that left have none. */
export function addInstanceSeries(registry: Registry, sources: () => Iterable<SeriesSource>): void {
  const series = new InstanceSeries(registry, sources);
  addPlainValues(series);
  addEngines(series);
  addHistograms(series);
  addFetches(series);
  addTiers(series);
  addStateSlots(series);
}

function labelsOf({ member, model }: SeriesSource): Labels {
  return { engine: member.name, role: member.role, ...(model === undefined ? {} : { model_name: model }) };
}

/** Declares series of members in a registry. */
class InstanceSeries {
  readonly #registry: Registry;
  readonly #sources: () => Iterable<SeriesSource>;

  constructor(registry: Registry, sources: () => Iterable<SeriesSource>) {
    this.#registry = registry;
    this.#sources = sources;
  }

  /** Adds a gauge or a counter with any number of values per member; further labels are those of the values. */
  add(
    type: 'gauge' | 'counter',
    [name, help]: readonly [string, string],
    values: (load: InstanceLoad, source: SeriesSource) => Iterable<Value>,
    more: readonly string[] = [],
  ): void {
    new CollectedMetric(this.#registry, type, { name, help, labelNames: [...LABELS, ...more] }, () => {
      const samples: Sample[] = [];
      for (const source of this.#sources())
        if (source.load)
          for (const [labels, value] of values(source.load, source))
            samples.push({ labels: { ...labelsOf(source), ...labels }, value });
      return samples;
    });
  }

  /** Adds a histogram of engines; members without one have no samples. */
  histogram(
    [name, help]: readonly [string, string],
    bounds: readonly number[],
    state: (load: InstanceLoad) => BucketState | undefined,
  ): void {
    new CollectedMetric(this.#registry, 'histogram', { name, help, labelNames: LABELS }, () => {
      const samples: Sample[] = [];
      for (const source of this.#sources()) {
        const found = source.load && state(source.load);
        if (found) samples.push(...histogramSamples(name, labelsOf(source), bounds, found));
      }
      return samples;
    });
  }
}

/** Adds the series of plain values, as `load_fields.ts` lists them. vLLM's series describe engines, so stores have none under its names. */
function addPlainValues(series: InstanceSeries): void {
  for (const [name, { kind, unit, help, metrics = [] }] of loadFields)
    for (const metric of metrics)
      series.add(kind, [metric, help], (load, { member }) => {
        const value = load[name];
        if (value === undefined || (member.role === 'store' && metric.startsWith('vllm:'))) return [];
        return [[{}, unit === 'ms' ? value / 1_000 : value]];
      });
}

function addEngines(series: InstanceSeries): void {
  series.add(
    'gauge',
    [
      'vllm:num_requests_waiting_by_reason',
      'sequences that wait for room (capacity), or for the first sample of their group or the next step (deferred)',
    ],
    ({ waiting, deferred = 0 }, { member }) =>
      member.role === 'store'
        ? []
        : [
            [{ reason: 'capacity' }, waiting - deferred],
            [{ reason: 'deferred' }, deferred],
          ],
    ['reason'],
  );
  series.add(
    'gauge',
    [
      'vllm:num_requests_kv_fetch_by_stage',
      'sequences whose blocks are to be fetched (waiting_to_start), arrive (in_progress), or have arrived before there was room (completed_waiting)',
    ],
    ({ kvFetch = {} }) => Object.entries(kvFetch).map(([stage, value]) => [{ stage }, value]),
    ['stage'],
  );
  series.add(
    'gauge',
    ['vllm:cache_config_info', 'configuration of an engine and its KV cache, in labels; the value is 1'],
    ({ kv }, { engine }) => (kv && engine ? [[cacheConfig(kv, engine), 1]] : []),
    Object.keys(cacheConfig({ blocks: 0, hostBlocks: 0 }, undefined)),
  );
}

/** Returns the configuration of a KV cache under vLLM's label names; values that have no equal here are left out. */
function cacheConfig(
  { blocks, hostBlocks }: NonNullable<InstanceLoad['kv']>,
  engine: SeriesSource['engine'],
): Record<string, string> {
  const { blockSize = 0, kvDtype = 'f16' } = engine?.format ?? {};
  const tokens = blocks * blockSize;
  return {
    block_size: String(blockSize),
    cache_dtype: kvDtype === 'f16' ? 'float16' : 'float32',
    enable_prefix_caching: 'True',
    kv_cache_max_concurrency: (tokens / Math.max(1, engine?.maxModelLen ?? 1)).toFixed(2),
    kv_cache_size_tokens: String(tokens),
    num_cpu_blocks: String(hostBlocks),
    num_gpu_blocks: String(blocks),
    prefix_caching_hash_algo: 'sha256',
  };
}

function addHistograms(series: InstanceSeries): void {
  series.histogram(
    [
      'vllm:iteration_tokens_total',
      'tokens of an engine step: those of prompts that it computes, and those that it samples',
    ],
    iterationBuckets,
    ({ iterationTokens }) => iterationTokens,
  );
  series.histogram(
    ['vllm:kv_block_lifetime_seconds', 'from the allocation of a device block to its eviction; of a sample of blocks'],
    residencyBuckets,
    ({ residency }) => residency?.blockLifetime,
  );
  series.histogram(
    [
      'vllm:kv_block_idle_before_evict_seconds',
      'from the last use of a device block to its eviction; of a sample of blocks',
    ],
    residencyBuckets,
    ({ residency }) => residency?.blockIdle,
  );
  series.histogram(
    [
      'vllm:kv_block_reuse_gap_seconds',
      'between two hits of a device block, the last four before its eviction; of a sample of blocks',
    ],
    residencyBuckets,
    ({ residency }) => residency?.blockReuseGap,
  );
}

function addFetches(series: InstanceSeries): void {
  series.add(
    'counter',
    [
      'penstock_fetched_bytes_total',
      'bytes of blocks that came from another process, by way: shared memory, a plain socket, a call',
    ],
    ({ fetched = {} }) => Object.entries(fetched).map(([way, value]) => [{ way }, value]),
    ['way'],
  );
}

function addTiers(series: InstanceSeries): void {
  const perTier =
    (value: (stats: TierStats) => number) =>
    ({ tiers }: InstanceLoad): Value[] =>
      Object.entries(tiers).map(([tier, stats]) => [{ tier }, value(stats)]);
  for (const name of ['blocks', 'bytes'] as const)
    series.add(
      'gauge',
      [`penstock_tier_${name}`, `${name} of a tier`],
      perTier((stats) => stats[name]),
      ['tier'],
    );
  series.add(
    'gauge',
    ['penstock_tier_capacity_bytes', 'bytes that a tier has room for'],
    perTier(({ capacityBytes }) => capacityBytes),
    ['tier'],
  );
  series.add(
    'gauge',
    ['penstock_tier_format_bytes', 'bytes of a format in a store'],
    ({ tiers }) =>
      Object.entries(tiers).flatMap(([tier, { formats = {} }]) =>
        Object.entries(formats).map(([format, { bytes }]): Value => [{ tier, format }, bytes]),
      ),
    ['tier', 'format'],
  );
  series.add(
    'gauge',
    ['penstock_tier_available', 'whether a tier can be used: 0 when its disk cannot'],
    perTier(({ fault }) => (fault === undefined ? 1 : 0)),
    ['tier'],
  );
  for (const name of ['hits', 'misses', 'evictions'] as const)
    series.add(
      'counter',
      [`penstock_tier_${name}_total`, `${name} of a tier`],
      perTier((stats) => stats[name]),
      ['tier'],
    );
}

/** Adds the series of slots for recurrent states, which only engines of hybrid models have. */
function addStateSlots(series: InstanceSeries): void {
  const ofStates =
    (value: (states: StateSlots) => Value[]) =>
    ({ states }: InstanceLoad): Value[] =>
      states ? value(states) : [];
  series.add(
    'gauge',
    [
      'penstock_state_slots',
      'slots of a device for recurrent states, by state: used by sequences, saved for later hits, free',
    ],
    ofStates(({ slots, saved, used }) =>
      Object.entries({ used, saved, free: slots - used - saved }).map(([state, value]) => [{ state }, value]),
    ),
    ['state'],
  );
  series.add(
    'counter',
    ['penstock_state_hits_total', 'sequences that began with a saved recurrent state'],
    ofStates(({ hits }) => [[{}, hits]]),
  );
  series.add(
    'counter',
    ['penstock_state_evictions_total', 'saved recurrent states that gave their slots to others'],
    ofStates(({ evictions }) => [[{}, evictions]]),
  );
}
