/**
 * Allocates slots of any size in a contiguous range of bytes: memory or a file. A slot is named by its first byte. A released slot
 * merges with its free neighbours; where all slots have one size, any free extent fits any slot.
 */
import assert from 'node:assert/strict';

/** Bytes [start, end). */
export interface Extent {
  readonly start: number;
  readonly end: number;
}

/** Most free extents that one allocation examines. */
const MAX_LOOKS = 64;
/** Number of entries of `#recent` beyond twice the number of free extents; above it the list is rebuilt from the free extents. */
const MAX_STALE = 1_024;

/** Records which bytes [start, end) are in use and which are free. The bytes themselves are elsewhere. */
export class ExtentAllocator {
  readonly numBytes: number;
  readonly #alignment: number;
  /** Length in bytes of each slot in use, by its start. */
  readonly #used = new Map<number, number>();
  /** Start of each slot in use, by the byte at which the slot ends. */
  readonly #usedEnds = new Map<number, number>();
  /** Free extents by where they begin, and by where they end. No two touch. */
  readonly #free = new Map<number, number>();
  readonly #freeEnds = new Map<number, number>();
  #numFree = 0;
  /** Starts of extents that are free or once were, the latest last; allocation looks at the last one first. */
  #recent: number[] = [];

  /**
   * Manages `numBytes` bytes, rounded down to whole `alignment`s; slots begin at multiples of `alignment`. `used` lists slots already
   * taken, in order. @throws Error when such slots overlap, are empty, or begin elsewhere.
   */
  constructor(numBytes: number, alignment: number, used: readonly Extent[] = []) {
    this.numBytes = Math.floor(numBytes / alignment) * alignment;
    this.#alignment = alignment;
    let next = 0;
    for (const { start, end } of used) {
      if (start < next || start % alignment !== 0 || end <= start) throw new Error(`slots overlap at byte ${start}`);
      this.#addFree(next, start - next);
      next = start + this.lengthOf(end - start);
      this.#used.set(start, next - start);
      this.#usedEnds.set(next, start);
    }
    this.#addFree(next, this.numBytes - next);
    for (const bytes of this.#free.values()) this.#numFree += bytes;
  }

  get numFreeBytes(): number {
    return this.#numFree;
  }

  get numInUse(): number {
    return this.#used.size;
  }

  /** Returns the length of a slot for `bytes` bytes: the next multiple of the alignment. */
  lengthOf(bytes: number): number {
    return aligned(bytes, this.#alignment);
  }

  /**
   * Allocates a slot of at least `bytes` bytes: at `near` if a free extent that is long enough begins there, else anywhere. Undefined
   * when no free extent is found that is long enough.
   */
  allocate(bytes: number, near?: number): number | undefined {
    const length = this.lengthOf(bytes);
    const start = near !== undefined && (this.#free.get(near) ?? 0) >= length ? near : this.#freeFor(length);
    const free = start === undefined ? undefined : this.#free.get(start);
    if (start === undefined || free === undefined) return undefined;
    this.#removeFree(start, free);
    this.#addFree(start + length, free - length);
    this.#used.set(start, length);
    this.#usedEnds.set(start + length, start);
    this.#numFree -= length;
    return start;
  }

  /**
   * Returns the start of a free extent of at least `length` bytes, or undefined. Prefers extents that were used before to the unused
   * end, so that a file does not grow and warm memory is used again.
   */
  #freeFor(length: number): number | undefined {
    for (let start = this.#recent.at(-1); start !== undefined; start = this.#recent.at(-1)) {
      const free = this.#free.get(start) ?? 0;
      const isLast = start + free === this.numBytes;
      if (free >= length && !isLast) return start;
      // An extent that is too short stays listed: the next slot may fit.
      if (free > 0 && !isLast) break;
      this.#recent.pop();
    }
    let looks = 0;
    for (const [start, free] of this.#free) {
      if (++looks > MAX_LOOKS) break;
      if (start + free === this.numBytes) continue;
      if (free >= length) return start;
      // Move it to the end, so that the next allocation examines others.
      this.#free.delete(start);
      this.#free.set(start, free);
    }
    const last = this.#freeEnds.get(this.numBytes);
    return last !== undefined && this.numBytes - last >= length ? last : undefined;
  }

  /** Releases a slot. @returns the free extent that now contains it */
  release(slot: number): Extent {
    const length = this.#used.get(slot);
    assert(length !== undefined, `slot ${slot} of ${this.numBytes} bytes is not in use`);
    this.#used.delete(slot);
    this.#usedEnds.delete(slot + length);
    this.#numFree += length;
    let [start, end] = [slot, slot + length];
    const before = this.#freeEnds.get(start);
    if (before !== undefined) {
      this.#removeFree(before, start - before);
      start = before;
    }
    const after = this.#free.get(end);
    if (after !== undefined) {
      this.#removeFree(end, after);
      end += after;
    }
    this.#addFree(start, end - start);
    return { start, end };
  }

  /** Returns the slot in use that begins or ends at byte `place`, or undefined. */
  slotAt(offset: number): number | undefined {
    return this.#used.has(offset) ? offset : this.#usedEnds.get(offset);
  }

  #addFree(start: number, bytes: number): void {
    if (bytes <= 0) return;
    this.#free.set(start, bytes);
    this.#freeEnds.set(start + bytes, start);
    this.#recent.push(start);
    if (this.#recent.length > MAX_STALE + 2 * this.#free.size) this.#recent = [...this.#free.keys()];
  }

  #removeFree(start: number, bytes: number): void {
    this.#free.delete(start);
    this.#freeEnds.delete(start + bytes);
  }
}

/** Rounds `bytes` up to a multiple of `alignment`. */
export function aligned(bytes: number, alignment: number): number {
  return Math.ceil(bytes / alignment) * alignment;
}
