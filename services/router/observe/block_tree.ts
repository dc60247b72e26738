/**
 * Parents of blocks, from which the prefix tree is made: one entry per block that some holder has announced. Who holds a block is in the
 * prefix index; a block that it does not have is taken out when the tree is next shaped (tree_shape.ts).
 *
 *   entry    key (2 words), key of the parent (2 words; 0 where it is not known), second of its last use     20 bytes
 *   places   open-addressed table from a key to its entry, 0 is free                                      8 to 16 bytes
 *
 * Nothing grows: room is reserved at once, and the system allocates what is reached. Bounded (P1): at most MAX_BLOCKS.
 */
import { homeOf } from '../record/gone_keys.ts';

const MAX_BLOCKS = 4_000_000;
/** Room for blocks that are announced later, besides that for twice the blocks of the index. */
const MIN_BLOCKS = 1 << 16;

/** Entries by number, from 1; an entry whose key is taken out has a number that is used again. */
export class BlockTree {
  readonly #maxBlocks: number;
  /** Two words of the key of each entry, and of its parent's. */
  readonly keys: Int32Array;
  readonly parents: Int32Array;
  /** Time of day of the last use of each entry, in seconds; 0 where there was none. */
  readonly usedS: Uint32Array;
  readonly #places: Int32Array;
  readonly #free: number[] = [];
  #numEntries = 0;
  #isTruncated = false;

  /** Reserves room for an index of so many blocks. */
  constructor(numIndexed: number, maxBlocks = MAX_BLOCKS) {
    this.#maxBlocks = Math.min(maxBlocks, 2 * numIndexed + MIN_BLOCKS);
    const words = (count: number): SharedArrayBuffer => new SharedArrayBuffer(4 * count);
    this.keys = new Int32Array(words(2 * (this.#maxBlocks + 1)));
    this.parents = new Int32Array(words(2 * (this.#maxBlocks + 1)));
    this.usedS = new Uint32Array(words(this.#maxBlocks + 1));
    this.#places = new Int32Array(words(2 ** Math.ceil(Math.log2(2 * this.#maxBlocks))));
  }

  /** Largest number of an entry so far. */
  get numEntries(): number {
    return this.#numEntries;
  }

  /** Whether blocks are missing for want of room. */
  get isTruncated(): boolean {
    return this.#isTruncated;
  }

  /** Adds blocks, two words per key, with their parents where they are known; a use at `nowS`, or with 0 none. */
  add(keys: Int32Array, parents: Int32Array | undefined, nowS: number): void {
    for (let at = 0; at < keys.length; at += 2) {
      const entry = this.find(keys[at]!, keys[at + 1]!) || this.#insert(keys[at]!, keys[at + 1]!);
      if (entry === 0) continue;
      if (nowS > 0) this.usedS[entry] = nowS;
      if (!parents || (parents[at] === 0 && parents[at + 1] === 0)) continue;
      this.parents[2 * entry] = parents[at]!;
      this.parents[2 * entry + 1] = parents[at + 1]!;
    }
  }

  /** Records a use of those of the blocks that are in the tree. */
  use(keys: Int32Array, nowS: number): void {
    for (let at = 0; at < keys.length; at += 2) {
      const entry = this.find(keys[at]!, keys[at + 1]!);
      if (entry > 0) this.usedS[entry] = nowS;
    }
  }

  /** Returns the entry of a key; 0 when there is none. */
  find(low: number, high: number): number {
    return this.#places[this.#placeOf(low, high)]!;
  }

  /** Takes an entry out. */
  remove(entry: number): void {
    const [keys, places] = [this.keys, this.#places];
    const mask = places.length - 1;
    let free = this.#placeOf(keys[2 * entry]!, keys[2 * entry + 1]!);
    if (places[free] !== entry) return;
    for (let place = (free + 1) & mask; places[place] !== 0; place = (place + 1) & mask) {
      const other = places[place]!;
      const home = homeOf(keys[2 * other]!, keys[2 * other + 1]!, mask);
      if (((place - home) & mask) < ((place - free) & mask)) continue;
      places[free] = other;
      free = place;
    }
    places[free] = 0;
    for (const at of [2 * entry, 2 * entry + 1]) keys[at] = this.parents[at] = 0;
    this.usedS[entry] = 0;
    this.#free.push(entry);
  }

  #insert(low: number, high: number): number {
    if (this.#free.length === 0 && this.#numEntries >= this.#maxBlocks) {
      this.#isTruncated = true;
      return 0;
    }
    const entry = this.#free.pop() ?? ++this.#numEntries;
    this.#places[this.#placeOf(low, high)] = entry;
    this.keys[2 * entry] = low;
    this.keys[2 * entry + 1] = high;
    return entry;
  }

  /** Returns the place of a key, or the free one where it would be written. */
  #placeOf(low: number, high: number): number {
    const [keys, places] = [this.keys, this.#places];
    const mask = places.length - 1;
    for (let place = homeOf(low, high, mask); ; place = (place + 1) & mask) {
      const entry = places[place]!;
      if (entry === 0 || (keys[2 * entry] === low && keys[2 * entry + 1] === high)) return place;
    }
  }
}
