/**
 * Blocks of a prefill that other instances compute while this one computes those between them, as a pipeline:
 *
 *   blocks   0 ─────── 16 ─────── 32 ─────── 48 ─────── 64
 *   A        computes     awaits     computes   awaits
 *   B        awaits       computes   awaits     computes
 */

/** Blocks [start, end) of one sequence. */
export interface BlockRange {
  readonly start: number;
  readonly end: number;
}

/** Ranges of one sequence's blocks that other instances compute and that have not arrived yet. Bounded by the ranges of its call (P1). */
export class AwaitedRanges {
  /** Ascending; two ranges may adjoin, and none overlap. */
  #ranges: readonly BlockRange[];

  constructor(ranges: readonly BlockRange[]) {
    this.#ranges = [...ranges].sort((a, b) => a.start - b.start);
  }

  get isEmpty(): boolean {
    return this.#ranges.length === 0;
  }

  has(index: number): boolean {
    return this.#ranges.some(({ start, end }) => start <= index && index < end);
  }

  /** Returns the first block from `index` on that is awaited; Infinity when none is. */
  next(index: number): number {
    for (const { start, end } of this.#ranges) if (end > index) return Math.max(start, index);
    return Infinity;
  }

  /** Returns the first block from `index` on that is not awaited. */
  endFrom(index: number): number {
    let last = index;
    for (const { start, end } of this.#ranges) if (start <= last) last = Math.max(last, end);
    return last;
  }

  /** Returns how many blocks from `index` on are awaited. */
  numFrom(index: number): number {
    return this.#ranges.reduce((sum, { start, end }) => sum + Math.max(0, end - Math.max(start, index)), 0);
  }

  /** Forgets the ranges within [start, end): all of their blocks that arrive have arrived. */
  arrived(range: BlockRange): void {
    this.#ranges = this.#ranges.filter(({ start, end }) => start < range.start || end > range.end);
  }

  /** Forgets all ranges: no more blocks arrive. */
  clear(): void {
    this.#ranges = [];
  }
}
