/** Gives the device its steps: builds each, forks samples from the row that is sampled, and says what is exported while it runs. */
import type { Executable, SampleResult } from '../../kernels/device.ts';
import { numPrefillBlocks, type AnchoredHash } from '../kv/block_key.ts';
import type { ArrivingStep } from './arriving_step.ts';
import type { Embeddings } from './embeddings.ts';
import type { EngineEvent } from './engine_events.ts';
import type { SampleGroups } from './sample_groups.ts';
import type { RecurrentStates } from './recurrent_states.ts';
import type { SamplingState } from './sampling_state.ts';
import type { BlockCopy, Scheduler } from './scheduler.ts';
import type { Sequence } from './sequence.ts';
import { buildStep, exportOf, type EarlyExport, type StepRows } from './step.ts';
import type { StepTimes } from './step_budget.ts';
import { isTokenRow, workOf } from './step_fit.ts';
import type { PlannedRows } from './step_plan.ts';

/** A step that the device was given. */
export interface InFlightStep {
  readonly rows: readonly StepRows[];
  readonly results: Promise<SampleResult[]>;
  readonly submittedMs: number;
  /** Work of the step, without its duration. */
  readonly work: Omit<StepTimes, 'ms'>;
  readonly early: EarlyExport | undefined;
  /** Whether ArrivingStep has computed a section of it before; its duration is then not a measure of a step. */
  readonly isRest: boolean;
  /** Followers of its samples that could not be forked: they are queued when the step has returned, and hit its full blocks. */
  readonly late: readonly Sequence[];
}

/** Parts of an engine that a submission needs. */
export interface SubmissionOptions {
  readonly blockSize: number;
  readonly sampling: SamplingState;
  readonly embeddings: Embeddings;
  readonly scheduler: Scheduler;
  readonly groups: SampleGroups;
  readonly arrivingStep: ArrivingStep;
  readonly states: RecurrentStates | undefined;
  readonly emit: (event: EngineEvent) => void;
  /**
   * Called before a step that fills these blocks is submitted. Returns which of them are exported while the step runs, or undefined
   * for none.
   */
  readonly exportEarly?: ((hashes: readonly AnchoredHash[]) => EarlyExport | undefined) | undefined;
}

/** Results of the forks of one step. */
interface Forked {
  readonly copies: BlockCopy[];
  readonly late: Sequence[];
  /** Samples with a mask that the step has room for. */
  masksLeft: number;
}

/** Submits steps to the device. */
export class StepSubmission {
  readonly #executable: Executable;
  readonly #options: SubmissionOptions;
  #numSubmitted = 0;

  constructor(executable: Executable, options: SubmissionOptions) {
    this.#executable = executable;
    this.#options = options;
  }

  /**
   * Submits the planned rows as the next step. `masksLeft` is the number of further samples that may have a mask, `nowMs` the time of
   * submission.
   */
  submit(work: readonly PlannedRows<Sequence>[], masksLeft: number, nowMs: number): InFlightStep {
    this.#numSubmitted++;
    const { sampling, embeddings, blockSize, arrivingStep, states, exportEarly } = this.#options;
    const section = arrivingStep.restOf(work);
    const copies: BlockCopy[] = [];
    const late: Sequence[] = [];
    const made = { copies, late, masksLeft };
    const fork = (leader: Sequence): readonly Sequence[] => this.#forkAll(leader, made, nowMs);
    const { rows, batch, filled } = buildStep(
      work,
      { sampling, embeddings, blockSize, fork, states },
      this.#numSubmitted,
    );
    // A step that ArrivingStep began has passed some layers already, so its blocks are exported after the step instead.
    const hashes = filled.map(({ hash }) => hash);
    const early = filled.length > 0 && !section ? exportEarly?.(hashes) : undefined;
    const results = this.#executable.run(batch, { section, exports: early && exportOf(early, filled) });
    if (copies.length > 0) {
      this.#executable.copyBlocks(
        copies.map(({ from }) => from),
        copies.map(({ to }) => to),
      );
    }
    states?.copyForks();
    this.#options.scheduler.order.chargeStep(rows);
    // The engine awaits the results when it completes the step, and sees a failure then; this handler prevents an unhandled rejection until then.
    results.catch(() => undefined);
    const tokenRows = rows.filter(isTokenRow).length;
    const { rows: numRows, ...rest } = workOf(rows);
    const stepWork = { tokenRows, promptRows: numRows - tokenRows, ...rest };
    return { rows, results, submittedMs: nowMs, work: stepWork, early, isRest: section !== undefined, late };
  }

  /** Forks the followers of a sequence whose row is sampled; those that cannot be forked are added to `late`. */
  #forkAll(leader: Sequence, made: Forked, nowMs: number): readonly Sequence[] {
    const followers = this.#options.groups.end(leader);
    if (followers.length === 0) return followers;
    const forked = followers.filter((follower) => {
      const isMasked = follower.constraint !== undefined;
      const mayFork = !isMasked || (made.masksLeft > 0 && follower.constraint.isReady);
      const copies = mayFork ? this.#fork(leader, follower, nowMs) : undefined;
      if (copies && isMasked) made.masksLeft--;
      if (copies) made.copies.push(...copies);
      else made.late.push(follower);
      return copies !== undefined;
    });
    this.#options.states?.forked(leader, forked);
    return forked;
  }

  /** Whether the follower has the tokens of its leader, no more and no fewer, and the same block chain. */
  #isSamePrompt({ tokens, chain, request, cursor }: Sequence, follower: Sequence): boolean {
    const { length } = tokens;
    if (follower.tokens.length !== length || cursor.pending > 0 || follower.request.root !== request.root) return false;
    const from = numPrefillBlocks(length, this.#options.blockSize) * this.#options.blockSize;
    const [own, others] = [follower.tokens.range(from, length), tokens.range(from, length)];
    const isSameChain = follower.chain.hashes.at(-1)?.digest === chain.hashes.at(-1)?.digest;
    return isSameChain && own.every((token, i) => token === others[i]);
  }

  /**
   * Starts a follower after the prompt of its leader, in whose step its first token is sampled. Returns the copies that this needs;
   * undefined when there is no room, when it has tokens of its own already, or when the host samples for it.
   */
  #fork(leader: Sequence, follower: Sequence, nowMs: number): readonly BlockCopy[] | undefined {
    const { sampling, scheduler, emit } = this.#options;
    // Rows whose log-probabilities a follower still reports are its own to compute.
    if (follower.isReadingPrompt || !this.#isSamePrompt(leader, follower)) return undefined;
    if (!sampling.openOnDevice(follower)) return undefined;
    const copies = scheduler.fork(leader, follower);
    if (!copies) {
      sampling.close(follower);
      return undefined;
    }
    emit({ kind: 'admitted', id: follower.request.id });
    follower.times.admitted(nowMs, follower.cursor.computed);
    follower.times.ready(nowMs);
    return copies;
  }
}
