/**
 * Who has which bytes of something that lies in one piece: memory, a file. Slots of any sizes; a slot is known by the byte at which it
 * begins. Bytes that come free join their free neighbours; where all slots have one size, any free extent serves any of them.
 */
import assert from 'node:assert/strict';

/** Bytes [start, end). */
export interface Extent {
  readonly start: number;
  readonly end: number;
}

/** Free extents that are too small for a slot are looked at no more than so many times for one. */
const MAX_LOOKS = 64;
/** Of places that were free and are not: more of them are swept. */
const MAX_STALE = 1_024;

export class ExtentAllocator {
  readonly numBytes: number;
  readonly #alignment: number;
  /** Slots in use, and how long they are. */
  readonly #used = new Map<number, number>();
  /** The same by where they end. */
  readonly #usedEnds = new Map<number, number>();
  /** Free extents by where they begin, and by where they end. No two touch. */
  readonly #free = new Map<number, number>();
  readonly #freeEnds = new Map<number, number>();
  #numFree = 0;
  /** Where free extents begin, or began: the one that was freed last is looked at first. */
  #recent: number[] = [];

  /** Of `numBytes`; slots begin at multiples of `alignment`. `used`: slots that are taken, in order. @throws Error when they overlap. */
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

  /** What a slot for so many bytes takes. */
  lengthOf(bytes: number): number {
    return aligned(bytes, this.#alignment);
  }

  /** A slot, or undefined when no free extent is found that is long enough; where the one that begins at `near` is, it is there. */
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

  /** What was used before is used again before what lies behind all of it: a file grows no further, memory that is warm stays so. */
  #freeFor(length: number): number | undefined {
    for (let start = this.#recent.at(-1); start !== undefined; start = this.#recent.at(-1)) {
      const free = this.#free.get(start) ?? 0;
      const isLast = start + free === this.numBytes;
      if (free >= length && !isLast) return start;
      // One that is too short stays: it may not be for the next.
      if (free > 0 && !isLast) break;
      this.#recent.pop();
    }
    let looks = 0;
    for (const [start, free] of this.#free) {
      if (++looks > MAX_LOOKS) break;
      if (start + free === this.numBytes) continue;
      if (free >= length) return start;
      // Others are looked at next time.
      this.#free.delete(start);
      this.#free.set(start, free);
    }
    const last = this.#freeEnds.get(this.numBytes);
    return last !== undefined && this.numBytes - last >= length ? last : undefined;
  }

  /** @returns the free extent that it is part of now. */
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
    const behind = this.#free.get(end);
    if (behind !== undefined) {
      this.#removeFree(end, behind);
      end += behind;
    }
    this.#addFree(start, end - start);
    return { start, end };
  }

  /** The slot in use that begins here, or ends here. */
  slotAt(place: number): number | undefined {
    return this.#used.has(place) ? place : this.#usedEnds.get(place);
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

export function aligned(bytes: number, alignment: number): number {
  return Math.ceil(bytes / alignment) * alignment;
}
