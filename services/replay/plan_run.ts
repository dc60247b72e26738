/** One run of a plan: a trace through a simulated cluster under the default policy, at one rate. */
import { PRICED } from '../../shared/placement/priced/priced_policy.ts';
import type { Hardware } from './hardware.ts';
import { TARGET_SHARE, type ClusterSize, type Targets } from './replay_options.ts';
import { start } from './run_jobs.ts';
import type { Trace } from '../../shared/trace/trace.ts';

/** Trace, instances and targets of the runs of a plan. */
export interface PlanRunOptions {
  readonly trace: Trace;
  readonly hardware: Hardware;
  readonly targets: Targets;
  /** Requests per second; undefined: as the trace has them. */
  readonly ratePerSecond: number | undefined;
  readonly seed: number;
}

/**
 * Returns the runs of a plan: the share of requests within the targets. Instances of a split do only the part of their role; in the other
 * clusters any instance does any part.
 */
export function planRuns(options: PlanRunOptions): (cluster: ClusterSize) => Promise<number> {
  const { trace, hardware, targets, ratePerSecond, seed } = options;
  return async (cluster) => {
    const data = {
      columns: trace.columns,
      hardware,
      cluster,
      targets,
      slow: undefined,
      targetShare: TARGET_SHARE,
      strictRoles: cluster.kind === 'split',
      isFull: false,
    };
    const job = { policy: PRICED, ratePerSecond: ratePerSecond ?? trace.requestsPerSecond, seed, mayBeCut: false };
    return (await start(data).run(job)).attainment;
  };
}
