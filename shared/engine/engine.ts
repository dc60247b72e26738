/**
 * The engine: one loop of schedule, submit and complete.
 *
 *   schedule(t + 1) ─► submit(t + 1) ─► complete(t): its tokens, its full blocks
 *
 * A device that computes by itself is given step t + 1 before t has returned: a decode row names "the token that is sampled in t". A
 * stop token, a limit or a cancel takes effect when t is complete; the results of t + 1 for that sequence are dropped, and its
 * blocks are released when t + 1 is complete too. Sequences whose tokens the host samples are not in t + 1.
 *
 * The engine owns the device and the device blocks. It knows no network and no disk: fetched records come in as bytes in host memory
 * (`incoming`), full blocks go out as bytes in host memory (`exportTo`), and events are emitted in order.
 *
 * E1 holds after every step; `checkIntegrity` verifies it in tests.
 */
import assert from 'node:assert/strict';
import { MAX_MASKS, type Executable } from '../../kernels/device.ts';
import type { Clock } from '../base/clock.ts';
import type { FailureCode } from '../base/failure.ts';
import type { AnchoredHash, BlockHash, BlockKey, TenantId } from '../kv/block_key.ts';
import type { InstanceWork, StepTime } from '../protocol/instance_work.ts';
import { IncomingRecords } from './incoming_records.ts';
import { ArrivingStep } from './arriving_step.ts';
import { BlockPool } from './block_pool.ts';
import { countedTime } from './engine_time.ts';
import { SamplingState, MAX_HOST_SAMPLED_ROWS } from './sampling_state.ts';
import { Embeddings } from './embeddings.ts';
import { stateIntervalOf, type EngineOptions } from './engine_options.ts';
import { EngineHistograms } from './engine_histograms.ts';
import type { EngineLoad } from './engine_messages.ts';
import { exportHeld, type WantedBlock } from './held_blocks.ts';
import { RecurrentStates } from './recurrent_states.ts';
import { RemainingWork } from './remaining_work.ts';
import { SampleGroups } from './sample_groups.ts';
import { Scheduler } from './scheduler.ts';
import { ROW_UNIT } from './prompt_time.ts';
import { StepPacing } from './step_pacing.ts';
import { Sequence, type SequenceState } from './sequence.ts';
import type { SequenceRequest } from './sequence_request.ts';
import { StepCompletion } from './step_completion.ts';
import type { Candidate } from './step_plan.ts';
import { TokenConstraint } from './token_constraint.ts';
import { StepSubmission, type InFlightStep } from './step_submission.ts';

/** The engine of one device: schedules sequences, submits steps, completes them, and emits the events. */
export class Engine {
  readonly pool: BlockPool;
  /** Recurrent states; undefined for a model without recurrent layers. */
  readonly states: RecurrentStates | undefined;
  /** Takes what fetches bring. */
  readonly incoming: IncomingRecords;
  readonly #executable: Executable;
  readonly #options: EngineOptions;
  readonly #emit: EngineOptions['emit'];
  readonly #clock: Clock;
  readonly #scheduler: Scheduler;
  readonly #sampling: SamplingState;
  readonly #embeddings: Embeddings;
  readonly #pacing: StepPacing;
  readonly #arrivingStep: ArrivingStep;
  readonly #groups: SampleGroups;
  readonly #work: RemainingWork;
  readonly #submission: StepSubmission;
  readonly #completion: StepCompletion;
  readonly #sequences = new Map<number, Sequence>();
  /** Submitted steps, in the order in which the device runs them; at most one more than the device takes ahead. */
  readonly #steps: InFlightStep[] = [];
  #completedMs = 0;
  lastStepMs = 0;
  /** Number of completed steps. */
  numSteps = 0;
  readonly histograms: EngineHistograms;

