/**
 * The first step of a sequence whose blocks are still coming, computed as far as their layers are there.
 *
 *   layers of frame 0 in ─► up to the attention of frame 1's first ─► ... ─► the last frame in ─► the rest, as a step like any other
 *
 * Only where nothing else is to be computed. Whatever else the device is given then ends it, and that step is computed from its
 * beginning: no batch waits for it.
 */
import type { Executable, StepSection } from '../../kernels/device.ts';
import type { LayerSpan } from '../kv/kv_spec.ts';
import type { Sequence, SequenceState } from './sequence.ts';
import type { PlannedRows } from './step_plan.ts';

interface Begun {
  readonly sequence: Sequence;
  readonly state: Extract<SequenceState, { kind: 'loading' }>;
  readonly start: number;
  readonly count: number;
  /** Up to the attention of this layer. */
  readonly until: number;
}

/** Sizes, frames and callback of a FirstStep. */
export interface FirstStepOptions {
  readonly blockSize: number;
  readonly chunkTokens: number;
  readonly frames: readonly LayerSpan[];
  /** The device is done with a part of it; it may have ended meanwhile. */
  readonly onPart: (sequence: Sequence) => void;
}

/** Computes the first step of a decode sequence layer by layer while its KV frames arrive, when the device has no other work. */
export class FirstStep {
  readonly #executable: Executable;
  readonly #options: FirstStepOptions;
  #begun: Begun | undefined;

  constructor(executable: Executable, options: FirstStepOptions) {
    this.#executable = executable;
    this.#options = options;
  }

  /** The device has nothing to do. @returns whether it had. */
  async advance(sequences: Iterable<Sequence>): Promise<boolean> {
    const { blockSize, frames, chunkTokens } = this.#options;
    const begun = this.#begun?.sequence.state === this.#begun?.state ? this.#begun : undefined;
    for (const sequence of begun ? [begun.sequence] : sequences) {
      const { state, request, tokens, cursor } = sequence;
      if (state.kind !== 'loading' || request.kind !== 'decode' || sequence.isReadingPrompt) continue;
      const end = sequence.hittableBlocks;
      const start = end * blockSize;
      const count = sequence.length - start;
      const until = frames[state.fetched.firstMissingFrame(cursor.submitted / blockSize, end)]?.firstLayer ?? 0;
      const from = begun?.until;
      if (until <= (from ?? 0) || count > chunkTokens) continue;
      this.#begun = { sequence, state, start, count, until };
      const batch = [{ tokens: tokens.view().subarray(start), start, blockTable: state.blocks }];
      cursor.setPart(true);
      try {
        await this.#executable.run(batch, { part: { from, until } });
      } finally {
        cursor.setPart(false);
        this.#options.onPart(sequence);
      }
      return true;
    }
    return false;
  }

  /**
   * Ends the begun step, because `work` is submitted now. @returns the layers that are left when `work` is exactly that step, else
   * undefined
   */
  restOf(work: readonly PlannedRows<Sequence>[]): StepSection | undefined {
    const begun = this.#begun;
    this.#begun = undefined;
    const [planned] = work;
    if (!begun || work.length > 1 || planned?.sequence !== begun.sequence) return undefined;
    const { state, start, count, until, sequence } = begun;
    const isSame = sequence.blocks === state.blocks && sequence.cursor.submitted === start && planned.count === count;
    return isSame ? { from: until, until: undefined } : undefined;
  }
}
