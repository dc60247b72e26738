/**
 * Computes a step after blocks that are still arriving, as far as the layers of these blocks are present: the first step of a decode
 * sequence, or the next step of a prefill in a pipeline.
 *
 *   layers of frame 0 in ─► up to the attention of frame 1's first ─► ... ─► the last frame in ─► the rest, as a step like any other
 *
 * Only while the device has no other work. Any other step that is submitted meanwhile abandons the begun one, which is later
 * computed from its beginning, so that no batch waits for it.
 */
import type { Executable, StepSection } from '../../kernels/device.ts';
import type { LayerSpan } from '../kv/kv_spec.ts';
import { ROW_UNIT } from './prompt_time.ts';
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

/** Sizes, frames and callback of an ArrivingStep. */
export interface ArrivingStepOptions {
  readonly blockSize: number;
  readonly chunkTokens: number;
  readonly frames: readonly LayerSpan[];
  /** Called when the device has computed a section of the step; the sequence may have ended meanwhile. */
  readonly onSection: (sequence: Sequence) => void;
}

/** Computes a sequence's next step layer by layer while KV frames of the blocks before it arrive, when the device has no other work. */
export class ArrivingStep {
  readonly #executable: Executable;
  readonly #options: ArrivingStepOptions;
  #begun: Begun | undefined;

  constructor(executable: Executable, options: ArrivingStepOptions) {
    this.#executable = executable;
    this.#options = options;
  }

  /**
   * Computes the next section of a loading sequence's step; call when the device is idle. @returns whether there was a section to
   * compute.
   */
  async advance(sequences: Iterable<Sequence>): Promise<boolean> {
    // A recurrent state comes whole, and after the blocks.
    if (this.#executable.numStateSlots > 0) return false;
    const { blockSize, frames, chunkTokens } = this.#options;
    const maxRows = Math.min(chunkTokens, Math.max(ROW_UNIT, this.#executable.maxRowsNow));
    const begun = this.#begun?.sequence.state === this.#begun?.state ? this.#begun : undefined;
    for (const sequence of begun ? [begun.sequence] : sequences) {
      const { state, tokens, cursor } = sequence;
      const rows = begun
        ? { start: begun.start, end: begun.start + begun.count }
        : rowsAfter(sequence, blockSize, maxRows);
      if (state.kind !== 'loading' || !rows) continue;
      const { start, end } = rows;
      const missing = state.fetched.firstMissingFrame(cursor.submitted / blockSize, start / blockSize);
      const until = frames[missing]?.firstLayer ?? 0;
      const from = begun?.until;
      if (until <= (from ?? 0)) continue;
      this.#begun = { sequence, state, start, count: end - start, until };
      const batch = [{ tokens: tokens.view().subarray(start, end), start, blockTable: state.blocks }];
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

/**
 * Returns the rows of the step after the blocks that arrive for a loading sequence, at most `maxRows`: the last rows of a decode
 * sequence's prompt, or the next range of a prefill in a pipeline. Undefined when it is not known, or too long.
 */
function rowsAfter(
  sequence: Sequence,
  blockSize: number,
  maxRows: number,
): { readonly start: number; readonly end: number } | undefined {
  const { awaited, cursor, length, target } = sequence;
  if (sequence.isReadingPrompt) return undefined;
  if (sequence.request.kind === 'decode') {
    const start = sequence.hittableBlocks * blockSize;
    return length - start > maxRows ? undefined : { start, end: length };
  }
  if (!sequence.isPipelined) return undefined;
  const first = awaited.endFrom(cursor.submitted / blockSize);
  const start = first * blockSize;
  const end = Math.min(start + maxRows, target, awaited.next(first) * blockSize);
  return end > start ? { start, end } : undefined;
}
