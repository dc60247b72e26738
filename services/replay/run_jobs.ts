/** Runs of a replay on a thread of their own: a trace and a hardware come once, then one job after the other. */
import type { QueueOrderName } from '../../shared/engine/queue_order.ts';
import { createPolicy, isPolicyName } from '../../shared/placement/policy_registry.ts';
import type { Hardware } from './hardware.ts';
import type { ClusterSize, SlowInstances, Targets } from './replay_options.ts';
import { ReplayRun } from './replay_run.ts';
import type { RunResult } from './run_measurements.ts';
import type { RateFigures } from './report.ts';
import { attainmentOf, everyRequest, figuresOf, longestTenth } from './run_figures.ts';
import { stepSettings } from './simulated_steps.ts';
import type { TenantWeights } from './run_tenants.ts';
import { Trace, type TraceColumns } from '../../shared/trace/trace.ts';
import { TraceHashes } from './trace_hashes.ts';

/** Tokens that the policies of splitting clusters leave to a decode instance, as `--local-prefill-tokens` by default. */
const LOCAL_PREFILL_TOKENS = 256;

/** Start parameters of a worker. */
export interface RunWorkerData {
  readonly columns: TraceColumns;
  readonly hardware: Hardware;
  readonly cluster: ClusterSize;
  readonly targets: Targets;
  readonly slow: SlowInstances | undefined;
  readonly strictRoles: boolean;
  /** Order of the instances' queues; first come first by default. */
  readonly queueOrder?: QueueOrderName;
  /** Whether tenants share an instance fairly, above the order of its queue; true by default. */
  readonly fairShares?: boolean;
  /** Weights of tenants by name; 1 by default. */
  readonly weights?: TenantWeights;
  readonly isFull: boolean;
  readonly targetShare: number;
}

/** One run. */
export interface RunJob {
  readonly policy: string;
  readonly ratePerSecond: number;
  readonly seed: number;
  /** Whether the run may stop once the target share is out of reach; it then has no figures. */
  readonly mayBeCut: boolean;
}

/** Shares of requests within both targets, of a run that was cut among those that had ended or missed a target, and the figures. */
export interface RunAnswer {
  readonly attainment: number;
  /** Undefined where the run was cut before any of them was decided. */
  readonly attainmentOfLongestTenth: number | undefined;
  readonly figures: RateFigures | undefined;
}

/** Methods of the thread. */
export interface RunMethods {
  /** Runs the trace once, at one rate under one policy. */
  run(job: RunJob): Promise<RunAnswer>;
}

/** Starts the thread. */
export function start(data: RunWorkerData): RunMethods {
  const trace = new Trace(data.columns);
  const hashes = new TraceHashes();
  const longest = longestTenth(trace);
  const all = everyRequest(trace);
  const { hardware, targets } = data;
  const context = { trace, hardware, targets };
  return {
    run: async (job) => {
      const { ratePerSecond } = job;
      const result = await runOnce(data, trace, hashes, job);
      const counted = (requests: readonly number[]): readonly number[] =>
        result.isCut ? decidedOf(requests, result, trace, job, targets) : requests;
      const longestCounted = counted(longest);
      return {
        attainment: attainmentOf(result, counted(all), targets),
        attainmentOfLongestTenth: longestCounted.length > 0 ? attainmentOf(result, longestCounted, targets) : undefined,
        figures: result.isCut ? undefined : figuresOf(result, ratePerSecond, context),
      };
    },
  };
}

/** Returns the requests that had ended, or missed the target of the first token, when the run was cut. */
function decidedOf(
  requests: readonly number[],
  { ttftMs, totalMs, simulatedMs }: RunResult,
  trace: Trace,
  { ratePerSecond }: RunJob,
  targets: Targets,
): number[] {
  const speedUp = ratePerSecond / trace.requestsPerSecond;
  const isLate = (i: number): boolean =>
    !(ttftMs[i]! <= targets.ttftMs) && trace.columns.arrivalMs[i]! / speedUp + targets.ttftMs <= simulatedMs;
  return requests.filter((i) => !Number.isNaN(totalMs[i]) || isLate(i));
}

async function runOnce(
  {
    hardware,
    cluster,
    targets,
    slow,
    strictRoles,
    queueOrder,
    fairShares,
    weights,
    isFull,
    targetShare,
  }: RunWorkerData,
  trace: Trace,
  hashes: TraceHashes,
  { policy: name, ratePerSecond, seed, mayBeCut }: RunJob,
): Promise<RunResult> {
  if (!isPolicyName(name)) throw new Error(`no policy is called ${name}`);
  const [numPrefill, numDecode] =
    cluster.kind === 'split' ? [cluster.numPrefill, cluster.numDecode] : [0, cluster.numInstances];
  const run = new ReplayRun({
    trace,
    hardware,
    hashes,
    seed,
    targets,
    numPrefill,
    numDecode,
    isFull,
    queueOrder,
    fairShares,
    weights,
    // Goodput counts a refused request as missed, so that no policy gains by refusing.
    policy: createPolicy(name, {
      localPrefillTokens: LOCAL_PREFILL_TOKENS,
      strictRoles,
      refusesLate: false,
      hasPipelines: false,
    }),
    speedUp: ratePerSecond / trace.requestsPerSecond,
    ...stepSettings,
    slownessOf: (index) => slownessOf(index < numPrefill ? index : index - numPrefill, slow),
    maxMisses: mayBeCut ? Math.ceil((1 - targetShare) * trace.numRequests) : undefined,
  });
  return isFull ? run.runFull() : run.run();
}

/** Slow instances are spread evenly among those of a role: with a share of 0.5 every second one. */
function slownessOf(index: number, slow: SlowInstances | undefined): number {
  if (!slow) return 1;
  const isSlow = Math.floor((index + 1) * slow.share) > Math.floor(index * slow.share);
  return isSlow ? slow.factor : 1;
}
