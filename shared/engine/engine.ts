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
 * (`deliver`), full blocks go out as bytes in host memory (`exportTo`), and events are emitted in order.
 *
 * E1 holds after every step; `checkIntegrity` verifies it in tests.
 */
import assert from 'node:assert/strict';
import { MAX_MASKS, type Executable } from '../../kernels/device.ts';
import type { Clock } from '../base/clock.ts';
import type { FailureCode } from '../base/failure.ts';
import type { KvSpec } from '../kv/kv_spec.ts';
import { BlockPool } from './block_pool.ts';
import { SamplingState, MAX_HOST_SAMPLED_ROWS } from './sampling_state.ts';
import { Embeddings } from './embeddings.ts';
import type { EngineEvent } from './engine_events.ts';
import { FirstStep } from './first_step.ts';
import { exportHeld, type WantedBlock } from './held_blocks.ts';
import { Incoming, type IncomingBlock } from './incoming_blocks.ts';
import { SampleGroups } from './sample_groups.ts';
import { Scheduler } from './scheduler.ts';
import { ROW_UNIT, StepBudget, type StepTimes } from './step_budget.ts';
import { Sequence, type SequenceRequest, type SequenceState } from './sequence.ts';
import { StepCompletion } from './step_completion.ts';
import type { Candidate } from './step_plan.ts';
import { TokenConstraint, type Grammars } from './token_constraint.ts';
import { StepSubmission, type InFlightStep, type SubmissionOptions } from './step_submission.ts';

/** Sizes, limits and callbacks of an engine. */
export interface EngineOptions {
  readonly spec: KvSpec;
  readonly numBlocks: number;
  readonly chunkTokens: number;
  readonly maxNumSeqs: number;
  readonly maxWaiting: number;
  /**
   * Most milliseconds of a step while sequences wait for tokens: prompt rows may not lengthen it further. 0: two and a half times the
   * duration of a step without prompt rows.
   */
  readonly stepMs: number;
  /** Times of the warm-up's steps, with which the step budget starts. */
  readonly firstSteps?: readonly StepTimes[];
  readonly emit: (event: EngineEvent) => void;
  readonly exportEarly?: SubmissionOptions['exportEarly'];
  /** Opens the grammars of outputs; without it, requests with a grammar are refused. */
  readonly grammars?: Grammars | undefined;
  /**
   * Called when `step` has something to do although nothing was submitted: a group of samples has waited long enough, or a mask of
   * allowed tokens has come, or failed to.
   */
  readonly onReady?: () => void;
}

/** The engine of one device: schedules sequences, submits steps, completes them, and emits the events. */
export class Engine {
  readonly pool: BlockPool;
  readonly #executable: Executable;
  readonly #options: EngineOptions;
  readonly #emit: EngineOptions['emit'];
  readonly #clock: Clock;
  readonly #scheduler: Scheduler;
  readonly #sampling: SamplingState;
  readonly #embeddings: Embeddings;
  readonly #stepBudget: StepBudget;
  readonly #incoming: Incoming;
  readonly #firstStep: FirstStep;
  readonly #groups: SampleGroups;
  readonly #submission: StepSubmission;
  readonly #completion: StepCompletion;
  readonly #sequences = new Map<number, Sequence>();
  /** Submitted steps, in the order in which the device runs them; at most one more than the device takes ahead. */
  readonly #steps: InFlightStep[] = [];
  #completedMs = 0;
  lastStepMs = 0;
  /** Number of completed steps. */
  numSteps = 0;

