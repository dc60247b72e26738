/** Sums of a trace, for reports. */
import type { Trace } from '../../shared/trace/trace.ts';

/** Mean and percentiles of a number of tokens. */
interface TokenStats {
  readonly mean: number;
  readonly p50: number;
  readonly p90: number;
  readonly p99: number;
  readonly max: number;
}

/** How large a trace is. */
export interface TraceStats {
  readonly numRequests: number;
  readonly durationSeconds: number;
  /** Mean rate of the trace as it is; undefined when all requests arrive at the same time. */
  readonly requestsPerSecond: number | undefined;
  readonly inputTokens: TokenStats;
  readonly outputTokens: TokenStats;
  readonly blockTokens: number;
  /** Block references of all requests, and different blocks among them. */
  readonly numBlockReferences: number;
  readonly numBlocks: number;
}

/** Returns the sums of a trace. */
export function traceStats(trace: Trace): TraceStats {
  const { inputTokens, outputTokens, hashIds } = trace.columns;
  return {
    numRequests: trace.numRequests,
    durationSeconds: trace.durationMs / 1_000,
    requestsPerSecond: trace.durationMs > 0 ? trace.requestsPerSecond : undefined,
    inputTokens: statsOf(inputTokens),
    outputTokens: statsOf(outputTokens),
    blockTokens: trace.blockTokens,
    numBlockReferences: hashIds.length,
    numBlocks: trace.numBlocks,
  };
}

function statsOf(column: Int32Array): TokenStats {
  const sorted = column.slice().sort();
  // The smallest value that at least this share of all values does not exceed.
  const at = (share: number): number => sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)] ?? NaN;
  const sum = sorted.reduce((total, value) => total + value, 0);
  return { mean: sum / sorted.length, p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1) };
}
