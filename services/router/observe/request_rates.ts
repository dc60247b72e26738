/** Requests of one model, or of all, counted between two ticks. */
import type { RequestEvent } from '../record/request_events.ts';
import type { RequestListener } from '../record/request_listener.ts';
import type { RequestRecord } from '../record/request_record.ts';
import { LatencyHistogram } from './latency_histogram.ts';

const SOURCES = ['device', 'dram', 'instance', 'store_dram', 'store_disk', 'handoff', 'computed'] as const;
const QUANTILES = [0.5, 0.95, 0.99];

/** Rates in the order of their counts. */
const RATES = [
  ...['requests_per_s', 'failed_per_s', 'prompt_tokens_per_s', 'output_tokens_per_s'],
  ...SOURCES.map((source) => `source_${source}`),
];
/** Series of requests, in the order of the values. `source_*` are prompt tokens per second. */
export const REQUEST_SERIES = [
  ...RATES,
  'hit_ratio',
  ...['ttft_ms', 'tbt_ms'].flatMap((name) => QUANTILES.map((share) => `${name}_p${share * 100}`)),
];

/** Whether rates take an event: others are not looked at, since some come with each token. */
export function isCounted({ kind }: RequestEvent): boolean {
  return kind === 'token' || kind === 'firstToken' || kind === 'ended';
}

/** Counts and times since the last tick, and the times of the minute. */
export class RequestRates implements RequestListener {
  readonly #counts = new Float64Array(RATES.length);
  readonly #ttft = { second: new LatencyHistogram(), minute: new LatencyHistogram() };
  readonly #tbt = { second: new LatencyHistogram(), minute: new LatencyHistogram() };

  on(record: RequestRecord, event: RequestEvent): void {
    if (event.kind === 'token') this.#token(record);
    else if (event.kind === 'firstToken' && event.isFirst) this.#firstToken(record);
    else if (event.kind === 'ended') this.#ended(record);
  }

  #firstToken({ ttftMs, kind, sampleOf, counts, facts }: RequestRecord): void {
    if (ttftMs !== undefined) this.#ttft.second.add(ttftMs);
    // An embedding is no token.
    if (kind.counts !== 'embedding') this.#add(3, 1);
    // The prompt of several samples is counted with the first of them.
    if (sampleOf !== undefined) return;
    this.#add(2, facts.promptTokens);
    const { sources } = counts;
    for (const [i, source] of SOURCES.entries()) this.#add(4 + i, sources[source]);
  }

  #token({ sinceTokenMs }: RequestRecord): void {
    // The first token is counted already.
    if (sinceTokenMs === undefined) return;
    this.#add(3, 1);
    this.#tbt.second.add(sinceTokenMs);
  }

  #ended({ counts, phase }: RequestRecord): void {
    // Look-ups, and texts that were only made into tokens or the reverse, are no load of the cluster.
    if (counts.attempts.length === 0 && phase !== 'failed') return;
    this.#add(0, 1);
    if (phase === 'failed') this.#add(1, 1);
  }

  #add(i: number, value: number): void {
    this.#counts[i] = (this.#counts[i] ?? 0) + value;
  }

  /** Returns the values since the last call, in the order of {@link REQUEST_SERIES}, and counts anew. */
  take(sinceMs: number): number[] {
    const rates = Array.from(this.#counts, (count) => (sinceMs > 0 ? (count * 1_000) / sinceMs : 0));
    const sources = rates.slice(4);
    const all = sources.reduce((sum, rate) => sum + rate, 0);
    const computed = (sources[5] ?? 0) + (sources[6] ?? 0);
    const quantiles = [this.#ttft, this.#tbt].flatMap(({ second }) => QUANTILES.map((share) => second.quantile(share)));
    this.#counts.fill(0);
    for (const { second, minute } of [this.#ttft, this.#tbt]) {
      minute.merge(second);
      second.clear();
    }
    return [...rates, all > 0 ? 1 - computed / all : NaN, ...quantiles];
  }

  /** Returns the quantiles of the minute, the last ones of {@link REQUEST_SERIES}, and begins another minute. */
  takeMinute(): number[] {
    const both = [this.#ttft, this.#tbt];
    const quantiles = both.flatMap(({ minute }) => QUANTILES.map((share) => minute.quantile(share)));
    for (const { minute } of both) minute.clear();
    return quantiles;
  }
}
