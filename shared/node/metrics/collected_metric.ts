/**
 * Metrics whose samples are made when they are read, besides prom-client's own: histograms that come as bucket counts, and counters that
 * are kept per engine without a search by labels at each observation.
 */
import type { Counter, Registry } from 'prom-client';
import type { BucketState } from '../../base/bucket_counts.ts';

/** Labels of one sample, by name. */
export type Labels = Readonly<Record<string, string>>;

/** One value of a metric. */
export interface Sample {
  readonly labels: Labels;
  readonly value: number;
  /** Name of the series where it is not the metric's own, for the parts of a histogram. */
  readonly metricName?: string;
}

/** Name, help and labels of a metric, as `/metrics` and the reference page show them. */
export interface Description {
  readonly name: string;
  readonly help: string;
  readonly labelNames: readonly string[];
}

/** A metric of a prom-client registry that is read from a function. */
export class CollectedMetric {
  readonly name: string;
  readonly help: string;
  readonly labelNames: readonly string[];
  readonly type: 'counter' | 'gauge' | 'histogram';
  readonly #collect: () => readonly Sample[];

  constructor(
    registry: Registry,
    type: CollectedMetric['type'],
    { name, help, labelNames }: Description,
    collect: () => readonly Sample[],
  ) {
    this.name = name;
    this.help = help;
    this.labelNames = labelNames;
    this.type = type;
    this.#collect = collect;
    // A registry reads `get`, `name` and `type` of a metric; its type names prom-client's classes.
    registry.registerMetric(this as unknown as Counter);
  }

  get(): Promise<{ name: string; help: string; type: string; values: readonly Sample[]; aggregator: 'sum' }> {
    const { name, help, type } = this;
    return Promise.resolve({ name, help, type, values: this.#collect(), aggregator: 'sum' });
  }
}

/**
 * Returns the samples of one histogram: its buckets, each with the values of all below it, its sum and its count. Bounds are written as
 * Prometheus and vLLM write them, `1.0` for 1, so that a query by `le` finds them. Counts beyond the bounds are added to the last bucket.
 */
export function histogramSamples(
  name: string,
  labels: Labels,
  bounds: readonly number[],
  state: BucketState,
): Sample[] {
  const samples: Sample[] = [];
  let total = 0;
  for (const [i, bound] of bounds.entries()) {
    total += state.counts[i] ?? 0;
    samples.push({ labels: { ...labels, le: boundText(bound) }, value: total, metricName: `${name}_bucket` });
  }
  for (const count of state.counts.slice(bounds.length)) total += count;
  return [
    ...samples,
    { labels: { ...labels, le: '+Inf' }, value: total, metricName: `${name}_bucket` },
    { labels, value: state.sum, metricName: `${name}_sum` },
    { labels, value: total, metricName: `${name}_count` },
  ];
}

function boundText(bound: number): string {
  return Number.isInteger(bound) ? `${bound}.0` : String(bound);
}
