/** Result files, ours and those of `vllm bench serve`, as the page of several runs reads them. */
import { Failure } from '../../../shared/base/failure.ts';
import { metricNames, percentile, timeFigures, type MetricName } from './figures.ts';
import { curvePercents } from './result_json.ts';

/** A time of a run, in milliseconds; undefined where the file has not it. */
interface RunTimes {
  readonly mean: number | undefined;
  readonly median: number | undefined;
  readonly p99: number | undefined;
  /** Values by percentile, ascending; empty where the file has none. */
  readonly curve: readonly { readonly percent: number; readonly ms: number }[];
}

/** A run as the page shows it. */
export interface ReportedRun {
  readonly name: string;
  readonly model: string;
  readonly date: string;
  /** Requests per second that were asked for; undefined: all at once, or a rate that grows. */
  readonly rate: number | undefined;
  readonly maxConcurrency: number | undefined;
  readonly numDone: number;
  readonly numFailed: number;
  readonly durationSeconds: number;
  readonly requestsPerSecond: number;
  readonly goodputPerSecond: number | undefined;
  readonly outputTokensPerSecond: number;
  readonly tokensPerSecond: number;
  readonly cachedShare: number | undefined;
  readonly times: Readonly<Record<MetricName, RunTimes>>;
  /** Output tokens in each second. */
  readonly tokensBySecond: readonly number[];
  readonly notes: readonly string[];
}

type Value = Readonly<Record<string, unknown>>;

/** Returns the runs in the text of a file: one JSON object, or one in each line as vLLM appends them. @throws Failure when it has no result */
export function runsOfFile(fileName: string, text: string): ReportedRun[] {
  const lines = isJson(text) ? [text] : text.split('\n').filter((line) => line.trim() !== '');
  const runs = lines.map((line, i) => {
    const value: unknown = isJson(line) ? JSON.parse(line) : undefined;
    const isResult =
      typeof value === 'object' && value !== null && 'request_throughput' in value && 'duration' in value;
    if (!isResult)
      throw new Failure(
        'invalid_request',
        `${fileName}${lines.length > 1 ? `:${i + 1}` : ''} is no result of penstock bench serve (--save-result) or vllm bench serve`,
      );
    return runOf(lines.length > 1 ? `${fileName}:${i + 1}` : fileName, value);
  });
  if (runs.length === 0) throw new Failure('invalid_request', `${fileName} is empty`);
  return runs;
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

const numberOf = (value: unknown): number | undefined => (typeof value === 'number' ? value : undefined);
const textOf = (value: unknown): string => (typeof value === 'string' ? value : '');
const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? (value as readonly unknown[]) : []);
const numbersOf = (value: unknown): number[] => listOf(value).filter((one): one is number => typeof one === 'number');

function runOf(fileName: string, value: Value): ReportedRun {
  const own = (value['penstock'] ?? {}) as Value;
  const count = (key: string): number => numberOf(value[key]) ?? 0;
  const client = (own['client'] ?? {}) as Value;
  const notes = [...listOf(own['notes']), ...listOf(client['warnings'])].filter((one) => typeof one === 'string');
  return {
    name: textOf(value['label']) || fileName,
    model: textOf(value['model_id']),
    date: textOf(value['date']),
    rate: numberOf(value['request_rate']),
    maxConcurrency: numberOf(value['max_concurrency']),
    numDone: count('completed'),
    numFailed: count('failed'),
    durationSeconds: count('duration'),
    requestsPerSecond: count('request_throughput'),
    goodputPerSecond: numberOf(value['request_goodput']),
    outputTokensPerSecond: count('output_throughput'),
    tokensPerSecond: count('total_token_throughput'),
    cachedShare: numberOf(own['cached_share']),
    times: Object.fromEntries(metricNames.map((name) => [name, timesOf(name, value, own)])) as ReportedRun['times'],
    tokensBySecond: numbersOf(((own['seconds'] ?? {}) as Value)['tokens']),
    notes,
  };
}

/** Keys of values by request, in seconds, that vLLM writes with `--save-detailed`. */
const DETAILS: Partial<Record<MetricName, string>> = { ttft: 'ttfts', itl: 'itls', e2el: 'latencies' };

function timesOf(name: MetricName, value: Value, own: Value): RunTimes {
  const percents = numbersOf(own['curve_percents']);
  const curve = numbersOf(((own['curves_ms'] ?? {}) as Value)[name]);
  const details = listOf(value[DETAILS[name] ?? ''])
    .flat()
    .filter((one): one is number => typeof one === 'number');
  const sorted = timeFigures(Float64Array.from(details, (seconds) => 1_000 * seconds)).sorted;
  const points =
    curve.length > 0
      ? percents.map((percent, i) => ({ percent, ms: curve[i] ?? 0 }))
      : sorted.length > 0
        ? curvePercents.map((percent) => ({ percent, ms: percentile(sorted, percent) }))
        : [];
  const statistic = (key: string): number | undefined => numberOf(value[`${key}_${name}_ms`]);
  const at = (share: number): number | undefined => points.find(({ percent }) => percent === share)?.ms;
  return {
    mean: statistic('mean'),
    median: statistic('median') ?? at(50),
    p99: statistic('p99') ?? at(99),
    curve: points,
  };
}
