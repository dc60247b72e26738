/** Options of a replay, as the command line gives them. */
import type { QueueOrderName } from '../../shared/engine/queue_order.ts';
import type { TenantWeights } from './run_tenants.ts';
import type { GeneratorSpec } from './trace_generators.ts';

/** Instances of the simulated cluster, by role. Aggregated instances prefill and decode; there are either these or the others. */
export type ClusterSize =
  | { readonly kind: 'split'; readonly numPrefill: number; readonly numDecode: number }
  | { readonly kind: 'aggregated'; readonly numInstances: number };

/** Share of the requests that must meet the targets for a rate to count as goodput. */
export const TARGET_SHARE = 0.9;

/** Service level objectives that count for goodput, in milliseconds. */
export interface Targets {
  readonly ttftMs: number;
  readonly tbtMs: number;
}

/** Some instances are slower than the others. */
export interface SlowInstances {
  /** Share of the instances that are slow, in (0, 1]: with 0.5 every second one of each role. */
  readonly share: number;
  /** How many times longer their steps take. */
  readonly factor: number;
}

/** Where the requests come from. */
export type TraceSource =
  | { readonly kind: 'file'; readonly path: string }
  | { readonly kind: 'generated'; readonly spec: GeneratorSpec; readonly text: string };

/** Where the hardware of instances is read. */
export interface HardwareSource {
  /** A file, or the URL of a router; undefined: the hardware that comes with the command. */
  readonly hardware: string | undefined;
  /** Key for that router, as the command line has it. */
  readonly apiKey: string | undefined;
}

/** Options of `penstock replay`. */
export interface ReplayOptions extends HardwareSource {
  readonly trace: TraceSource;
  readonly cluster: ClusterSize;
  /** Names of policies, in the order in which they run. The report marks the cluster's default policy. */
  readonly policies: readonly string[];
  readonly targets: Targets;
  /** One run at this rate for each policy and seed; undefined: goodput is looked for. */
  readonly ratePerSecond: number | undefined;
  readonly seeds: readonly number[];
  readonly maxRequests: number | undefined;
  readonly traceBlockTokens: number | undefined;
  readonly engine: 'light' | 'full';
  /** Order of the instances' queues. */
  readonly queueOrder: QueueOrderName;
  /** Whether tenants of the trace share an instance fairly, above the order of its queue. */
  readonly fairShares: boolean;
  readonly weights: TenantWeights;
  /**
   * Whether roles are walls under `priced`: decode instances then compute at most LOCAL_PREFILL_TOKENS (run_jobs.ts) uncached tokens of a
   * prompt, and prefill instances generate nothing. Other policies keep roles apart in any case.
   */
  readonly strictRoles: boolean;
  readonly linkBytesPerSecond: number | undefined;
  readonly slow: SlowInstances | undefined;
  readonly cacheCurve: boolean;
  readonly html: string | undefined;
  readonly json: string | undefined;
}
