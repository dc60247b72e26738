/**
 * Blocks by key, in one typed array: four words each, open addressing, in SEGMENTS parts that grow one by one, so that none takes long.
 *
 *   [key low][key high][set of holders][segment]     free where the set is 0
 *
 * Four of them are a line of the processor's cache, and a key is looked for first in the line that its hash says: one look at memory.
 * Addresses for all keys there may be are set aside at once, and each segment grows where it is: what no segment has come to yet is no
 * memory. So a place is a number, nothing is allocated afterwards, and a look-up is one step in memory.
 */
/** More of them take more memory before there are keys, fewer take too long to grow. */
export const SEGMENTS = 512;
/** Bits of a hash that are not the segment's number: they say where in it a key is looked for first. */
const HOME_BITS = 23;
const HOME_MASK = (1 << HOME_BITS) - 1;
/** Words of a slot (i32). */
export const WORDS = 4;
/** Index of the holder set within a slot's words. */
export const SET = 2;
/** Index of the segment within a slot's words. */
export const SEGMENT = 3;
/** Slots of a line. */
const LINE = 4;
/** Odd, from the golden ratio and from MurmurHash3: they spread keys that are small numbers. */
const SPREAD_LOW = 0x9e3779b1;
const SPREAD_HIGH = 0x85ebca6b;
const MIN_SLOTS = 4;
const GROWTH = 1.25;
const MAX_LOAD = 0.75;
/** Segments have not all the same number of keys: six times what chance makes of it. */
const DEVIATIONS = 6;
/** Behind a segment's slots, for those that found no free one before: nobody begins anew at the front. */
const SLACK = 64;
/** Places that are looked at together. */
export const MAX_TOGETHER = 128;

/** Upper bound of the keys that a table can be made for. */
const MAX_TABLE_KEYS = 100_000_000;

/** Hash table from block key to holder set and segment, in one Int32Array that is never reallocated. */
export class KeyTable {
  /** Place `at` has words [at, at + WORDS). */
  readonly words: Int32Array;
  /** Slots from one segment's first to the next one's. */
  readonly #stride: number;
  /** How many keys' first places each segment has. */
  readonly #slots = new Int32Array(SEGMENTS).map((_, segment) => slotsOf(segment, 0));
  /** Keys of each segment. */
  readonly #sizes = new Int32Array(SEGMENTS);
  /** A segment that grows. */
  readonly #moved: Int32Array;
  #size = 0;
  #numSlots = this.#slots.reduce((sum, slots) => sum + slots + SLACK, 0);
  /** How often each segment grew. */
  readonly #levels = new Uint8Array(SEGMENTS);
  /** Says nothing. What memory was asked for has to go somewhere, or the asking is left out. */
  touched = 0;

