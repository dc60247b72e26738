/**
 * One run of a trace through a simulated cluster at one rate.
 *
 *   arrival ──► conductor ──placed──► Decode at one engine, perhaps Prefill at another ──► tokens: TTFT, gaps
 */
import assert from 'node:assert/strict';
import type { QueueOrderName } from '../../shared/engine/queue_order.ts';
import type { Chosen } from '../../shared/placement/conductor.ts';
import type { Policy, Targets } from '../../shared/placement/policy.ts';
import type { Hardware } from './hardware.ts';
import { Activity } from './loop_activity.ts';
import { ReplayTime } from './replay_time.ts';
import { hasTenants, RunTenants, type TenantWeights } from './run_tenants.ts';
import { RunMeasurements, type RunResult } from './run_measurements.ts';
import { SimulatedCluster, type SimulatedNode } from './simulated_cluster.ts';
import type { SimulatedSource } from './replay_engine.ts';
import { SimulatedSequence, type Handoff, type SequenceOptions } from './simulated_sequence.ts';
import type { Trace } from '../../shared/trace/trace.ts';
import type { TraceHashes } from './trace_hashes.ts';
import { type TraceHash } from './trace_hashes.ts';

/** Tokens of a block of the cluster: a prefill instance hands over whole blocks of this size. */
const HANDOFF_TOKENS = 32;
/** Milliseconds of a call from the router to an instance. */
const CALL_MS = 0.5;
const NOBODY = { has: () => false, isHolder: () => true };

/** Cluster, trace and rate of a run. */
export interface RunOptions {
  readonly trace: Trace;
  readonly hardware: Hardware;
  readonly hashes: TraceHashes;
  readonly policy: Policy;
  readonly seed: number;
  /** Times of arrival are divided by this. */
  readonly speedUp: number;
  readonly numPrefill: number;
  readonly numDecode: number;
  readonly targets: Targets;
  readonly chunkTokens: number;
  readonly noise: number;
  readonly slownessOf?: (index: number) => number;
  /** The run ends when more requests have missed a target; undefined: it runs to its end. */
  readonly maxMisses?: number | undefined;
  /** Order of the instances' queues; first come first by default. */
  readonly queueOrder?: QueueOrderName | undefined;
  /** Whether tenants share an instance fairly, above the order of its queue; true by default. */
  readonly fairShares?: boolean | undefined;
  /** Weights of tenants by name; 1 by default. */
  readonly weights?: TenantWeights | undefined;
  /** Whether instances run the production engine; such a run is started by `runFull`. False by default. */
  readonly isFull?: boolean;
}

/** Runs a trace through a simulated cluster. */
export class ReplayRun {
  readonly #options: RunOptions;
  readonly #time = new ReplayTime();
  readonly #activity: Activity | undefined;
  readonly #cluster: SimulatedCluster;
  readonly #measured: RunMeasurements;
  readonly #tenants: RunTenants;
  #numPlaced = 0;
  #numEnded = 0;
  #numMisses = 0;
  #meanOutput = 256;

