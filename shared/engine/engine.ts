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
import type { Executable, SampleResult } from '../../kernels/device.ts';
import type { Clock } from '../base/clock.ts';
import type { AnchoredHash } from '../kv/block_key.ts';
import { widestOf, type KvSpec } from '../kv/kv_spec.ts';
import type { SampledMessage } from '../protocol/messages.ts';
import { BlockPool } from './block_pool.ts';
import { SamplingState, MAX_HOST_SAMPLED_ROWS } from './sampling_state.ts';
import type { EngineEvent } from './engine_events.ts';
import { FirstStep } from './first_step.ts';
import { exportHeld, type WantedBlock } from './held_blocks.ts';
import { Incoming, type IncomingBlock } from './incoming_blocks.ts';
import { reportedToken } from './sampler.ts';
import { SampleGroups } from './sample_groups.ts';
import { Scheduler } from './scheduler.ts';
import { ROW_UNIT, StepBudget, type StepTimes } from './step_budget.ts';
import { Sequence, type SequenceRequest, type SequenceState } from './sequence.ts';
import { numPromptTop, type StepRows } from './step.ts';
import type { Candidate } from './step_plan.ts';
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
  /** Called when `step` has something to do although nothing was submitted: a group of samples has waited long enough. */
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
  readonly #stepBudget: StepBudget;
  readonly #incoming: Incoming;
  readonly #blockSize: number;
  /** Tokens that the widest layer of all sees; 0: all. */
  readonly #widest: number;
  readonly #firstStep: FirstStep;
  readonly #groups: SampleGroups;
  readonly #submission: StepSubmission;
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
    this.#blockSize = blockSize;
    this.#widest = widestOf(frames.map(({ window }) => window));
    this.pool = new BlockPool(numBlocks, (key) => {
      emit({ kind: 'removed', key });
    });
    this.#sampling = new SamplingState(executable, maxNumSeqs);
    this.#stepBudget = new StepBudget(options.stepMs, options.firstSteps);
    this.#incoming = new Incoming({
      ...{ executable, pool: this.pool, blockSize, frames },
      onWhole: (block, hash) => {
        this.#seal(block, hash, 'fetched');
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
    this.#submission = new StepSubmission(executable, {
      ...{ blockSize, emit, exportEarly: options.exportEarly },
      ...{ sampling: this.#sampling, scheduler: this.#scheduler, groups: this.#groups, firstStep: this.#firstStep },
    });
  }

  get load(): { numRunning: number; numWaiting: number; numPreemptions: number } {
    const { numHeld, numWaiting, numPreemptions } = this.#scheduler;
    return { numRunning: numHeld, numWaiting: numWaiting + this.#groups.numFollowing, numPreemptions };
  }

  /** @throws Failure `overloaded` or `context_too_long`. */
  submit(request: SequenceRequest): void {
    assert(request.tokens.length > 0, 'a sequence has at least one token');
    const sequence = new Sequence(request, this.#options.spec, this.#clock.nowMs());
    this.#scheduler.check(sequence, this.#groups.numFollowing);
    const role = request.group ? this.#groups.join(sequence, request.group) : 'alone';
    if (role !== 'follows') this.#scheduler.enqueue(sequence);
    this.#sequences.set(request.id, sequence);
  }

  /** Forgets a sequence; an unknown id was finished already. */
  cancel(id: number): void {
    const sequence = this.#sequences.get(id);
    if (!sequence) return;
    const next = this.#groups.leave(sequence);
    if (next) this.#scheduler.enqueue(next);
    this.#scheduler.remove(sequence);
    this.#sampling.close(sequence);
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
    const { work, admitted, isShort } = this.#scheduler.schedule({
      promptRows: (tokenRows) =>
        Math.min(this.#stepBudget.promptRows(tokenRows), Math.max(ROW_UNIT, this.#executable.maxRowsNow - tokenRows)),
      isIdle,
      candidatesOf: (sequences) => this.#candidatesOf(sequences),
      maxHostSamples: MAX_HOST_SAMPLED_ROWS,
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
      this.#steps.push(this.#submission.submit(work, nowMs));
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
      this.#completeRows(rows, results, at);
      at += rows.prompt.end - rows.prompt.start + rows.sampled.length;
    }
    step.early?.onEnd();
    for (const sequence of step.late) if (!this.#isGone(sequence)) this.#scheduler.enqueue(sequence);
    this.#finishIdlePrefills();
  }

  #isGone(sequence: Sequence): boolean {
    return this.#sequences.get(sequence.request.id) !== sequence;
  }

  /**
   * Completes the rows of one sequence. `at` is the index of their first result; results of prompt tokens come before those of sampled
   * tokens.
   */
  #completeRows(rows: StepRows, results: readonly SampleResult[], at: number): void {
    const { sequence, prompt, sampled } = rows;
    sequence.cursor.stepReturned();
    // The sequence was cancelled or finished while the device computed: its token is dropped, and its blocks are released once no step
    // touches them.
    if (this.#isGone(sequence)) {
      this.pool.release(sequence.releaseEnded());
      return;
    }
    this.#advance(rows);
    const behind = at + prompt.end - prompt.start;
    if (behind > at) this.#reportPrompt(rows, results.slice(at, behind));
    for (let i = 0; i < sampled.length; i++) {
      const position = sampled[i];
      const result = results[behind + i];
      if (position === undefined || !result || this.#isGone(sequence)) return;
      sequence.cursor.sampleReturned();
      const message = this.#sampling.sampledMessage(sequence, position, result);
      if (message) this.#applyToken(sequence, message);
      else this.#fail(sequence);
    }
  }

  #reportPrompt({ sequence, prompt }: StepRows, results: readonly SampleResult[]): void {
    const tokens = sequence.tokens.view();
    const numTop = numPromptTop(sequence);
    const reported = results.map((row, i) => {
      const position = prompt.start + i;
      return reportedToken(numTop, position, tokens[position]!, row.askedLogits[0]!, row);
    });
    sequence.promptReported(prompt.end);
    this.#emit({ kind: 'prompt', id: sequence.request.id, tokens: reported });
  }

  #fail({ request: { id } }: Sequence): void {
    this.cancel(id);
    const message = 'no token can be sampled: a logit of the model is no number, or every token is forbidden';
    this.#emit({ kind: 'refused', id, code: 'internal', message });
  }

  /** Counts computed tokens and names the blocks that became full. */
  #advance({ sequence, start, count, after }: StepRows): void {
    const blockSize = this.#blockSize;
    const { request, times, tokens, chain, cursor } = sequence;
    cursor.complete(after);
    times.numRun += count;
    if (tokens.length >= (chain.hashes.length + 1) * blockSize) chain.extend(tokens.view());
    for (let index = Math.floor(start / blockSize); index < Math.floor((start + count) / blockSize); index++) {
      const [block, hash] = [sequence.blocks[index], chain.hashes[index]];
      assert(block !== undefined && hash, `block ${index} of ${tokens.length} tokens is computed but not named`);
      this.#seal(block, hash, 'computed');
    }
    if (request.kind === 'prefill')
      this.#emit({ kind: 'progress', id: request.id, numReady: cursor.computed, numRun: times.numRun });
    // A prefill keeps its blocks for others to fetch; a decode sequence releases blocks that lie outside its widest attention window.
    else if (this.#widest > 0) this.pool.release(sequence.dropOutside(this.#widest), 0);
  }

  #seal(block: number, hash: AnchoredHash, origin: 'computed' | 'fetched'): void {
    if (this.pool.seal(block, hash)) this.#emit({ kind: 'stored', hash, origin });
  }

  #applyToken(sequence: Sequence, sampled: SampledMessage): void {
    const { id, tokens: prompt, request } = sequence.request;
    const isFirst = sequence.tokens.length === prompt.length;
    sequence.tokens.push(sampled.token);
    const isFull = sequence.tokens.length >= request.maxLength;
    const finish = request.stopTokenIds.includes(sampled.token) ? 'stop' : isFull ? 'length' : undefined;
    const report = isFirst ? sequence.times.report(this.#clock.nowMs()) : undefined;
    this.#emit({ kind: 'token', id, sampled, report, finish });
    if (finish) this.cancel(id);
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
