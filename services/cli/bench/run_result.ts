/** All that a run found out, from which the table and the JSON are made. */
import type { ClientFigures } from './client_load.ts';
import { percentile, type MetricName, type RunFigures } from './figures.ts';
import type { LoadResult } from './load_run.ts';
import type { ServeOptions } from './serve_arguments.ts';

/** A run with the options that led to it. */
export interface RunResult {
  readonly options: ServeOptions;
  readonly model: string;
  /** When the run began, in milliseconds since 1970. */
  readonly dateMs: number;
  readonly load: LoadResult;
  readonly figures: RunFigures;
  readonly client: ClientFigures;
  /** Requests of the workload; fewer were sent when the run was interrupted, or a conversation lost an answer. */
  readonly numRequests: number;
  /** Whether prompts were token ids, whose number is exact. */
  readonly areIds: boolean;
  /** Sentences that a reader needs to judge the figures. */
  readonly notes: readonly string[];
}

/** Share of a measured time by which the load generator may be late itself. */
const MAX_LATE_SHARE = 0.05;
/** Cores from which on this process is busy itself; it has one thread that matters. */
const BUSY_CORES = 0.6;

/** Returns warnings where this process was too slow for its own figures to be trusted. */
export function clientWarnings({
  figures,
  client,
  load,
  options,
}: Pick<RunResult, 'figures' | 'client' | 'load' | 'options'>): string[] {
  const { ttft, tpot, e2el } = figures.times;
  const { cpuCores, delayMs, maxDelayMs } = client;
  const warnings: string[] = [];
  const late = [
    ...(delayMs > MAX_LATE_SHARE * ttft.median ? ['5 % of the TTFT'] : []),
    ...(delayMs > MAX_LATE_SHARE * (e2el.median - ttft.median) && tpot.sorted.length > 0
      ? ['5 % of the time after it']
      : []),
    // Delays of both ends of an interval cancel in the mean, and spread its percentiles.
    ...(delayMs > tpot.median / 2 && tpot.sorted.length > 0
      ? ['half the time of a token, so percentiles of the ITL say little']
      : []),
  ];
  if (late.length > 0 && figures.numDone > 0)
    warnings.push(
      `the load generator itself was late: answers waited ${delayMs.toFixed(1)} ms (at most ${maxDelayMs.toFixed(0)} ms) to be read, over ${late.join(', and ')}. ` +
        (cpuCores < BUSY_CORES
          ? `It took ${cpuCores.toFixed(2)} cores only, so other work keeps this machine busy: run it on another one`
          : `It took ${cpuCores.toFixed(2)} cores, and has one thread: lower the rate or the concurrency, or divide the load among several`),
    );
  const { ratePerSecond } = options.rate;
  const gapMs = 1_000 / ratePerSecond;
  if (Number.isFinite(ratePerSecond) && load.lateMs > Math.max(2, MAX_LATE_SHARE * gapMs))
    warnings.push(
      `requests were sent ${load.lateMs.toFixed(1)} ms after their time, over 5 % of the ${gapMs.toFixed(1)} ms between two of them`,
    );
  return warnings;
}

/** Titles of the times, as the table and the page show them. */
export const metricTitles: Readonly<Record<MetricName, readonly [short: string, long: string]>> = {
  ttft: ['TTFT', 'Time to First Token'],
  tpot: ['TPOT', 'Time per Output Token (excl. 1st token)'],
  itl: ['ITL', 'Inter-token Latency'],
  e2el: ['E2EL', 'End-to-end Latency'],
};

/** Returns the percentile's name in keys and titles: `99`, `99.9`. */
export function percentileName(percent: number): string {
  return String(percent);
}

/** Returns a time's statistics by key of the JSON: `mean_ttft_ms`, `p99_ttft_ms`. */
export function statisticsOf(
  key: string,
  { mean, median, std, sorted }: RunFigures['queue'],
  percentiles: readonly number[],
): Record<string, number> {
  return {
    [`mean_${key}_ms`]: mean,
    [`median_${key}_ms`]: median,
    [`std_${key}_ms`]: std,
    ...Object.fromEntries(percentiles.map((p) => [`p${percentileName(p)}_${key}_ms`, percentile(sorted, p)])),
  };
}