  constructor(options: RunOptions) {
    this.#options = options;
    const { trace, hardware, seed, policy, hashes, numPrefill, numDecode, targets, chunkTokens, noise } = options;
    this.#measured = new RunMeasurements(trace);
    this.#tenants = new RunTenants(trace, options.weights);
    this.#activity = options.isFull === true ? new Activity() : undefined;
    this.#cluster = new SimulatedCluster({
      activity: this.#activity,
      time: this.#time,
      seed,
      policy,
      hashes,
      numPrefill,
      numDecode,
      ledgerOf: this.#tenants.ledgerOf,
      maxModelLen: hardware.deviceKvTokens,
      sizesOf: (index) => ({
        hardware,
        chunkTokens,
        noise,
        slowness: options.slownessOf?.(index) ?? 1,
        blockTokens: trace.blockTokens,
        tbtTargetMs: targets.tbtMs,
        queueOrder: options.queueOrder,
        hasPriorities: trace.columns.priorities !== undefined,
        hasTenants: hasTenants(trace.columns),
        fairShares: options.fairShares,
      }),
    });
  }

  /** Runs the trace over the light model. */
  run(): RunResult {
    assert(!this.#activity, 'production engines run by promises');
    this.#scheduleArrivals();
    while (this.#hasMore && this.#time.next());
    return this.#figures();
  }

  /** Runs the trace over production engines. Rejects with the error of an engine. */
  async runFull(): Promise<RunResult> {
    const activity = this.#activity;
    assert(activity, 'the run was made for the light model');
    this.#scheduleArrivals();
    while (this.#hasMore && this.#time.next()) if (!activity.isQuiet) await activity.quiet();
    return this.#figures();
  }

  get #hasMore(): boolean {
    return this.#numEnded < this.#options.trace.numRequests && !this.#isCut;
  }

  get #isCut(): boolean {
    return this.#numMisses > (this.#options.maxMisses ?? Infinity);
  }

  #scheduleArrivals(): void {
    const { trace, speedUp } = this.#options;
    for (let i = 0; i < trace.numRequests; i++) {
      this.#time.at(trace.columns.arrivalMs[i]! / speedUp, () => {
        this.#place(i);
      });
    }
  }

  #figures(): RunResult {
    const { nodes } = this.#cluster;
    const sum = (of: (node: SimulatedNode) => number): number => nodes.reduce((all, node) => all + of(node), 0);
    return {
      ...this.#measured.byRequest,
      isCut: this.#isCut,
      numPreemptions: sum(({ engine }) => engine.numPreemptions),
      busyShare: sum(({ engine }) => engine.busyMs) / (nodes.length * this.#time.nowMs),
      tenantTimes: this.#tenants.times(),
      simulatedMs: this.#time.nowMs,
      numEvents: this.#time.numEvents,
    };
  }

  #hashesOf(i: number): readonly TraceHash[] {
    const { trace, hashes } = this.#options;
    const numBlocks = Math.max(0, Math.floor((trace.columns.inputTokens[i]! - 1) / trace.blockTokens));
    const from = trace.columns.hashOffsets[i]!;
    const found: TraceHash[] = [];
    for (let k = 0; k < numBlocks; k++) found.push(hashes.of(trace.columns.hashIds[from + k]!));
    return found;
  }

  #place(i: number): void {
    const { trace, speedUp, targets } = this.#options;
    const hashes = this.#hashesOf(i);
    const keys = new Int32Array(2 * hashes.length);
    hashes.forEach(({ low, high }, k) => {
      keys[2 * k] = low;
      keys[2 * k + 1] = high;
    });
    const numTokens = trace.columns.inputTokens[i]!;
    const outcome = this.#cluster.conductor.decide({
      requestId: String(i),
      numTokens,
      keys,
      maxLength: numTokens + trace.columns.outputTokens[i]!,
      avoided: NOBODY,
      targets,
      outputTokens: this.#meanOutput,
      waitedMs: this.#time.nowMs - trace.columns.arrivalMs[i]! / speedUp,
    });
    if (outcome.kind === 'wait') {
      this.#time.after(outcome.forMs, () => {
        this.#place(i);
      });
      return;
    }
    if (outcome.kind === 'place') this.#start(i, hashes, keys, outcome.chosen);
    else {
      this.#measured.byRequest.isRejected[i] = 1;
      this.#numMisses++;
      this.#numEnded++;
    }
    this.#numPlaced++;
    if (this.#numPlaced === trace.numRequests) this.#cluster.placedAll();
  }

  #start(i: number, hashes: readonly TraceHash[], keys: Int32Array, chosen: Chosen): void {
    const { trace } = this.#options;
    this.#measured.byRequest.predictedMs[i] = chosen.explanation?.prediction?.ttftMs ?? NaN;
    const cluster = this.#cluster;
    const decode = cluster.nodeOf(chosen.decode);
    const prefill = chosen.prefill && cluster.nodeOf(chosen.prefill);
    const numTokens = trace.columns.inputTokens[i]!;
    const computing = chosen.decodeSources.find(({ isComputing }) => isComputing);
    const common = {
      request: i,
      hashes,
      priority: trace.columns.priorities?.[i] ?? 0,
      sharer: this.#tenants.sharerOf(i),
      outputTokens: trace.columns.outputTokens[i]!,
      expectedTokens: this.#meanOutput,
    };
    const endTokens = Math.floor((numTokens - 1) / HANDOFF_TOKENS) * HANDOFF_TOKENS;
    const arrivedMs = trace.columns.arrivalMs[i]! / this.#options.speedUp;
    const tokens = this.#measured.tokensOf(i, arrivedMs);
    this.#watchTtft(i, arrivedMs);
    const placement = decode.instance.place(chosen.work.decode);
    const { kept, fetched } = this.#promise(chosen, keys);
    const sequence: SimulatedSequence = new SimulatedSequence({
      ...common,
      kind: 'decode',
      target: numTokens,
      get expected() {
        return handoff;
      },
      onToken: ({ generated }) => {
        tokens.came(generated, this.#time.nowMs);
        if (generated === 1) {
          kept();
          fetched();
        }
      },
      onTokens: ({ generated }, gaps, lastMs) => {
        tokens.cameAfter(gaps, generated, lastMs);
      },
      onEnd: () => {
        decode.instance.end(placement);
        this.#ended(i, sequence, this.#time.nowMs - arrivedMs);
      },
    });
    const handoff: Handoff | undefined =
      prefill && computing
        ? { engine: decode.engine, sequence, endTokens, isDone: false, sentTokens: computing.start * trace.blockTokens }
        : undefined;
    this.#call(decode, placement, sequence, chosen.decodeSources);
    if (!prefill || !handoff) return;
    this.#prefill(prefill, chosen, { ...common, kind: 'prefill', target: endTokens, handoff }, kept);
  }

  /** Promises the blocks where they are computed, and counts the fetch of a decode instance that has them computed elsewhere. */
  #promise(
    { decode, prefill, heldTokens, decodeSources, prefillSources }: Chosen,
    keys: Int32Array,
  ): { readonly kept: () => void; readonly fetched: () => void } {
    const { conductor } = this.#cluster;
    if (!prefill) return { kept: conductor.promise(decode, keys, heldTokens, decodeSources), fetched: () => undefined };
    return {
      kept: conductor.promise(prefill, keys, heldTokens, prefillSources),
      fetched: conductor.fetch(decode, decodeSources),
    };
  }

  #prefill(
    node: SimulatedNode,
    { work, prefillSources }: Chosen,
    options: Omit<SequenceOptions, 'onToken' | 'onTokens' | 'onEnd'>,
    kept: () => void,
  ): void {
    const { instance } = node;
    const placement = instance.place(work.prefill ?? work.decode);
    const sequence: SimulatedSequence = new SimulatedSequence({
      ...options,
      onToken: () => undefined,
      onTokens: () => undefined,
      onEnd: () => {
        kept();
        instance.end(placement);
        this.#measured.count(options.request, sequence.tokens);
      },
    });
    this.#call(node, placement, sequence, prefillSources);
  }

  /** Counts a request as missed that has no first token when its target is over, so that a hopeless run ends early. */
  #watchTtft(i: number, arrivedMs: number): void {
    const { ttftMs } = this.#options.targets;
    if (ttftMs === undefined) return;
    this.#time.at(arrivedMs + ttftMs, () => {
      if (Number.isNaN(this.#measured.byRequest.ttftMs[i])) this.#numMisses++;
    });
  }

  #call(node: SimulatedNode, placement: number, sequence: SimulatedSequence, sources: Chosen['decodeSources']): void {
    const held: SimulatedSource[] = sources
      .filter(({ isComputing }) => !isComputing)
      .map(({ address, start, end }) => ({ holder: this.#cluster.atAddress(address).engine, start, end }));
    this.#time.after(CALL_MS, () => {
      node.engine.submit(sequence, held);
      this.#cluster.saw(node, placement);
    });
  }

  #ended(i: number, { tokens, generated }: SimulatedSequence, totalMs: number): void {
    this.#measured.count(i, tokens);
    this.#numEnded++;
    const gapMs = this.#measured.ended(i, totalMs);
    const { ttftMs = Infinity, tbtMs = Infinity } = this.#options.targets;
    if (gapMs > tbtMs && this.#measured.byRequest.ttftMs[i]! <= ttftMs) this.#numMisses++;
    this.#meanOutput += 0.01 * (generated - this.#meanOutput);
  }
}
