/** Names of the series of `/api/history` and of `now` in the stream, with their words. */
import type { TokenSources } from '../../shared/protocol/router_api.ts';

/** A line of a chart: the series, its word, and the number of its colour in colours.css. */
export interface SeriesWord {
  readonly name: string;
  readonly label: string;
  readonly color: number;
  readonly title?: string;
}

/** Where the KV of prompt tokens came from, from the cheapest to the dearest. */
export const SOURCES: readonly (SeriesWord & { readonly source: keyof TokenSources })[] = [
  source('device', 'own device', 3, 'Blocks that the instance already had on its device'),
  source('dram', 'own DRAM', 6, 'Blocks in host memory of the instance that used them'),
  source('instance', 'other instance', 1, 'Fetched from a prefill or decode instance that had them before the request'),
  source('store_dram', 'store DRAM', 4, "Fetched from a store's memory"),
  source('store_disk', 'store disk', 5, "Fetched from a store's disk"),
  source('handoff', 'handed over', 7, 'Computed for this request by a prefill instance, and fetched from there'),
  source('computed', 'computed', 2, 'Computed by the instance that generates'),
];

function source(
  name: keyof TokenSources,
  label: string,
  color: number,
  title: string,
): SeriesWord & { source: keyof TokenSources } {
  return { source: name, name: `source_${name}`, label, color, title };
}

/** Sources that saved computing. */
export const HIT_SOURCES = SOURCES.filter((one) => one.source !== 'computed' && one.source !== 'handoff');

/** Series of the time to first token, and of the time between tokens, in milliseconds. */
export const TTFT: readonly SeriesWord[] = quantiles('ttft');
/** Series of the time between two tokens of one answer, in milliseconds. */
export const TBT: readonly SeriesWord[] = quantiles('tbt');

function quantiles(name: string): readonly SeriesWord[] {
  return [
    { name: `${name}_ms_p50`, label: 'p50', color: 3, title: 'Half of the values are at most this' },
    { name: `${name}_ms_p95`, label: 'p95', color: 2, title: 'Nineteen of twenty values are at most this' },
    { name: `${name}_ms_p99`, label: 'p99', color: 5, title: 'Ninety-nine of a hundred values are at most this' },
  ];
}

/** Requests that ended and those that failed, a second. */
export const RATES: readonly SeriesWord[] = [
  { name: 'requests_per_s', label: 'requests', color: 1, title: 'Requests that ended, a second' },
  { name: 'failed_per_s', label: 'failed', color: 5, title: 'Requests that failed, a second' },
];

/** Sequences that instances compute, and those that wait. */
export const LOAD: readonly SeriesWord[] = [
  { name: 'running', label: 'running', color: 1, title: 'Sequences that are computed' },
  { name: 'waiting', label: 'waiting', color: 2, title: 'Sequences that wait for room' },
];

/** Series of a node: sequences, and the bytes that its tiers hold. */
export const NODE_SERIES = ['running', 'waiting', 'device_bytes', 'dram_bytes', 'disk_bytes'];

/** Series of the bytes that the cluster's tiers hold, and of those that they can hold. */
export const TIER_FILL = ['device', 'dram', 'disk'].flatMap((tier) => [`${tier}_bytes`, `${tier}_capacity_bytes`]);

/** Kinds of tiers with their words, from the fastest. */
export const TIERS: readonly SeriesWord[] = [
  { name: 'device', label: 'Device', color: 3, title: 'Memory of the GPU, or of the CPU that computes' },
  { name: 'dram', label: 'DRAM', color: 1, title: 'Host memory' },
  { name: 'disk', label: 'Disk', color: 4, title: 'Disk of a store' },
];
