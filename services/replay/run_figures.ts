/** Figures of one run: percentiles, hits, bytes and shares, for all requests and for the tenth with the longest prompts. */
import type { Hardware } from './hardware.ts';
import type { Targets } from './replay_options.ts';
import type { RunResult } from './run_measurements.ts';
import type { HitCounts, Percentiles, RateFigures, RequestFigures } from './report.ts';
import { tenantsFigures } from './tenant_figures.ts';
import type { Trace } from '../../shared/trace/trace.ts';

/** Part of the requests that counts as the longest. */
const LONGEST = 0.1;

/** Trace, hardware and targets that a run's figures refer to. */
export interface FiguresContext {
  readonly trace: Trace;
  readonly hardware: Hardware;
  readonly targets: Targets;
}

/** Returns the figures of a run at `ratePerSecond`. */
export function figuresOf(result: RunResult, ratePerSecond: number, context: FiguresContext): RateFigures {
  const all = everyRequest(context.trace);
  const longest = longestTenth(context.trace);
  return {
    ratePerSecond,
    ...requestFigures(result, all, context),
    longestTenth: requestFigures(result, longest, context),
    byTenant: tenantsFigures(result, context.trace, percentiles),
  };
}

/** Returns the numbers of all requests. */
export function everyRequest({ numRequests }: Trace): number[] {
  return Array.from({ length: numRequests }, (_, i) => i);
}

/** Returns the requests with the longest prompts, a tenth of them. */
export function longestTenth({ columns, numRequests }: Trace): number[] {
  return Array.from({ length: numRequests }, (_, i) => i)
    .sort((a, b) => columns.inputTokens[b]! - columns.inputTokens[a]! || a - b)
    .slice(0, Math.ceil(LONGEST * numRequests));
}

/** Returns the share of `requests` within both targets; one that was refused or has not ended is not. */
export function attainmentOf(
  { ttftMs, gapMs }: Pick<RunResult, 'ttftMs' | 'gapMs'>,
  requests: readonly number[],
  targets: Targets,
): number {
  const isWithin = (i: number): boolean => ttftMs[i]! <= targets.ttftMs && gapMs[i]! <= targets.tbtMs;
  return shareOf(requests, isWithin);
}

function requestFigures(
  result: RunResult,
  requests: readonly number[],
  { trace, hardware, targets }: FiguresContext,
): RequestFigures {
  const { ttftMs, gapMs, totalMs, tokens, isRejected, gaps, gapOffsets } = result;
  const sum = (values: Int32Array): number => requests.reduce((all, i) => all + values[i]!, 0);
  const hitTokens: HitCounts = {
    device: sum(tokens.device),
    dram: sum(tokens.dram),
    remote: sum(tokens.remote),
    computed: sum(tokens.computed),
  };
  const blocks = (numTokens: number): number => Math.round(numTokens / trace.blockTokens);
  const times = new Float32Array(requests.reduce((all, i) => all + gapOffsets[i + 1]! - gapOffsets[i]!, 0));
  let at = 0;
  for (const i of requests) {
    const own = gaps.subarray(gapOffsets[i], gapOffsets[i + 1]);
    times.set(own, at);
    at += own.length;
  }
  return {
    numRequests: requests.length,
    ttftMs: percentiles(Float64Array.from(requests, (i) => ttftMs[i]!)),
    tbtMs: percentilesOf(sortedTimes(times)),
    totalMs: percentiles(Float64Array.from(requests, (i) => totalMs[i]!)),
    attainment: attainmentOf(result, requests, targets),
    ttftAttainment: shareOf(requests, (i) => ttftMs[i]! <= targets.ttftMs),
    tbtAttainment: shareOf(requests, (i) => gapMs[i]! <= targets.tbtMs),
    hitTokens,
    hitBlocks: {
      device: blocks(hitTokens.device),
      dram: blocks(hitTokens.dram),
      remote: blocks(hitTokens.remote),
      computed: blocks(hitTokens.computed),
    },
    bytesMoved: hitTokens.remote * hardware.kvBytesPerToken,
    rejections: requests.reduce((all, i) => all + isRejected[i]!, 0),
  };
}

function shareOf(requests: readonly number[], isCounted: (i: number) => boolean): number {
  return requests.filter(isCounted).length / Math.max(1, requests.length);
}

/** Mean and percentiles by the nearest rank; values that are NaN were not measured. */
function percentiles(values: Float64Array): Percentiles {
  return percentilesOf(values.filter((value) => !Number.isNaN(value)).sort());
}

/** Mean and percentiles of ascending values. */
function percentilesOf(sorted: Float64Array | Float32Array): Percentiles {
  const { length } = sorted;
  const at = (share: number): number => (length === 0 ? NaN : sorted[Math.max(0, Math.ceil(share * length) - 1)]!);
  let sum = 0;
  for (const value of sorted) sum += value;
  return { mean: length === 0 ? NaN : sum / length, p50: at(0.5), p90: at(0.9), p99: at(0.99) };
}

/** Number of different halves of a float. */
const NUM_HALVES = 1 << 16;

/**
 * Returns times sorted; their array is overwritten. The bits of numbers from zero on ascend as these do, so that two passes over their
 * halves sort millions of gaps several times as fast as comparisons do.
 */
function sortedTimes(times: Float32Array): Float32Array {
  if (times.length < NUM_HALVES) return times.sort();
  const from = new Uint32Array(times.buffer, times.byteOffset, times.length);
  const to = new Uint32Array(times.length);
  byHalf(from, to, 0);
  byHalf(to, from, 16);
  return times;
}

/** Copies `from` to `to` in the order of the 16 bits from `shift` on; equal ones keep their order. */
function byHalf(from: Uint32Array, to: Uint32Array, shift: number): void {
  const offsets = new Uint32Array(NUM_HALVES);
  for (const bits of from) offsets[(bits >>> shift) & (NUM_HALVES - 1)]!++;
  let at = 0;
  for (let half = 0; half < NUM_HALVES; half++) {
    const count = offsets[half]!;
    offsets[half] = at;
    at += count;
  }
  for (const bits of from) to[offsets[(bits >>> shift) & (NUM_HALVES - 1)]!++] = bits;
}
