/**
 * Series of one model's requests by engine: vLLM's names, labels (`model_name`, `engine`) and buckets, so that its dashboards and quantiles of both
 * compare. Values are kept per engine in plain arrays, because an observation by labels would cost more than the rest of a token.
 */
import type { Registry } from 'prom-client';
import { BucketCounts } from '../../../shared/base/bucket_counts.ts';
import { CollectedMetric, histogramSamples, type Sample } from '../../../shared/node/metrics/collected_metric.ts';

/** vLLM's bounds, in seconds or tokens. */
const LATENCY = [0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680];
/** vLLM's bounds of a time to the first token, in seconds. */
export const ttftBuckets: readonly number[] = [
  0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
];
const TOKEN_LATENCY = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80];
const TOKENS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000];
const SAMPLES = [1, 2, 5, 10, 20];

/** Upper bound of the engines whose series are kept (P1); the one that was observed first is dropped for another. */
const MAX_ENGINES = 1_024;

type Entry = readonly [names: readonly string[], help: string, bounds: readonly number[]];

const histograms = {
  interToken: [
    ['vllm:inter_token_latency_seconds', 'vllm:time_per_output_token_seconds'],
    'time between two tokens; the second name is the older one',
    TOKEN_LATENCY,
  ],
  perOutputToken: [
    ['vllm:request_time_per_output_token_seconds'],
    'mean time per output token of a request, after the first',
    TOKEN_LATENCY,
  ],
  ttft: [['vllm:time_to_first_token_seconds'], 'request received to first token', ttftBuckets],
  endToEnd: [['vllm:e2e_request_latency_seconds'], 'request received to last token', LATENCY],
  queue: [['vllm:request_queue_time_seconds'], 'waiting for device blocks on the engine that generates', LATENCY],
  prefill: [
    ['vllm:request_prefill_time_seconds'],
    'from device blocks to the first token: blocks computed elsewhere, fetched, and computed here',
    LATENCY,
  ],
  decode: [['vllm:request_decode_time_seconds'], 'first token to last', LATENCY],
  inference: [['vllm:request_inference_time_seconds'], 'prefill and decode', LATENCY],
  promptSizes: [['vllm:request_prompt_tokens'], 'prompt tokens of a request', TOKENS],
  computedSizes: [
    ['vllm:request_prefill_kv_computed_tokens'],
    'prompt tokens of a request that were computed for it, on whichever instance',
    TOKENS,
  ],
  generatedSizes: [['vllm:request_generation_tokens'], 'generated tokens of a request', TOKENS],
  maxSizes: [['vllm:request_max_num_generation_tokens'], 'tokens that a request allowed at most', TOKENS],
  maxTokens: [
    ['vllm:request_params_max_tokens'],
    'parameter max_tokens of a request, or the room that the context left',
    TOKENS,
  ],
  samples: [['vllm:request_params_n'], 'parameter n of a request: samples of its prompt', SAMPLES],
} as const satisfies Record<string, Entry>;

const counters = {
  promptTokens: ['vllm:prompt_tokens_total', 'prompt tokens, at the engine that had or computed them'],
  cachedTokens: ['vllm:prompt_tokens_cached_total', 'prompt tokens that were not computed for their request'],
  generatedTokens: ['vllm:generation_tokens_total', 'generated tokens'],
  prefixQueries: [
    'vllm:prefix_cache_queries_total',
    'prompt tokens that were looked up in the device blocks of an engine',
  ],
  prefixHits: ['vllm:prefix_cache_hits_total', 'prompt tokens that were found in the device blocks of an engine'],
  externalQueries: [
    'vllm:external_prefix_cache_queries_total',
    'prompt tokens that were looked up in the pool because the device blocks of the engine did not have them',
  ],
  externalHits: [
    'vllm:external_prefix_cache_hits_total',
    'prompt tokens that came from the pool: host memory, other instances and stores',
  ],
} as const satisfies Record<string, readonly [name: string, help: string]>;

/** Name of a histogram of requests. */
type HistogramName = keyof typeof histograms;
/** Name of a counter of requests. */
type CounterName = keyof typeof counters;

