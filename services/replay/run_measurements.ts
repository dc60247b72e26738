/** Measurements of one run by request, as tokens come and requests end. */
import type { TokenCounts } from './simulated_sequence.ts';
import type { TenantTime } from './tenant_ledger.ts';
import type { Trace } from '../../shared/trace/trace.ts';

/** Where the KV of a token came from. */
export type TokenSource = (typeof tokenSources)[number];
const tokenSources = ['device', 'dram', 'remote', 'computed'] as const;

/** Measurements of a run by request; NaN where a request has none. */
interface Measured {
  readonly ttftMs: Float64Array;
  /** 99th percentile of the request's own gaps between tokens. */
  readonly gapMs: Float64Array;
  readonly meanGapMs: Float64Array;
  readonly totalMs: Float64Array;
  /** Time to the first token that was predicted when the request was placed; NaN for policies that predict nothing. */
  readonly predictedMs: Float64Array;
  readonly isRejected: Uint8Array;
  /** Tokens of the request by where their KV came from, those of its prefill and decode sequences together. */
  readonly tokens: Readonly<Record<TokenSource, Int32Array>>;
  /** Gaps between tokens of all requests in milliseconds, ascending for each: those of request i in [offsets[i], offsets[i + 1]). */
  readonly gaps: Float32Array;
  readonly gapOffsets: Int32Array;
}

/** Measurements of a run, and sums over its instances. */
export interface RunResult extends Measured {
  /** Whether the run ended early, because more than `maxMisses` requests had missed a target. */
  readonly isCut: boolean;
  readonly numPreemptions: number;
  readonly busyShare: number;
  /** Milliseconds of the engines by tenant. */
  readonly tenantTimes: ReadonlyMap<string, Readonly<TenantTime>>;
  readonly simulatedMs: number;
  readonly numEvents: number;
}

/** Tokens of one request's answer, as they come. */
interface AnswerTokens {
  /** Token number `generated` comes at `nowMs`. */
  came(generated: number, nowMs: number): void;
  /** Tokens have come up to number `generated`, the last one at `lastMs`; `gaps` are milliseconds from each one's predecessor to it. */
  cameAfter(gaps: Float32Array, generated: number, lastMs: number): void;
}

/** Collects the measurements of a run. */
export class RunMeasurements {
  readonly byRequest: Measured;

  constructor({ numRequests, columns }: Trace) {
    const empty = (): Float64Array => new Float64Array(numRequests).fill(NaN);
    const counts = (): Int32Array => new Int32Array(numRequests);
    const gapOffsets = new Int32Array(numRequests + 1);
    for (let i = 0; i < numRequests; i++)
      gapOffsets[i + 1] = gapOffsets[i]! + Math.max(0, columns.outputTokens[i]! - 1);
    this.byRequest = {
      ttftMs: empty(),
      gapMs: empty(),
      meanGapMs: empty(),
      totalMs: empty(),
      predictedMs: empty(),
      isRejected: new Uint8Array(numRequests),
      tokens: { device: counts(), dram: counts(), remote: counts(), computed: counts() },
      gaps: new Float32Array(gapOffsets[numRequests]!),
      gapOffsets,
    };
  }

  /** Returns what records the tokens of request `i`, which arrived at `arrivedMs`. */
  tokensOf(i: number, arrivedMs: number): AnswerTokens {
    const { ttftMs, gaps: all, gapOffsets } = this.byRequest;
    const offset = gapOffsets[i]!;
    let previousMs = 0;
    return {
      came: (generated, nowMs) => {
        if (generated === 1) ttftMs[i] = nowMs - arrivedMs;
        else all[offset + generated - 2] = nowMs - previousMs;
        previousMs = nowMs;
      },
      cameAfter: (gaps, generated, lastMs) => {
        all.set(gaps, offset + generated - 1 - gaps.length);
        previousMs = lastMs;
      },
    };
  }

  /** Adds where the KV of a sequence of request `i` came from. */
  count(i: number, counts: TokenCounts): void {
    for (const where of tokenSources) this.byRequest.tokens[where][i]! += counts[where];
  }

  /** Request `i` has all its tokens. Returns the 99th percentile of its gaps. */
  ended(i: number, totalMs: number): number {
    const { gaps: all, gapOffsets, gapMs, meanGapMs, totalMs: totals } = this.byRequest;
    totals[i] = totalMs;
    const gaps = all.subarray(gapOffsets[i], gapOffsets[i + 1]);
    let sumMs = 0;
    for (const gap of gaps) sumMs += gap;
    meanGapMs[i] = gaps.length > 0 ? sumMs / gaps.length : 0;
    gaps.sort();
    gapMs[i] = gaps.length > 0 ? gaps[Math.ceil(0.99 * gaps.length) - 1]! : 0;
    return gapMs[i];
  }
}
