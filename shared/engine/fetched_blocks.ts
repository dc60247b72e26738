/**
 * Blocks of one sequence that arrive from elsewhere while it has device blocks: whole, or frame by frame; some without the frames that no
 * row sees any more.
 */
import { firstNeeded, type KvSpec } from '../kv/kv_spec.ts';
import type { BlockOrigin } from './sequence_times.ts';

/** Parts of a KvSpec that decide when a block is complete: its frames and its size in tokens. */
export type IncomingSpec = Pick<KvSpec, 'frames' | 'blockSize'> & Partial<Pick<KvSpec, 'state'>>;

/** Records which blocks of one sequence have arrived, whole or by frame, and which frames later rows still need. */
export class FetchedBlocks {
  readonly #spec: IncomingSpec;
  /** Indices of blocks that are whole and not counted as submitted yet: a block before them is missing. */
  readonly #whole = new Set<number>();
  /** Arrived frames of incomplete blocks, by block index; bit f is set when frame f has arrived. */
  readonly #frames = new Map<number, number>();
  /** Where each block that has arrived, whole or in part, came from. */
  readonly #origins = new Map<number, BlockOrigin>();
  /** Where the block came from that arrived last. */
  #lastOrigin: BlockOrigin = 'instance';
  /** Frames and whole blocks that have arrived. */
  numArrived = 0;

  constructor(spec: IncomingSpec) {
    this.#spec = spec;
  }

  has(index: number): boolean {
    return this.#whole.has(index);
  }

  /** Indices of whole blocks that are not counted yet. */
  get whole(): Iterable<number> {
    return this.#whole;
  }

  /**
   * Returns where a block came from. One of which nothing was fetched, since no row sees it, would have come from where the others came.
   */
  originOf(index: number): BlockOrigin {
    return this.#origins.get(index) ?? this.#lastOrigin;
  }

  /** A block is in the device already; it becomes of use with a state that is fetched. */
  addPresent(index: number): void {
    this.numArrived++;
    this.#whole.add(index);
  }

  /** A frame of a block arrived from `origin`, or all of it (undefined). @returns whether the block is whole now */
  add(index: number, frame: number | undefined, origin: BlockOrigin): boolean {
    this.numArrived++;
    this.#lastOrigin = origin;
    this.#origins.set(index, origin);
    if (frame !== undefined) {
      const bits = (this.#frames.get(index) ?? 0) | (1 << frame);
      this.#frames.set(index, bits);
      if (bits !== (1 << this.#spec.frames.length) - 1) return false;
    }
    this.#frames.delete(index);
    this.#whole.add(index);
    return true;
  }

  /** The block is counted as submitted. @returns whether it was whole */
  acquire(index: number): boolean {
    return this.#whole.delete(index);
  }

  /** Returns the lowest frame that some block of [first, end) lacks and that a row from `end` on sees; Infinity when none is missing. */
  firstMissingFrame(first: number, end: number): number {
    let fewest = Infinity;
    const outside = this.#outsideAt(end);
    for (let index = first; index < end && fewest > 0; index++)
      if (!this.#whole.has(index)) fewest = Math.min(fewest, this.#firstMissing(index, outside));
    return fewest;
  }

  /** Returns the end of the longest run of blocks from `first` on, at most `end`, that lacks nothing which rows after the run see. */
  usableEnd(first: number, end: number): number {
    let usable = end;
    let outside = this.#outsideAt(usable);
    // Rows are computed from an unusable block on, and they see earlier blocks that later rows would not: what lies outside is
    // determined again.
    for (let index = usable - 1; index >= first; index--) {
      if (this.#whole.has(index) || this.#firstMissing(index, outside) === Infinity) continue;
      usable = index;
      outside = this.#outsideAt(usable);
    }
    return usable;
  }

  /**
   * Returns the end of the blocks, from `first` on and at most `end`, after which rows can begin: nothing is lacking that they see, and
   * where there is recurrent state, one is held there, as `stateAt` says of the blocks up to some end.
   */
  beginEnd(first: number, end: number, stateAt: ((most: number) => number) | undefined): number {
    let usable = this.usableEnd(first, end);
    while (stateAt && usable > first) {
      const state = Math.max(first, stateAt(usable));
      // Rows that begin earlier see blocks that later ones would not.
      usable = this.usableEnd(first, state);
      if (usable === state) break;
    }
    return usable;
  }

  /**
   * Returns the lowest frame of the block that has not arrived and is seen, else Infinity. `outside[frame]` is the number of leading
   * blocks that are not seen.
   */
  #firstMissing(index: number, outside: readonly number[]): number {
    const bits = this.#frames.get(index) ?? 0;
    const missing = outside.findIndex((count, frame) => (bits & (1 << frame)) === 0 && index >= count);
    return missing < 0 ? Infinity : missing;
  }

  /** Returns for each frame how many leading blocks lie outside the attention window of every row from block `end` on. */
  #outsideAt(end: number): number[] {
    const { frames, blockSize } = this.#spec;
    return frames.map((frame) => firstNeeded(this.#spec, frame, end * blockSize));
  }
}