const labelled = {
  bySource: [
    'vllm:prompt_tokens_by_source_total',
    'prompt tokens by source: computed for the request (local_compute), from device blocks (local_cache_hit), from anywhere else in the pool (external_kv_transfer)',
    'source',
    ['local_compute', 'local_cache_hit', 'external_kv_transfer'],
  ],
  cachedBySource: [
    'vllm:prompt_tokens_cached_by_source_total',
    "cached prompt tokens by tier: device, host (the engine's own host memory), p2p (another instance), disk (of a store), external_unspecified (DRAM of a store)",
    'source',
    ['device', 'host', 'p2p', 'disk', 'external_unspecified'],
  ],
  ended: [
    'vllm:request_success_total',
    'requests by how they ended: stop, length, abort (the client left), error; repetition never',
    'finished_reason',
    ['stop', 'length', 'abort', 'error', 'repetition'],
  ],
} as const satisfies Record<string, readonly [name: string, help: string, label: string, values: readonly string[]]>;

/** Name of a counter with a label of its own. */
type LabelledName = keyof typeof labelled;

/** Values of one engine. */
export class EngineValues {
  readonly #histograms = new Map<HistogramName, BucketCounts>();
  readonly #counters = new Map<CounterName, number>();
  readonly #labelled = new Map<LabelledName, Map<string, number>>();
  /** Router time, in ms, when a request on the engine last ended. */
  endedMs = -Infinity;

  observe(name: HistogramName, value: number): void {
    let counts = this.#histograms.get(name);
    if (!counts) this.#histograms.set(name, (counts = new BucketCounts(histograms[name][2])));
    counts.observe(value);
  }

  inc(name: CounterName, value: number): void {
    this.#counters.set(name, this.count(name) + value);
  }

  /** Adds to a counter under one value of its label. */
  incOf(name: LabelledName, label: string, value: number): void {
    let values = this.#labelled.get(name);
    if (!values) this.#labelled.set(name, (values = new Map<string, number>()));
    values.set(label, (values.get(label) ?? 0) + value);
  }

  histogram(name: HistogramName): BucketCounts | undefined {
    return this.#histograms.get(name);
  }

  count(name: CounterName): number {
    return this.#counters.get(name) ?? 0;
  }

  /** Values by label: those that were counted in that order, then zero for each other value that the label has. */
  counts(name: LabelledName): Map<string, number> {
    const values = new Map<string, number>(this.#labelled.get(name) ?? []);
    for (const value of labelled[name][3]) if (!values.has(value)) values.set(value, 0);
    return values;
  }
}

/** Series of one model's requests, by the engine that served them. */
export class RequestSeries {
  readonly #engines = new Map<string, EngineValues>();

  /** Declares the series in a registry, whose default labels name the model. */
  constructor(registry: Registry) {
    for (const key of Object.keys(histograms) as HistogramName[]) this.#addHistogram(registry, key);
    for (const [key, [name, help]] of Object.entries(counters))
      new CollectedMetric(registry, 'counter', { name, help, labelNames: ['engine'] }, () =>
        this.#samples((values) => [{ labels: {}, value: values.count(key as CounterName) }]),
      );
    for (const [key, [name, help, label]] of Object.entries(labelled))
      new CollectedMetric(registry, 'counter', { name, help, labelNames: ['engine', label] }, () =>
        this.#samples((values) =>
          [...values.counts(key as LabelledName)].map(([value, count]) => ({
            labels: { [label]: value },
            value: count,
          })),
        ),
      );
  }

  #addHistogram(registry: Registry, key: HistogramName): void {
    const [names, help, bounds] = histograms[key];
    for (const name of names)
      new CollectedMetric(registry, 'histogram', { name, help, labelNames: ['engine'] }, () => {
        const samples: Sample[] = [];
        for (const [engine, values] of this.#engines) {
          const counts = values.histogram(key);
          if (counts) samples.push(...histogramSamples(name, { engine }, bounds, counts.state));
        }
        return samples;
      });
  }

  #samples(of: (values: EngineValues) => Sample[]): Sample[] {
    return [...this.#engines].flatMap(([engine, values]) =>
      of(values).map(({ labels, value }) => ({ labels: { engine, ...labels }, value })),
    );
  }

  /** The values of an engine, which are kept from its first request on. */
  of(engine: string): EngineValues {
    let values = this.#engines.get(engine);
    if (values) return values;
    values = new EngineValues();
    this.#engines.set(engine, values);
    const [oldest] = this.#engines.keys();
    if (this.#engines.size > MAX_ENGINES && oldest !== undefined) this.#engines.delete(oldest);
    return values;
  }

  /** Engines on which requests have ended, with the time of the last one, in ms of the router's clock. */
  *ended(): Generator<readonly [engine: string, endedMs: number]> {
    for (const [engine, { endedMs }] of this.#engines) if (endedMs > -Infinity) yield [engine, endedMs];
  }
}