  constructor(executable: Executable, options: EngineOptions, clock: Clock) {
    const { spec, chunkTokens, maxNumSeqs, numBlocks, emit, queueOrder = 'first_come' } = options;
    const { blockSize, frames } = spec;
    this.#executable = executable;
    this.#options = options;
    this.#emit = emit;
    this.#clock = clock;
    this.histograms = new EngineHistograms(numBlocks, clock);
    const onRemoved = (key: BlockKey): void => {
      emit({ kind: 'removed', key });
    };
    this.pool = new BlockPool(numBlocks, onRemoved, undefined, this.histograms.blocks);
    const { stateInterval = stateIntervalOf(spec) } = options;
    const hasStates = executable.numStateSlots > 0;
    this.states = hasStates ? new RecurrentStates({ executable, blockSize, interval: stateInterval, emit }) : undefined;
    const { pool, states } = this;
    this.#sampling = new SamplingState(executable, maxNumSeqs);
    this.#embeddings = new Embeddings(executable.hiddenWidth, clock, emit);
    this.#pacing = new StepPacing(options);
    this.#work = new RemainingWork(options, pool, states, this.#pacing);
    const sequenceOf = (id: number): Sequence | undefined => this.#sequences.get(id);
    const onStored = (hash: AnchoredHash): void => {
      emit({ kind: 'stored', hash, origin: 'fetched' });
    };
    this.incoming = new IncomingRecords({ executable, pool, states, spec, sequence: sequenceOf, onStored });
    const onSection = (sequence: Sequence): void => {
      pool.release(sequence.releaseEnded());
    };
    this.#arrivingStep = new ArrivingStep(executable, { blockSize, chunkTokens, frames, onSection });
    const stepTime = (): StepTime => countedTime(this.#pacing.fit);
    const limits = { ...options, blockSize, queueOrder, stepTime };
    const onPreempted = (sequence: Sequence): void => {
      this.#sampling.close(sequence);
      emit({ kind: 'preempted', id: sequence.request.id });
    };
    this.#scheduler = new Scheduler(pool, limits, onPreempted, states);
    this.#groups = new SampleGroups(clock, (leader) => {
      if (leader) this.#scheduler.enqueue(leader);
      options.onReady?.();
    });
    const parts = { spec, pool, states, sampling: this.#sampling, embeddings: this.#embeddings, clock, emit };
    this.#completion = new StepCompletion({
      ...parts,
      onFinished: (numTokens) => {
        this.#work.finished(numTokens);
      },
      isGone: (sequence) => this.#sequences.get(sequence.request.id) !== sequence,
      cancel: (id) => {
        this.cancel(id);
      },
    });
    this.#submission = new StepSubmission(executable, {
      ...parts,
      blockSize,
      exportEarly: options.exportEarly,
      scheduler: this.#scheduler,
      groups: this.#groups,
      arrivingStep: this.#arrivingStep,
    });
  }

  get load(): Pick<EngineLoad, 'numRunning' | 'numWaiting' | 'numDeferred' | 'numFetching' | 'numPreemptions'> {
    const { numHeld, numWaiting, numPreemptions } = this.#scheduler;
    const [numDeferred, numFetching] = [this.#numOutside, this.#scheduler.numFetching()];
    return { numRunning: numHeld, numWaiting: numWaiting + numDeferred, numDeferred, numFetching, numPreemptions };
  }

  /** Work that the sequences have left; undefined before anything is known of the time of a step. */
  get workLeft(): InstanceWork | undefined {
    return this.#work.left(this.#sequences.values());
  }

  /** Number of sequences that wait outside the queue: for the first sample of their group, or for the step that left them out. */
  get #numOutside(): number {
    return this.#groups.numFollowing + this.#steps.reduce((sum, { late }) => sum + late.length, 0);
  }

  /** @throws Failure `overloaded` or `context_too_long`. */
  submit(request: SequenceRequest): void {
    assert(request.tokens.length > 0, 'a sequence has at least one token');
    const constraint = this.#constraintOf(request);
    const sequence = new Sequence(request, this.#options.spec, this.#clock.nowMs(), constraint);
    let displaced: Sequence | undefined;
    try {
      displaced = this.#scheduler.check(sequence, this.#numOutside);
    } catch (error) {
      constraint?.close();
      throw error;
    }
    if (displaced) this.#refuse(displaced.request.id, 'overloaded', 'the queue is full, and others wait with less');
    const role = request.group ? this.#groups.join(sequence, request.group) : 'alone';
    if (role !== 'follows') this.#scheduler.enqueue(sequence);
    this.#sequences.set(request.id, sequence);
  }

  /** Opens the constraint of a request, if it has one. When its mask cannot be had, the sequence is refused. */
  #constraintOf({ id, tokens, request }: SequenceRequest): TokenConstraint | undefined {
    const { constraint, promptLength, stopTokenIds } = request;
    if (!constraint) return undefined;
    const { grammars, onReady } = this.#options;
    return new TokenConstraint(constraint, {
      vocabSize: this.#executable.sampling.vocab,
      stopTokenIds,
      output: [...tokens.subarray(promptLength)],
      grammars,
      onReady: () => onReady?.(),
      onFailed: ({ code, message }) => {
        this.#refuse(id, code, message);
        onReady?.();
      },
    });
  }

  #refuse(id: number, code: FailureCode, message: string): void {
    if (!this.#sequences.has(id)) return;
    this.cancel(id);
    this.#emit({ kind: 'refused', id, code, message });
  }

  /** Forgets a sequence; an unknown id was finished already. */
  cancel(id: number): void {
    const sequence = this.#sequences.get(id);
    if (!sequence) return;
    sequence.constraint?.close();
    const next = this.#groups.leave(sequence);
    if (next) this.#scheduler.enqueue(next);
    this.#scheduler.remove(sequence);
    this.#sampling.close(sequence);
    this.#embeddings.close(sequence);
    this.#sequences.delete(id);
  }

  /**
   * Returns the state of a sequence; undefined when it is unknown, or finished. A waiting one has no device blocks yet, into which
   * deliveries could be copied.
   */
  stateOf(id: number): SequenceState['kind'] | undefined {
    return this.#sequences.get(id)?.state.kind;
  }

  /** Whether blocks that are delivered for a sequence are copied into the device now. */
  takesBlocks(id: number): boolean {
    return this.#sequences.get(id)?.takesBlocks ?? false;
  }

  /** Copies the KV of blocks, or states, into their `out` buffers; returns for each whether it was held here. All are of one kind. */
  exportTo(wanted: readonly WantedBlock[]): Promise<boolean[]> {
    if (this.states && wanted[0]?.hash.kind === 'state') return this.states.exportTo(wanted);
    return exportHeld(this.pool, (blocks, outs) => this.#executable.exportBlocks(blocks, outs), wanted);
  }

  /** Frees the blocks and states of a tenant that no sequence uses. Returns their number, and that of those that are used. */
  forget(tenant: TenantId): { readonly numFreed: number; readonly numUsed: number } {
    const blocks = this.pool.forget(tenant);
    const states = this.states?.pool.forget(tenant);
    return { numFreed: blocks.numFreed + (states?.numFreed ?? 0), numUsed: blocks.numUsed + (states?.numUsed ?? 0) };
  }

  /** Returns the own name of a block or state that a reader asks for by key and digest alone; undefined when it is not here. */
  nameOf(hash: BlockHash): BlockHash | undefined {
    return this.pool.nameOf(hash) ?? this.states?.pool.nameOf(hash);
  }

  /** After a step that had nothing to do: milliseconds until the next may have, although nothing happens meanwhile; undefined: never. */
  get recheckMs(): number | undefined {
    return this.#scheduler.recheckMs;
  }

  /** Submits the next step, and completes the oldest one when the device takes no more. Returns false when there was nothing to do. */
  async step(): Promise<boolean> {
    const isIdle = this.#steps.length === 0;
    const nowMs = this.#clock.nowMs();
    const { work, admitted, isShort, masksLeft } = this.#scheduler.schedule({
      promptRows: (tokenRows) =>
        Math.min(this.#pacing.promptRows(tokenRows), Math.max(ROW_UNIT, this.#executable.maxRowsNow - tokenRows)),
      promptTime: (tokens) => this.#pacing.promptTime(tokens),
      nowMs,
      isIdle,
      keepBlocks: this.#options.keepBlocks,
      hasDeliveries: this.#options.hasDeliveries,
      candidatesOf: (sequences) => this.#candidatesOf(sequences),
      maxHostSamples: MAX_HOST_SAMPLED_ROWS,
      maxMasks: MAX_MASKS,
      numFollowing: this.#groups.numFollowing,
    });
    for (const { request, times, cursor, restore } of admitted) {
      this.#emit({ kind: 'admitted', id: request.id, restore });
      times.admitted(nowMs, cursor.computed);
    }
    for (const { sequence } of work) sequence.times.ready(nowMs);
    // When blocks run short while steps are in flight, nothing is submitted: preemption needs an idle device.
    const hasSubmitted = work.length > 0 && !(isShort && !isIdle);
    if (hasSubmitted) {
      this.#emit({ kind: 'planned' });
      this.#steps.push(this.#submission.submit(work, masksLeft, nowMs));
    }
    if (this.#steps.length > this.#executable.numAhead || (!hasSubmitted && this.#steps.length > 0)) {
      await this.#complete();
      return true;
    }
    if (this.#finishIdlePrefills() || hasSubmitted || admitted.length > 0) return true;
    return this.#arrivingStep.advance(this.#sequences.values());
  }

  /** Completes every submitted step. */
  async drain(): Promise<void> {
    while (this.#steps.length > 0) await this.#complete();
  }

  /** Returns the sequences that may be computed now; one that leads an incomplete group only up to the row that it samples from. */
  #candidatesOf(sequences: readonly Sequence[]): readonly Candidate<Sequence>[] {
    const candidates = this.#sampling.candidatesOf(sequences);
    if (this.#groups.isEmpty) return candidates;
    return candidates.map((one) => (this.#groups.maySample(one.sequence) ? one : { ...one, sampledBy: 'waits' }));
  }

  /** Completes the oldest submitted step: awaits its results and emits its events. */
  async #complete(): Promise<void> {
    const step = this.#steps[0];
    assert(step, 'a step that was submitted');
    const results = await step.results;
    this.#steps.shift();
    const nowMs = this.#clock.nowMs();
    this.lastStepMs = nowMs - Math.max(step.submittedMs, this.#completedMs);
    this.#completedMs = nowMs;
    if (!step.isRest) this.#pacing.took({ ...step.work, ms: this.lastStepMs });
    this.numSteps++;
    this.histograms.stepped(step.rows);
    let at = 0;
    for (const rows of step.rows) {
      this.#completion.complete(rows, results, at);
      at += rows.prompt.end - rows.prompt.start + rows.sampled.length;
    }
    step.early?.onEnd();
    for (const sequence of step.late)
      if (this.#sequences.get(sequence.request.id) === sequence) this.#scheduler.enqueue(sequence);
    this.#finishIdlePrefills();
  }

  /**
   * Ends prefill sequences whose blocks are all present, which may need no computing when every block was hit or fetched. Returns
   * whether any has ended.
   */
  #finishIdlePrefills(): boolean {
    let hasFinished = false;
    // `cancel` deletes the entry from the map; iteration over a Map continues with the next one.
    for (const { request, state, cursor, target, times } of this.#sequences.values()) {
      if (request.kind !== 'prefill' || state.kind !== 'running' || cursor.computed < target) continue;
      this.#emit({ kind: 'prefilled', id: request.id, report: times.report(this.#clock.nowMs()) });
      this.cancel(request.id);
      hasFinished = true;
    }
    return hasFinished;
  }
}
