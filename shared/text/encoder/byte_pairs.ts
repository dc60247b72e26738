/** Byte-pair encoding of one pretoken: the pair of the lowest rank is merged first, the leftmost of several, until none is left. */

/**
 * Builds the merge table of a vocabulary; undefined when a merge makes no token, which no trained tokenizer has. `prefix`
 * (`continuing_subword_prefix`) stands in front of the parts of a word that do not begin it.
 */
export function createBytePairs(
  ids: ReadonlyMap<string, number>,
  merges: readonly (readonly [string, string])[],
  prefix = '',
): BytePairs | undefined {
  const pairs = new PairTable(merges.length);
  for (const [rank, [left, right]] of merges.entries()) {
    const [first, second, merged] = [ids.get(left), ids.get(right), ids.get(left + right.slice(prefix.length))];
    if (first === undefined || second === undefined || merged === undefined) return undefined;
    pairs.add(first, second, rank * WIDTH + merged);
  }
  return new BytePairs(pairs);
}

/** Factor that packs two ids into one key: more than any vocabulary, and small enough that a key is exact in a double. */
const WIDTH = 2 ** 22;
/** Symbols of a pretoken up to which every merge scans all pairs. A heap costs more for so few. */
const SHORT = 24;

/** Hash table from a pair of ids to rank and merged id, in two flat arrays: half a million objects would burden the garbage collector. */
class PairTable {
  /** Key of each slot (left id * WIDTH + right id), or -1 when free. At least half of the slots are free, so every probe ends. */
  readonly #keys: Float64Array;
  readonly #values: Float64Array;
  readonly #mask: number;

  constructor(count: number) {
    const size = 2 ** Math.ceil(Math.log2(2 * count + 2));
    this.#keys = new Float64Array(size).fill(-1);
    this.#values = new Float64Array(size);
    this.#mask = size - 1;
  }

  /** Returns the slot of a pair, or the free slot where it would be stored. */
  #slot(left: number, right: number): number {
    const key = left * WIDTH + right;
    const mixed = Math.imul(left, 0x9e3779b1) ^ Math.imul(right, 0x85ebca6b);
    let slot = (mixed ^ (mixed >>> 15)) & this.#mask;
    for (let at = this.#keys[slot]!; at !== key && at >= 0; at = this.#keys[slot]!) slot = (slot + 1) & this.#mask;
    return slot;
  }

  /** Stores the value of a pair. A repeated pair overwrites the earlier one, as in the Rust package. */
  add(left: number, right: number, value: number): void {
    const slot = this.#slot(left, right);
    this.#keys[slot] = left * WIDTH + right;
    this.#values[slot] = value;
  }

  /** Returns the value of a pair; Infinity when there is none. */
  of(left: number, right: number): number {
    const slot = this.#slot(left, right);
    return this.#keys[slot]! < 0 ? Infinity : this.#values[slot]!;
  }
}

/** Merges of a BPE vocabulary, which reduce the symbols of one pretoken to its token ids. */
export class BytePairs {
  readonly #pairs: PairTable;

  constructor(pairs: PairTable) {
    this.#pairs = pairs;
  }

  /** Merges the ids in `symbols` in place; a negative symbol merges with nothing. @returns how many symbols are left */
  merge(symbols: Int32Array, count: number): number {
    return count <= SHORT ? this.#mergeShort(symbols, count) : this.#mergeLong(symbols, count);
  }

