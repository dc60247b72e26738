/**
 * Blocks by key, in typed arrays: four words each, open addressing, in SEGMENTS tables that grow one by one, so that none takes long.
 *
 *   [key low][key high][set of holders][stretch]     free where the set is 0
 */
export const SEGMENTS = 4_096;
/** Bits of a key's upper word that are not the segment's number. */
const SEGMENT_SHIFT = 20;
export const WORDS = 4;
export const SET = 2;
export const STRETCH = 3;
/** Spreads keys that are small numbers. */
const SPREAD = 0x9e3779b1;
const MIN_SLOTS = 4;
const GROWTH = 1.25;
const MAX_LOAD = 0.75;

/** A segment until it has something: one place, which is free. */
export const NOTHING = new Int32Array(WORDS);

export class KeyTable {
  readonly segments: Int32Array[] = Array.from({ length: SEGMENTS }, () => NOTHING);
  /** How often each segment grew. */
  readonly #levels = new Uint8Array(SEGMENTS);
  /** Keys of each segment. */
  readonly #sizes = new Int32Array(SEGMENTS);
  #size = 0;

  get size(): number {
    return this.#size;
  }

  /** Without what a segment's object takes. */
  get bytes(): number {
    return this.segments.reduce((sum, { byteLength }) => sum + byteLength, 0);
  }

  /** A new key's place, at the free one `at` or in the segment that it grew to. The caller writes its set: it is free until then. */
  insert(segment: number, at: number, low: number, high: number): number {
    let words = this.segments[segment]!;
    let place = at;
    if (this.#sizes[segment]! + 1 > (words.length / WORDS) * MAX_LOAD) {
      words = this.#grow(segment);
      place = find(words, low, high);
    }
    words[place] = low;
    words[place + 1] = high;
    this.#sizes[segment]!++;
    this.#size++;
    return place;
  }

  /** Takes an entry out, and moves those behind it that could not have their place: another may be at `at` then. */
  delete(segment: number, at: number): void {
    const words = this.segments[segment]!;
    this.#sizes[segment]!--;
    this.#size--;
    let hole = at;
    for (let next = hole; ;) {
      next = next + WORDS === words.length ? 0 : next + WORDS;
      if (words[next + SET] === 0) break;
      const home = homeOf(words, words[next]!);
      // Its place lies cyclically behind the hole: it stays.
      if (hole <= next ? hole < home && home <= next : hole < home || home <= next) continue;
      for (let i = 0; i < WORDS; i++) words[hole + i] = words[next + i]!;
      hole = next;
    }
    words.fill(0, hole, hole + WORDS);
  }

  #grow(segment: number): Int32Array {
    const old = this.segments[segment]!;
    const words = new Int32Array(WORDS * slotsOf(segment, ++this.#levels[segment]!));
    for (let from = 0; from < old.length; from += WORDS) {
      if (old[from + SET] === 0) continue;
      const at = find(words, old[from]!, old[from + 1]!);
      for (let i = 0; i < WORDS; i++) words[at + i] = old[from + i]!;
    }
    this.segments[segment] = words;
    return words;
  }
}

/** Of a key's upper word. */
export function segmentOf(high: number): number {
  return high >>> SEGMENT_SHIFT;
}

/** Not all grow at the same time. */
function slotsOf(segment: number, level: number): number {
  return Math.ceil(MIN_SLOTS * GROWTH ** (level + segment / SEGMENTS));
}

export function homeOf(words: Int32Array, low: number): number {
  return WORDS * Math.floor(((Math.imul(low, SPREAD) >>> 0) * (words.length / WORDS)) / 2 ** 32);
}

/** Where a key is, or the empty place where it would be. */
export function find(words: Int32Array, low: number, high: number): number {
  return findFrom(words, homeOf(words, low), low, high);
}

export function findFrom(words: Int32Array, from: number, low: number, high: number): number {
  let at = from;
  while (words[at + SET] !== 0 && (words[at] !== low || words[at + 1] !== high)) {
    at += WORDS;
    if (at === words.length) at = 0;
  }
  return at;
}
