/**
 * Hash table of blocks by key, in one typed array: four words per slot, open addressing. The table has PARTS parts that grow
 * one by one, so that no growth takes long.
 *
 *   [key low][key high][set of holders][segment]     free where the set is 0
 *
 * The last word is a segment of a chain (key_segments.ts), not a part of this table. Four slots fill one line of the processor's
 * cache; a search starts in the line that the key's hash selects, so most look-ups touch one line.
 * Addresses for `maxKeys` keys are reserved at once, and each part grows in place; memory that no part has reached yet is not
 * allocated by the system. So a slot is named by the index of its first word, and nothing is allocated afterwards.
 */
/** Number of parts of the table. More parts use more memory while there are few keys; with fewer, the growth of one takes too long. */
export const PARTS = 512;
/** Bits of a hash that select the line within a part where a search starts; the other bits select the part. */
const HOME_BITS = 23;
const HOME_MASK = (1 << HOME_BITS) - 1;
/** Words of a slot (i32). */
export const WORDS = 4;
/** Index of the holder set within a slot's words. */
export const SET = 2;
/** Index of the segment within a slot's words. */
export const SEGMENT = 3;
/** Slots per cache line of 64 bytes. */
const LINE = 4;
/** Odd multipliers of the hash, from the golden ratio and from MurmurHash3. They spread keys that are small numbers. */
const SPREAD_LOW = 0x9e3779b1;
const SPREAD_HIGH = 0x85ebca6b;
const MIN_SLOTS = 4;
const GROWTH = 1.25;
const MAX_LOAD = 0.75;
/** Headroom per part in standard deviations, since hashed keys do not fill all parts equally. */
const DEVIATIONS = 6;
/** Extra slots after a part's own, for keys that found no free slot before the end; a search never wraps around. */
const SLACK = 64;
/** Upper bound of the keys that one `findAll` looks up. */
export const MAX_TOGETHER = 128;

/** Upper bound of the keys that a table can be made for. */
const MAX_TABLE_KEYS = 100_000_000;

/** Hash table from block key to holder set and segment, in one Int32Array that is never reallocated. */
export class KeyTable {
  /** Slot `at` has words [at, at + WORDS). */
  readonly words: Int32Array;
  /** Slots from one part's first to the next one's. */
  readonly #stride: number;
  /** Number of slots of each part in which a search can start; SLACK further slots follow. */
  readonly #slots = new Int32Array(PARTS).map((_, part) => slotsOf(part, 0));
  /** Keys of each part. */
  readonly #sizes = new Int32Array(PARTS);
  /** Copy of a part's words while they are inserted anew after its growth. */
  readonly #moved: Int32Array;
  #size = 0;
  #numSlots = this.#slots.reduce((sum, slots) => sum + slots + SLACK, 0);
  /** How often each part grew. */
  readonly #levels = new Uint8Array(PARTS);
  /** Write-only sink: keeps the optimiser from removing the reads with which `findAll` loads its cache lines. */
  touched = 0;

