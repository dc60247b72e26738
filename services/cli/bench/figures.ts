/** Figures of a run, with the meanings of `vllm bench serve`. Times are in milliseconds. */
import type { LoadResult } from './load_run.ts';
import type { MeasuredRequest } from './measurements.ts';

/** Times that figures are made of, in the order of the table. */
export const metricNames = ['ttft', 'tpot', 'itl', 'e2el'] as const;

/** Name of a time: to the first token, mean per further token, between two tokens, of the whole request. */
export type MetricName = (typeof metricNames)[number];

/** Mean, spread and percentiles of a time; zeros where nothing was measured, as vLLM has them. */
export interface TimeFigures {
  readonly mean: number;
  readonly median: number;
  /** Standard deviation over all values. */
  readonly std: number;
  /** Values in ascending order. */
  readonly sorted: Float64Array;
}

/** Targets of goodput in milliseconds, by time. */
export type GoodputTargets = Partial<Record<'ttft' | 'tpot' | 'e2el', number>>;

/** Figures of the requests that were answered. */
export interface RunFigures {
  readonly numDone: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly requestsPerSecond: number;
  /** Requests per second that met all targets; undefined without targets. */
  readonly goodputPerSecond: number | undefined;
  readonly outputTokensPerSecond: number;
  readonly tokensPerSecond: number;
  /** Most output tokens in a second of the run; tokens that arrive in one event count once. */
  readonly peakTokensPerSecond: number;
  readonly peakConcurrency: number;
  /** Prompt tokens that were cached over those of the requests that say so; undefined where none does. */
  readonly cachedShare: number | undefined;
  readonly times: Readonly<Record<MetricName, TimeFigures>>;
  readonly queue: TimeFigures;
  /** Figures by second of the run. */
  readonly seconds: { readonly tokens: readonly number[]; readonly requests: readonly number[] };
}

/** Returns the figures of a run. */
export function figuresOf({ measurements, durationMs }: LoadResult, targets: GoodputTargets): RunFigures {
  const { done } = measurements;
  const sum = (of: (request: MeasuredRequest) => number): number => done.reduce((all, one) => all + of(one), 0);
  const [inputTokens, outputTokens] = [sum((one) => one.inputTokens), sum((one) => one.outputTokens)];
  const perSecond = (count: number): number => (durationMs > 0 ? (1_000 * count) / durationMs : 0);
  const seconds = secondsOf(done);
  const saying = done.filter(({ cachedTokens }) => cachedTokens !== undefined);
  const ofSaying = saying.reduce((all, one) => all + one.inputTokens, 0);
  const hasTargets = Object.keys(targets).length > 0;
  return {
    numDone: done.length,
    inputTokens,
    outputTokens,
    seconds,
    requestsPerSecond: perSecond(done.length),
    goodputPerSecond: hasTargets ? perSecond(done.filter((one) => isGood(one, targets)).length) : undefined,
    outputTokensPerSecond: perSecond(outputTokens),
    tokensPerSecond: perSecond(inputTokens + outputTokens),
    peakTokensPerSecond: seconds.tokens.reduce((most, one) => Math.max(most, one), 0),
    peakConcurrency: peakConcurrency(done),
    cachedShare: ofSaying > 0 ? saying.reduce((all, one) => all + (one.cachedTokens ?? 0), 0) / ofSaying : undefined,
    times: {
      ttft: timeFigures(Float64Array.from(done, (one) => one.ttftMs)),
      tpot: timeFigures(Float64Array.from(done.filter((one) => one.outputTokens > 1).map(tpotOf))),
      itl: timeFigures(intervalsOf(done)),
      e2el: timeFigures(Float64Array.from(done, (one) => one.latencyMs)),
    },
    queue: timeFigures(Float64Array.from(done, (one) => one.queueMs)),
  };
}

/** Mean time of the tokens after the first one; 0 for an answer of one token. */
function tpotOf({ latencyMs, ttftMs, outputTokens }: MeasuredRequest): number {
  return outputTokens > 1 ? (latencyMs - ttftMs) / (outputTokens - 1) : 0;
}

function isGood(request: MeasuredRequest, { ttft, tpot, e2el }: GoodputTargets): boolean {
  return (
    request.ttftMs <= (ttft ?? Infinity) &&
    tpotOf(request) <= (tpot ?? Infinity) &&
    request.latencyMs <= (e2el ?? Infinity)
  );
}

function intervalsOf(done: readonly MeasuredRequest[]): Float64Array {
  const all = new Float64Array(done.reduce((sum, { intervalsMs }) => sum + intervalsMs.length, 0));
  let at = 0;
  for (const { intervalsMs } of done) {
    all.set(intervalsMs, at);
    at += intervalsMs.length;
  }
  return all;
}

/** Returns mean, median, standard deviation and the sorted values, for which `values` is used. */
export function timeFigures(values: Float64Array): TimeFigures {
  const sorted = values.sort();
  const { length } = sorted;
  const mean = length === 0 ? 0 : sorted.reduce((sum, one) => sum + one, 0) / length;
  const variance = length === 0 ? 0 : sorted.reduce((sum, one) => sum + (one - mean) ** 2, 0) / length;
  return { mean, median: percentile(sorted, 50), std: Math.sqrt(variance), sorted };
}

/** Returns a percentile of ascending values, between the two that are nearest to it; 0 where there are none. */
export function percentile(sorted: ArrayLike<number>, percent: number): number {
  const at = (percent / 100) * (sorted.length - 1);
  const [low, high] = [sorted[Math.floor(at)] ?? 0, sorted[Math.ceil(at)] ?? 0];
  return low + (high - low) * (at - Math.floor(at));
}

/** Most seconds of a run that are told apart (P1): a day. */
const MAX_SECONDS = 86_400;

function secondsOf(done: readonly MeasuredRequest[]): RunFigures['seconds'] {
  const startMs = done.reduce((least, one) => Math.min(least, one.startMs), Infinity);
  const endMs = done.reduce((most, one) => Math.max(most, one.startMs + one.latencyMs), -Infinity);
  const numSeconds = done.length === 0 ? 0 : Math.min(MAX_SECONDS, Math.floor((endMs - startMs) / 1_000) + 1);
  const tokens = Array.from({ length: numSeconds }, () => 0);
  const requests = Array.from({ length: numSeconds }, () => 0);
  const count = (list: number[], atMs: number): void => {
    const second = Math.floor(atMs / 1_000);
    if (second < numSeconds) list[second] = (list[second] ?? 0) + 1;
  };
  for (const one of done) {
    let atMs = one.startMs - startMs + one.ttftMs;
    count(tokens, atMs);
    for (const interval of one.intervalsMs) {
      atMs += interval;
      count(tokens, atMs);
    }
    count(requests, one.startMs - startMs + one.latencyMs);
  }
  return { tokens, requests };
}

/** Most requests that were open at the same time; one that ends at the start of another does not overlap it. */
function peakConcurrency(done: readonly MeasuredRequest[]): number {
  const starts = Float64Array.from(done, (one) => one.startMs).sort();
  const ends = Float64Array.from(done, (one) => one.startMs + one.latencyMs).sort();
  let [ended, peak] = [0, 0];
  for (const [started, atMs] of starts.entries()) {
    while (ended < ends.length && (ends[ended] ?? 0) <= atMs) ended++;
    peak = Math.max(peak, started + 1 - ended);
  }
  return peak;
}
