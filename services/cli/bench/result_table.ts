/** The result of a run as a table for a terminal, in the form of `vllm bench serve`. */
import { percentile, type TimeFigures } from './figures.ts';
import { clientWarnings, metricTitles, percentileName, type RunResult } from './run_result.ts';

const WIDTH = 50;
const NAME_WIDTH = 40;

/** Returns the table, its errors and its warnings as text. */
export function resultTable(result: RunResult): string {
  const { figures, options, notes } = result;
  const lines = [
    heading('Serving Benchmark Result', '='),
    ...counts(result),
    ...options.metrics.flatMap((name) => timeLines(metricTitles[name], figures.times[name], options.percentiles)),
    ...(Number.isFinite(options.maxConcurrency)
      ? timeLines(['Client Queue Time', 'Client-side Queueing'], figures.queue, options.percentiles)
      : []),
    heading('Load Generator', '-'),
    row('CPU (cores):', result.client.cpuCores.toFixed(2)),
    row('Mean delay of reading (ms):', result.client.delayMs.toFixed(2)),
    '='.repeat(WIDTH),
    ...errorLines(result),
    ...notes.map((note) => `note: ${note}`),
    ...clientWarnings(result).map((warning) => `warning: ${warning}`),
  ];
  return `${lines.join('\n')}\n`;
}

function counts({ figures, options, load, numRequests }: RunResult): string[] {
  const { measurements, durationMs } = load;
  const { rate, maxConcurrency } = options;
  const numNotSent = numRequests - measurements.requests.length;
  const some = (isShown: boolean, name: string, value: string): string[] => (isShown ? [row(name, value)] : []);
  return [
    row('Successful requests:', String(figures.numDone)),
    row('Failed requests:', String(measurements.numFailed)),
    ...some(measurements.numCut > 0, 'Requests cut off:', String(measurements.numCut)),
    ...some(numNotSent > 0, 'Requests not sent:', String(numNotSent)),
    ...some(Number.isFinite(maxConcurrency), 'Maximum request concurrency:', String(maxConcurrency)),
    ...some(Number.isFinite(rate.ratePerSecond), 'Request rate configured (RPS):', fixed(rate.ratePerSecond)),
    row('Benchmark duration (s):', fixed(durationMs / 1_000)),
    row('Total input tokens:', String(figures.inputTokens)),
    row('Total generated tokens:', String(figures.outputTokens)),
    row('Request throughput (req/s):', fixed(figures.requestsPerSecond)),
    ...some(figures.goodputPerSecond !== undefined, 'Request goodput (req/s):', fixed(figures.goodputPerSecond ?? 0)),
    row('Output token throughput (tok/s):', fixed(figures.outputTokensPerSecond)),
    row('Peak output token throughput (tok/s):', fixed(figures.peakTokensPerSecond)),
    row('Peak concurrent requests:', fixed(figures.peakConcurrency)),
    row('Total token throughput (tok/s):', fixed(figures.tokensPerSecond)),
    ...some(figures.cachedShare !== undefined, 'Cached prompt tokens (%):', fixed(100 * (figures.cachedShare ?? 0))),
  ];
}

function timeLines(
  [short, long]: readonly [string, string],
  { mean, median, std, sorted }: TimeFigures,
  percentiles: readonly number[],
): string[] {
  return [
    heading(long, '-'),
    row(`Mean ${short} (ms):`, fixed(mean)),
    row(`Median ${short} (ms):`, fixed(median)),
    row(`Std ${short} (ms):`, fixed(std)),
    ...percentiles.map((p) => row(`P${percentileName(p)} ${short} (ms):`, fixed(percentile(sorted, p)))),
  ];
}

function errorLines({ load: { measurements, isInterrupted } }: RunResult): string[] {
  return [
    ...(isInterrupted ? ['interrupted: the figures are of the requests that had ended by then'] : []),
    ...measurements.errors.map(({ kind, count, first }) => `failed: ${count} × ${kind}, the first: ${first}`),
    ...(measurements.numLeftOut > 0 ? [`note: the ITL leaves out ${measurements.numLeftOut} intervals`] : []),
  ];
}

function heading(title: string, fill: string): string {
  const left = Math.floor((WIDTH - title.length - 2) / 2);
  return ` ${title} `.padStart(left + title.length + 2, fill).padEnd(WIDTH, fill);
}

function row(name: string, value: string): string {
  return `${name.padEnd(NAME_WIDTH)} ${value}`;
}

function fixed(value: number): string {
  return value.toFixed(2);
}
