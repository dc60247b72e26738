/** Counts the work that one engine has left, from its sequences and what it knows besides: cached blocks, lengths of answers, pace. */
import type { InstanceWork } from '../protocol/instance_work.ts';
import type { BlockPool } from './block_pool.ts';
import type { EngineOptions } from './engine_options.ts';
import { AnswerLength, workLeft, type WorkSequence } from './engine_work.ts';
import type { RecurrentStates } from './recurrent_states.ts';
import type { StepPacing } from './step_pacing.ts';

/** The work that the sequences of one engine have left. */
export class RemainingWork {
  readonly #options: EngineOptions;
  readonly #pool: BlockPool;
  readonly #states: RecurrentStates | undefined;
  readonly #pacing: StepPacing;
  readonly #answerLength = new AnswerLength();
  /** Leading blocks of waiting sequences that the device had when their work was first counted. */
  readonly #cachedBlocks = new WeakMap<WorkSequence, number>();

  constructor(options: EngineOptions, pool: BlockPool, states: RecurrentStates | undefined, pacing: StepPacing) {
    this.#options = options;
    this.#pool = pool;
    this.#states = states;
    this.#pacing = pacing;
  }

  /** Records the number of tokens of an answer that is complete. */
  finished(numTokens: number): void {
    this.#answerLength.finished(numTokens);
  }

  /** Returns the work that is left of `sequences`; undefined before anything is known of the time of a step. */
  left(sequences: Iterable<WorkSequence>): InstanceWork | undefined {
    const { fit, pacedStepMs } = this.#pacing;
    if (!fit.hasSteps) return undefined;
    const { spec, chunkTokens, maxNumSeqs, numBlocks } = this.#options;
    return workLeft(sequences, {
      chunkTokens,
      maxNumSeqs,
      numBlocks,
      pacedStepMs,
      step: fit.time,
      freeBlocks: this.#pool.numAvailable,
      blockSize: spec.blockSize,
      blockBytes: spec.slotBytes,
      expectedTokens: this.#answerLength.mean,
      cachedBlocks: (sequence) => this.#cachedBlocksOf(sequence),
    });
  }

  /** Counted once for each sequence, because a long prompt has thousands of blocks. */
  #cachedBlocksOf(sequence: WorkSequence): number {
    const known = this.#cachedBlocks.get(sequence);
    if (known !== undefined) return known;
    const hashes = sequence.chain.hashes.slice(0, sequence.hittableBlocks);
    const numHeld = this.#pool.numHeld(hashes);
    const numCached = this.#states ? this.#states.heldAt(hashes, numHeld) : numHeld;
    this.#cachedBlocks.set(sequence, numCached);
    return numCached;
  }
}
