/**
 * The first step of a sequence whose blocks are still coming, computed as far as their layers are there.
 *
 *   layers of frame 0 in ─► up to the attention of frame 1's first ─► ... ─► the last frame in ─► the rest, as a step like any other
 *
 * Only where nothing else is to be computed. Whatever else the device is given then ends it, and that step is computed from its
 * beginning: no batch waits for it.
 */
import type { Executable, StepPart } from '../../kernels/device.ts';
import type { LayerSpan } from '../kv/kv_spec.ts';
import type { Phase, Sequence } from './sequence.ts';

interface Begun {
  readonly sequence: Sequence;
  readonly phase: Extract<Phase, { kind: 'loading' }>;
  readonly start: number;
  readonly count: number;
  /** Up to the attention of this layer. */
  readonly until: number;
}

export interface FirstStepOptions {
  readonly blockSize: number;
  readonly chunkTokens: number;
  readonly frames: readonly LayerSpan[];
  /** Of each frame, as {@link Sequence.numFramesIn} takes them. */
  readonly windows: readonly number[];
  /** The device is done with a part of it; it may have ended meanwhile. */
  readonly onPart: (sequence: Sequence) => void;
}

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
    const { blockSize, frames, windows, chunkTokens } = this.#options;
    const begun = this.#begun?.sequence.phase === this.#begun?.phase ? this.#begun : undefined;
    for (const sequence of begun ? [begun.sequence] : sequences) {
      const { phase, request, tokens } = sequence;
      if (phase.kind !== 'loading' || request.kind !== 'decode' || sequence.isReadingPrompt) continue;
      const start = sequence.hittableBlocks(blockSize) * blockSize;
      const count = sequence.length - start;
      const until = frames[sequence.numFramesIn(blockSize, windows)]?.firstLayer ?? 0;
      const from = begun?.until;
      if (until <= (from ?? 0) || count > chunkTokens) continue;
      this.#begun = { sequence, phase, start, count, until };
      const batch = [{ tokens: tokens.slice(start), start, blockTable: phase.blocks }];
      sequence.isBeginning = true;
      try {
        await this.#executable.run(batch, { part: { from, until } });
      } finally {
        sequence.isBeginning = false;
        this.#options.onPart(sequence);
      }
      return true;
    }
    return false;
  }

  /** Those compute now. @returns what of that step is left, when it is the one that was begun. */
  restOf(work: readonly Sequence[]): StepPart | undefined {
    const begun = this.#begun;
    this.#begun = undefined;
    const [sequence] = work;
    if (!begun || work.length > 1 || sequence !== begun.sequence) return undefined;
    const { phase, start, count, until } = begun;
    const isSame = sequence.blocks === phase.blocks && sequence.numSubmitted === start && sequence.numPlanned === count;
    return isSame ? { from: until, until: undefined } : undefined;
  }
}
