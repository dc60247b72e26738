/**
 * Computes the first step of a sequence whose blocks are still arriving, as far as the layers of these blocks are present.
 *
 *   layers of frame 0 in ─► up to the attention of frame 1's first ─► ... ─► the last frame in ─► the rest, as a step like any other
 *
 * Only while the device has no other work. Any other step that is submitted meanwhile abandons the begun one, which is later
 * computed from its beginning, so that no batch waits for it.
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
  /** Layer up to whose attention the step is computed. */
  readonly until: number;
}

/** Sizes, frames and callback of a FirstStep. */
export interface FirstStepOptions {
  readonly blockSize: number;
  readonly chunkTokens: number;
  readonly frames: readonly LayerSpan[];
  /** Called when the device has computed a section of the step; the sequence may have ended meanwhile. */
  readonly onSection: (sequence: Sequence) => void;
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

  /**
   * Computes the next section of a loading sequence's first step; call when the device is idle. @returns whether there was a section
   * to compute.
   */
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
      cursor.setSection(true);
      try {
        await this.#executable.run(batch, { section: { from, until } });
      } finally {
        cursor.setSection(false);
        this.#options.onSection(sequence);
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
