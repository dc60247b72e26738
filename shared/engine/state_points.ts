/** Decides at which block ends a sequence's recurrent state is saved, and how many tokens a hit on it saves. */
import { numPrefillBlocks } from '../kv/block_key.ts';
import type { Sequence } from './sequence.ts';

/** Sizes of the policy. */
export interface StatePointsOptions {
  /** Tokens of a block. */
  readonly blockSize: number;
  /** Blocks of a prompt between two states. */
  readonly interval: number;
}

/** Chooses the ends of blocks at which a sequence's state is saved. */
export class StatePoints {
  readonly #options: StatePointsOptions;

  constructor(options: StatePointsOptions) {
    this.#options = options;
  }

  /** Full blocks before the tail of the tokens with which the sequence came. */
  #numPrompt({ request }: Sequence): number {
    return numPrefillBlocks(request.tokens.length, this.#options.blockSize);
  }

  /** Whether a state is saved after `blocks` blocks; `asked` has ends at which one is wanted besides. */
  has(sequence: Sequence, asked: ReadonlySet<number>, blocks: number): boolean {
    const numPrompt = this.#numPrompt(sequence);
    const isRegular = blocks < numPrompt && blocks % this.#options.interval === 0;
    return asked.has(blocks) || blocks === numPrompt || isRegular || this.isHandedOver(sequence, blocks);
  }

  /** Whether the state after `blocks` blocks is the last of a prefill, which another instance goes on from. */
  isHandedOver({ request, target }: Sequence, blocks: number): boolean {
    return request.kind === 'prefill' && blocks * this.#options.blockSize === target;
  }

  /** Whether `blocks` blocks end in the answer of a sequence: only the last such state is saved, when the answer ends. */
  isInAnswer(sequence: Sequence, blocks: number): boolean {
    return sequence.request.kind === 'decode' && blocks > this.#numPrompt(sequence);
  }

  /**
   * Tokens that a hit on this state saves: those since the previous saved state; all of them for the state that a prefill hands over,
   * because the receiver has no earlier one.
   */
  tokensSaved(sequence: Sequence, blocks: number, lastSaved: number): number {
    return (blocks - (this.isHandedOver(sequence, blocks) ? 0 : lastSaved)) * this.#options.blockSize;
  }
}