  constructor(executable: Executable, options: EngineOptions, clock: Clock) {
    const { spec, chunkTokens, maxNumSeqs, maxWaiting, numBlocks, emit } = options;
    const { blockSize, frames } = spec;
    this.#executable = executable;
    this.#options = options;
    this.#emit = emit;
    this.#clock = clock;
    this.pool = new BlockPool(numBlocks, (key) => {
      emit({ kind: 'removed', key });
    });
    this.#sampling = new SamplingState(executable, maxNumSeqs);
    this.#embeddings = new Embeddings(executable.hiddenWidth, clock, emit);
    this.#stepBudget = new StepBudget(options.stepMs, options.firstSteps);
    this.#incoming = new Incoming({
      ...{ executable, pool: this.pool, blockSize, frames },
      onWhole: (block, hash) => {
        if (this.pool.seal(block, hash)) emit({ kind: 'stored', hash, origin: 'fetched' });
      },
    });
    this.#firstStep = new FirstStep(executable, {
      ...{ blockSize, chunkTokens, frames },
      onSection: (sequence) => {
        this.pool.release(sequence.releaseEnded());
      },
    });
    this.#scheduler = new Scheduler(this.pool, { blockSize, chunkTokens, maxNumSeqs, maxWaiting }, (sequence) => {
      this.#sampling.close(sequence);
      emit({ kind: 'preempted', id: sequence.request.id });
    });
    this.#groups = new SampleGroups(clock, (leader) => {
      if (leader) this.#scheduler.enqueue(leader);
      options.onReady?.();
    });
    this.#completion = new StepCompletion({
      ...{ spec, pool: this.pool, sampling: this.#sampling, embeddings: this.#embeddings, clock, emit },
      isGone: (sequence) => this.#sequences.get(sequence.request.id) !== sequence,
      cancel: (id) => {
        this.cancel(id);
      },
    });
    this.#submission = new StepSubmission(executable, {
      ...{ blockSize, emit, exportEarly: options.exportEarly },
      ...{ sampling: this.#sampling, embeddings: this.#embeddings, scheduler: this.#scheduler },
      ...{ groups: this.#groups, firstStep: this.#firstStep },
    });
  }

  get load(): { numRunning: number; numWaiting: number; numPreemptions: number } {
    const { numHeld, numWaiting, numPreemptions } = this.#scheduler;
    return { numRunning: numHeld, numWaiting: numWaiting + this.#numBeside, numPreemptions };
  }

  /** Number of sequences that wait beside the queue: for the first sample of their group, or for the step that left them out. */
  get #numBeside(): number {
    return this.#groups.numFollowing + this.#steps.reduce((sum, { late }) => sum + late.length, 0);
  }

  /** @throws Failure `overloaded` or `context_too_long`. */
  submit(request: SequenceRequest): void {
    assert(request.tokens.length > 0, 'a sequence has at least one token');
    const constraint = this.#constraintOf(request);
    const sequence = new Sequence(request, this.#options.spec, this.#clock.nowMs(), constraint);
    try {
      this.#scheduler.check(sequence, this.#numBeside);
    } catch (error) {
      constraint?.close();
      throw error;
    }
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
   * Returns the state of a sequence; undefined when it is unknown, or finished. Deliveries are copied into a loading sequence; a
   * waiting one has no device blocks yet.
   */
  stateOf(id: number): SequenceState['kind'] | undefined {
    return this.#sequences.get(id)?.state.kind;
  }

  /** Copies verified blocks into the device; ignores blocks of a sequence that is not loading. */
  async deliver(id: number, incoming: readonly IncomingBlock[]): Promise<void> {
    const sequence = this.#sequences.get(id);
    if (sequence?.state.kind === 'loading') await this.#incoming.put(sequence, incoming);
  }

  /** Ends the fetch of a sequence: no more blocks will come, and the rest is computed. */
  proceed(id: number): void {
    this.#sequences.get(id)?.run();
  }

  /** Copies the KV of blocks into their `out` buffers; returns for each whether the pool held the block. */
  exportTo(wanted: readonly WantedBlock[]): Promise<boolean[]> {
    return exportHeld(this.pool, this.#executable, wanted);
  }

  /** Submits the next step, and completes the oldest one when the device takes no more. Returns false when there was nothing to do. */
  async step(): Promise<boolean> {
    const isIdle = this.#steps.length === 0;
    const { work, admitted, isShort, masksLeft } = this.#scheduler.schedule({
      promptRows: (tokenRows) =>
        Math.min(this.#stepBudget.promptRows(tokenRows), Math.max(ROW_UNIT, this.#executable.maxRowsNow - tokenRows)),
      isIdle,
      candidatesOf: (sequences) => this.#candidatesOf(sequences),
      maxHostSamples: MAX_HOST_SAMPLED_ROWS,
      maxMasks: MAX_MASKS,
      numFollowing: this.#groups.numFollowing,
    });
    const nowMs = this.#clock.nowMs();
    for (const { request, times, cursor } of admitted) {
      this.#emit({ kind: 'admitted', id: request.id });
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
    return this.#firstStep.advance(this.#sequences.values());
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
    if (!step.isRest) this.#stepBudget.took({ ...step.numRows, ms: this.lastStepMs });
    this.numSteps++;
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
