/** Figures of a replay, as the table, the page and the JSON show them. Shares are from 0 to 1, times in milliseconds of simulated time. */
import type { CacheHits } from './cache_arithmetic.ts';
import type { Hardware } from './hardware.ts';
import type { ClusterSize, Targets } from './replay_options.ts';
import type { TraceStats } from './trace_stats.ts';

/** Mean and percentiles of a time, in milliseconds; NaN where nothing was measured. */
export interface Percentiles {
  readonly mean: number;
  readonly p50: number;
  readonly p90: number;
  readonly p99: number;
}

/** Where prompts came from: found in a tier of the instance that computed or decoded, fetched from another one, or computed. */
export interface HitCounts {
  readonly device: number;
  readonly dram: number;
  readonly remote: number;
  readonly computed: number;
}

/** Figures of some requests under one policy at one rate. */
export interface RequestFigures {
  readonly numRequests: number;
  readonly ttftMs: Percentiles;
  /** Times between two tokens. */
  readonly tbtMs: Percentiles;
  /** From arrival to the last token. */
  readonly totalMs: Percentiles;
  /** Share of the requests that meet both targets; rejected ones meet none. */
  readonly attainment: number;
  /** Share that meets each target alone. */
  readonly ttftAttainment: number;
  readonly tbtAttainment: number;
  /** Prompt tokens and blocks of the trace, by where they came from. */
  readonly hitTokens: HitCounts;
  readonly hitBlocks: HitCounts;
  /** Bytes that were sent between instances. */
  readonly bytesMoved: number;
  readonly rejections: number;
}

/** Figures of one tenant, or of all that are not named. */
export interface TenantFigures {
  readonly name: string;
  readonly numRequests: number;
  /** Milliseconds of the engines that its requests took, and their share of those of all. */
  readonly engineMs: number;
  readonly share: number;
  readonly ttftMs: Percentiles;
}

/** Figures by tenant, the one with the most milliseconds of the engines first. */
export interface TenantsFigures {
  readonly tenants: readonly TenantFigures[];
  /**
   * Jain's index, from 1 / n to 1: of what tenants had of what they were entitled to by their weights, while requests of several waited
   * at an instance. undefined where that never was.
   */
  readonly jain: number | undefined;
}

/** Figures at one rate, for all requests and for the tenth with the longest prompts. */
export interface RateFigures extends RequestFigures {
  readonly ratePerSecond: number;
  readonly longestTenth: RequestFigures;
  /** undefined for a trace with one tenant. */
  readonly byTenant?: TenantsFigures | undefined;
}

/** Figures of one policy. */
export interface PolicyFigures {
  readonly name: string;
  readonly isDefault: boolean;
  /** Median of {@link goodputOfSeeds}, the lower one of an even number; undefined when goodput was not looked for. */
  readonly goodputPerSecond: number | undefined;
  /** Requests per second at which 90 % of the requests meet the targets, by seed; empty when goodput was not looked for. */
  readonly goodputOfSeeds: readonly number[];
  /** The same for the tenth with the longest prompts; undefined when it was not looked for. */
  readonly goodputOfLongestTenth?: number | undefined;
  /** Run whose figures are shown: at `--rate`, else at the goodput of the first policy of the list; equal rates for all policies. */
  readonly atRate: RateFigures;
  /** Every rate that was tried, ascending. Of runs that were cut, shares are of the requests that had ended or missed a target by then. */
  readonly attainmentByRate: readonly {
    readonly ratePerSecond: number;
    readonly attainment: number;
    readonly attainmentOfLongestTenth?: number | undefined;
  }[];
}

/** All that a replay found out, and how. */
export interface ReplayReport {
  /** Name of the trace: its file, or how it was generated. */
  readonly trace: string;
  readonly traceStats: TraceStats;
  readonly cluster: ClusterSize;
  readonly hardware: Hardware;
  readonly targets: Targets;
  /** Share of requests that must meet the targets. */
  readonly targetShare: number;
  readonly seeds: readonly number[];
  readonly engine: string;
  /** Order of the instances' queues. */
  readonly queueOrder: string;
  readonly policies: readonly PolicyFigures[];
  /** Hits of one cache by its capacity; undefined when they were not asked for. */
  readonly cacheCurve: readonly CacheHits[] | undefined;
  /** Sentences that a reader needs to judge the figures: options that change the hardware, requests that were left out. */
  readonly notes: readonly string[];
  /** The machine that the replay ran on, and how long. */
  readonly machine: string;
  readonly wallSeconds: number;
}