  /** @throws RangeError for more than {@link MAX_TABLE_KEYS}, or where the machine has no addresses for so many. */
  constructor(maxKeys: number) {
    if (maxKeys > MAX_TABLE_KEYS) throw new RangeError(`${maxKeys} keys; ${MAX_TABLE_KEYS} at most`);
    const mean = maxKeys / PARTS;
    const most = (mean + DEVIATIONS * Math.sqrt(mean) + MIN_SLOTS) / MAX_LOAD;
    this.#stride = LINE * Math.ceil((GROWTH ** 2 * most) / LINE) + MIN_SLOTS + SLACK;
    // A SharedArrayBuffer, so that the garbage collector does not count the reserved addresses as memory in use.
    this.words = new Int32Array(new SharedArrayBuffer(4 * WORDS * PARTS * this.#stride));
    this.#moved = new Int32Array(WORDS * this.#stride);
    // Touching each part makes the system map its memory now: some milliseconds in all, which the first keys need not wait for.
    for (let part = 0; part < PARTS; part++) this.words[WORDS * part * this.#stride] = 0;
  }

  get size(): number {
    return this.#size;
  }

  /** Bytes of the slots in use. */
  get bytes(): number {
    return 4 * WORDS * this.#numSlots;
  }

  /** Returns the slot of a key, or the free slot where the key would be inserted. */
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
   * Writes the slots of keys [first, last) into `found` from index 0 on, as `find` returns them; at most {@link MAX_TOGETHER} keys.
   * A loop that does nothing else reads each first word, so that memory serves all of the reads at the same time.
   */
  findAll(keys: Int32Array, first: number, last: number, found: Int32Array): void {
    const { words } = this;
    const slots = this.#slots;
    const stride = this.#stride;
    const count = last - first;
    for (let i = first; i < last; i++) found[i - first] = homeOf(slots, stride, keys[2 * i]!, keys[2 * i + 1]!);
    let touched = 0;
    for (let k = 0; k < count; k++) touched += words[found[k]!]!;
    this.touched = touched | 0;
    for (let i = first; i < last; i++)
      found[i - first] = findIn(words, found[i - first]!, keys[2 * i]!, keys[2 * i + 1]!);
  }

  /**
   * Inserts a new key at the free slot `at`, or at its slot after the part has grown. Returns the slot; -1 when there is no
   * room. The slot counts as free until the caller writes the set of holders.
   */
  insert(at: number, low: number, high: number): number {
    const { words } = this;
    const part = this.#partAt(at);
    let slot = at;
    while (this.#isFull(part, slot)) {
      if (!this.#grow(part)) return -1;
      slot = this.find(low, high);
    }
    words[slot] = low;
    words[slot + 1] = high;
    this.#sizes[part]!++;
    this.#size++;
    return slot;
  }

  /**
   * Deletes the entry at `at`, and moves later entries that could not have their first slot forward. Afterwards another entry may
   * be at `at`.
   */
  delete(at: number): void {
    const { words } = this;
    this.#sizes[this.#partAt(at)]!--;
    this.#size--;
    let hole = at;
    for (let next = at + WORDS; words[next + SET] !== 0; next += WORDS) {
      if (this.#homeOf(words[next]!, words[next + 1]!) > hole) continue;
      for (let i = 0; i < WORDS; i++) words[hole + i] = words[next + i]!;
      hole = next;
    }
    words.fill(0, hole, hole + WORDS);
  }

  /** Returns the range [first, end) of a part's slots. */
  boundsOf(part: number): readonly [number, number] {
    const first = WORDS * part * this.#stride;
    return [first, first + WORDS * (this.#slots[part]! + SLACK)];
  }

  isEmpty(part: number): boolean {
    return this.#sizes[part] === 0;
  }

  #partAt(at: number): number {
    return Math.floor(at / (WORDS * this.#stride));
  }

  /** Whether the part has no room for another key at `slot`. Its last slot stays free, because a search ends there. */
  #isFull(part: number, slot: number): boolean {
    const [, end] = this.boundsOf(part);
    return this.#sizes[part]! >= this.#slots[part]! * MAX_LOAD || slot >= end - WORDS;
  }

  /** Grows a part in place. Returns false when its reserved addresses are used up. */
  #grow(part: number): boolean {
    const numBefore = this.#slots[part]!;
    const numAfter = slotsOf(part, this.#levels[part]! + 1);
    if (numAfter + SLACK > this.#stride) return false;
    this.#levels[part]!++;
    const { words } = this;
    const [first, end] = this.boundsOf(part);
    const moved = this.#moved.subarray(0, end - first);
    moved.set(words.subarray(first, end));
    words.fill(0, first, end);
    this.#slots[part] = numAfter;
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
 * Finds a key as {@link findFrom} does, from the first slot of a line. The slot within the line is computed without a branch, since
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

/** Returns 1 when the words differ, else 0, without a branch. */
function differs(a: number, b: number): number {
  const bits = a ^ b;
  return (bits | -bits) >>> 31;
}

/** Returns the slot of a key at or after `from`, or the first free slot. */
function findFrom(words: Int32Array, from: number, low: number, high: number): number {
  let at = from;
  while (words[at + SET] !== 0 && (words[at] !== low || words[at + 1] !== high)) at += WORDS;
  return at;
}

/** Returns the first slot of the line in which the search for a key starts. */
function homeOf(slots: Int32Array, stride: number, low: number, high: number): number {
  const mixed = Math.imul(low ^ Math.imul(high, SPREAD_HIGH), SPREAD_LOW);
  const hash = mixed ^ (mixed >>> 15);
  const part = hash >>> HOME_BITS;
  const line = Math.floor(((hash & HOME_MASK) * slots[part]!) / ((HOME_MASK + 1) * LINE));
  return WORDS * (part * stride + LINE * line);
}

/**
 * Returns the number of slots of a part at a growth level. Parts differ in size at the same level, so that they do not all grow
 * at the same time.
 */
function slotsOf(part: number, level: number): number {
  return LINE * Math.ceil((MIN_SLOTS / LINE) * GROWTH ** (level + part / PARTS));
}