  /** @throws RangeError for more than {@link MAX_TABLE_KEYS}, or where the machine has no addresses for so many. */
  constructor(maxKeys: number) {
    if (maxKeys > MAX_TABLE_KEYS) throw new RangeError(`${maxKeys} keys; ${MAX_TABLE_KEYS} at most`);
    const mean = maxKeys / SEGMENTS;
    const most = (mean + DEVIATIONS * Math.sqrt(mean) + MIN_SLOTS) / MAX_LOAD;
    this.#stride = LINE * Math.ceil((GROWTH ** 2 * most) / LINE) + MIN_SLOTS + SLACK;
    // Shared, so that the collector does not take it for memory in use.
    this.words = new Int32Array(new SharedArrayBuffer(4 * WORDS * SEGMENTS * this.#stride));
    this.#moved = new Int32Array(WORDS * this.#stride);
    // Touching each segment makes the system map its memory now: some milliseconds in all, which the first keys need not wait for.
    for (let segment = 0; segment < SEGMENTS; segment++) this.words[WORDS * segment * this.#stride] = 0;
  }

  get size(): number {
    return this.#size;
  }

  /** Bytes of the slots in use. */
  get bytes(): number {
    return 4 * WORDS * this.#numSlots;
  }

  /** Returns the place of a key, or the free place where the key would be inserted. */
  find(low: number, high: number): number {
    return findIn(this.words, this.#homeOf(low, high), low, high);
  }

  isAt(at: number, low: number, high: number): boolean {
    const { words } = this;
    return words[at] === low && words[at + 1] === high && words[at + SET] !== 0;
  }

  #homeOf(low: number, high: number): number {
    return homeOf(this.#slots, this.#stride, low, high);
  }

  /**
   * Writes the places of keys [first, last) into `places` from index 0 on, as `find` returns them; at most {@link MAX_TOGETHER} keys.
   * A loop that does nothing else reads each first word, so that memory serves all of the reads at the same time.
   */
  findAll(keys: Int32Array, first: number, last: number, places: Int32Array): void {
    const { words } = this;
    const slots = this.#slots;
    const stride = this.#stride;
    const count = last - first;
    for (let i = first; i < last; i++) places[i - first] = homeOf(slots, stride, keys[2 * i]!, keys[2 * i + 1]!);
    let touched = 0;
    for (let k = 0; k < count; k++) touched += words[places[k]!]!;
    this.touched = touched | 0;
    for (let i = first; i < last; i++)
      places[i - first] = findIn(words, places[i - first]!, keys[2 * i]!, keys[2 * i + 1]!);
  }

  /**
   * A new key's place: the free one `at`, or where that is after its segment grew; -1 when there is no room.
   * The caller writes its set: the place is free until then.
   */
  insert(at: number, low: number, high: number): number {
    const { words } = this;
    const segment = this.#segmentAt(at);
    let place = at;
    while (this.#isFull(segment, place)) {
      if (!this.#grow(segment)) return -1;
      place = this.find(low, high);
    }
    words[place] = low;
    words[place + 1] = high;
    this.#sizes[segment]!++;
    this.#size++;
    return place;
  }

  /** Takes an entry out, and moves those behind it that could not have their place: another may be at `at` then. */
  delete(at: number): void {
    const { words } = this;
    this.#sizes[this.#segmentAt(at)]!--;
    this.#size--;
    let hole = at;
    for (let next = at + WORDS; words[next + SET] !== 0; next += WORDS) {
      if (this.#homeOf(words[next]!, words[next + 1]!) > hole) continue;
      for (let i = 0; i < WORDS; i++) words[hole + i] = words[next + i]!;
      hole = next;
    }
    words.fill(0, hole, hole + WORDS);
  }

  /** The places of a segment: [first, behind the last one). */
  placesOf(segment: number): readonly [number, number] {
    const first = WORDS * segment * this.#stride;
    return [first, first + WORDS * (this.#slots[segment]! + SLACK)];
  }

  isEmpty(segment: number): boolean {
    return this.#sizes[segment] === 0;
  }

  #segmentAt(at: number): number {
    return Math.floor(at / (WORDS * this.#stride));
  }

  /** Whether it has no room for one more at `place`. Its last place stays free: there a search ends. */
  #isFull(segment: number, place: number): boolean {
    const [, end] = this.placesOf(segment);
    return this.#sizes[segment]! >= this.#slots[segment]! * MAX_LOAD || place >= end - WORDS;
  }

  /** False where its room is used up. */
  #grow(segment: number): boolean {
    const numBefore = this.#slots[segment]!;
    const numAfter = slotsOf(segment, this.#levels[segment]! + 1);
    if (numAfter + SLACK > this.#stride) return false;
    this.#levels[segment]!++;
    const { words } = this;
    const [first, end] = this.placesOf(segment);
    const moved = this.#moved.subarray(0, end - first);
    moved.set(words.subarray(first, end));
    words.fill(0, first, end);
    this.#slots[segment] = numAfter;
    this.#numSlots += numAfter - numBefore;
    for (let from = 0; from < moved.length; from += WORDS) {
      if (moved[from + SET] === 0) continue;
      let at = this.#homeOf(moved[from]!, moved[from + 1]!);
      while (words[at + SET] !== 0) at += WORDS;
      for (let i = 0; i < WORDS; i++) words[at + i] = moved[from + i]!;
    }
    return true;
  }
}

/**
 * Finds a key as {@link findFrom} does, from the first place of a line. The place within the line is computed without a branch, since
 * the processor could not predict one.
 */
function findIn(words: Int32Array, line: number, low: number, high: number): number {
  const isOther0 = differs(words[line]!, low);
  const isOther1 = isOther0 & differs(words[line + WORDS]!, low);
  const isOther2 = isOther1 & differs(words[line + 2 * WORDS]!, low);
  const at = line + WORDS * (isOther0 + isOther1 + isOther2);
  if (words[at] === low && words[at + 1] === high && words[at + SET] !== 0) return at;
  return findFrom(words, line, low, high);
}

/** 1 or 0. */
function differs(a: number, b: number): number {
  const bits = a ^ b;
  return (bits | -bits) >>> 31;
}

/** The place of a key at `from` or behind it, or the free one where it would be. */
function findFrom(words: Int32Array, from: number, low: number, high: number): number {
  let at = from;
  while (words[at + SET] !== 0 && (words[at] !== low || words[at + 1] !== high)) at += WORDS;
  return at;
}

/** The line where a key is looked for first. */
function homeOf(slots: Int32Array, stride: number, low: number, high: number): number {
  const mixed = Math.imul(low ^ Math.imul(high, SPREAD_HIGH), SPREAD_LOW);
  const hash = mixed ^ (mixed >>> 15);
  const segment = hash >>> HOME_BITS;
  const line = Math.floor(((hash & HOME_MASK) * slots[segment]!) / ((HOME_MASK + 1) * LINE));
  return WORDS * (segment * stride + LINE * line);
}

/** Not all grow at the same time. */
function slotsOf(segment: number, level: number): number {
  return LINE * Math.ceil((MIN_SLOTS / LINE) * GROWTH ** (level + segment / SEGMENTS));
}