  /** Returns rank * WIDTH + merged id; Infinity when the two symbols do not merge. */
  #of(left: number, right: number): number {
    if (left < 0 || right < 0) return Infinity;
    return this.#pairs.of(left, right);
  }

  #mergeShort(symbols: Int32Array, count: number): number {
    const ranks = shortRanks;
    for (let i = 0; i + 1 < count; i++) ranks[i] = this.#of(symbols[i]!, symbols[i + 1]!);
    while (count > 1) {
      let [best, at] = [Infinity, -1];
      for (let i = 0; i + 1 < count; i++) {
        const rank = ranks[i]!;
        // Equal values mean the same merge, because a rank has one merged id; `<` keeps the leftmost.
        if (rank < best) [best, at] = [rank, i];
      }
      if (at < 0) break;
      symbols[at] = best % WIDTH;
      for (let i = at + 1; i + 1 < count; i++) {
        symbols[i] = symbols[i + 1]!;
        ranks[i] = ranks[i + 1]!;
      }
      count--;
      if (at + 1 < count) ranks[at] = this.#of(symbols[at]!, symbols[at + 1]!);
      if (at > 0) ranks[at - 1] = this.#of(symbols[at - 1]!, symbols[at]!);
    }
    return count;
  }

  /** Merges with a linked list of the remaining symbols and a heap of pairs by rank and position. Outdated heap entries are skipped. */
  #mergeLong(symbols: Int32Array, count: number): number {
    const next = Int32Array.from({ length: count }, (_, i) => i + 1);
    const before = Int32Array.from({ length: count }, (_, i) => i - 1);
    const ranks = new Float64Array(count).fill(Infinity);
    const heap = new MergeHeap(ranks);
    const consider = (at: number): void => {
      const right = next[at]!;
      ranks[at] = right < count ? this.#of(symbols[at]!, symbols[right]!) : Infinity;
      if (ranks[at] !== Infinity) heap.push(at, ranks[at]);
    };
    for (let at = 0; at < count; at++) consider(at);
    for (let at = heap.pop(); at >= 0; at = heap.pop()) {
      const gone = next[at]!;
      symbols[at] = ranks[at]! % WIDTH;
      ranks[gone] = Infinity;
      const after = next[gone]!;
      next[at] = after;
      if (after < count) before[after] = at;
      consider(at);
      if (before[at]! >= 0) consider(before[at]!);
    }
    let to = 0;
    for (let at = 0; at < count; at = next[at]!) symbols[to++] = symbols[at]!;
    return to;
  }
}

const shortRanks = new Float64Array(SHORT);

/** Heap of positions by rank, leftmost first within a rank. An entry is outdated when its position has another rank by now. */
class MergeHeap {
  readonly #ranks: Float64Array;
  readonly #keys: number[] = [];
  readonly #positions: number[] = [];

  constructor(ranks: Float64Array) {
    this.#ranks = ranks;
  }

  push(position: number, rank: number): void {
    let at = this.#keys.length;
    this.#keys.push(rank);
    this.#positions.push(position);
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!this.#isBefore(at, parent)) break;
      this.#swap(at, parent);
      at = parent;
    }
  }

  /** Removes and returns the next position; -1 when the heap is empty. */
  pop(): number {
    for (;;) {
      const [rank, position] = [this.#keys[0], this.#positions[0]];
      if (rank === undefined || position === undefined) return -1;
      this.#removeFirst();
      if (this.#ranks[position] === rank) return position;
    }
  }

  #removeFirst(): void {
    const [rank, position] = [this.#keys.pop()!, this.#positions.pop()!];
    if (this.#keys.length === 0) return;
    this.#keys[0] = rank;
    this.#positions[0] = position;
    for (let at = 0; ;) {
      const left = 2 * at + 1;
      if (left >= this.#keys.length) return;
      const child = left + 1 < this.#keys.length && this.#isBefore(left + 1, left) ? left + 1 : left;
      if (!this.#isBefore(child, at)) return;
      this.#swap(at, child);
      at = child;
    }
  }

  #isBefore(a: number, b: number): boolean {
    const [x, y] = [this.#keys[a]!, this.#keys[b]!];
    return x < y || (x === y && this.#positions[a]! < this.#positions[b]!);
  }

  #swap(a: number, b: number): void {
    [this.#keys[a], this.#keys[b]] = [this.#keys[b]!, this.#keys[a]!];
    [this.#positions[a], this.#positions[b]] = [this.#positions[b]!, this.#positions[a]!];
  }
}
