/**
 * The prefix tree at one moment: of each entry of a block tree its children, the blocks below it and its set of holders. Shaped in slices, so
 * that nothing waits for it, and read as runs: chains of blocks with one child each and the same holders.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { tiers } from '../../../shared/protocol/block_events.ts';
import type { HeldBy } from '../../../shared/placement/prefix_index/holder_sets.ts';
import type { PrefixIndex } from '../../../shared/placement/prefix_index/prefix_index.ts';
import type { BlockRunView } from '../../../shared/protocol/router_api.ts';
import type { BlockTree } from './block_tree.ts';

/** Entries that are worked on before other work gets a turn of the event loop: one or two milliseconds. */
const SLICE = 2_048;

/** Part of a tree to read. */
export interface TreeQuery {
  /** Key to begin at, in hexadecimal; undefined: the beginnings of all prompts. */
  readonly root: string | undefined;
  /** Runs that may lie below each other. */
  readonly depth: number;
  readonly limit: number;
}

/** Runs of a query, in the form of the API. */
export interface TreeRuns {
  readonly holders: string[];
  readonly runs: BlockRunView[];
  readonly isTruncated: boolean;
}

/** A run that is still to be read: its first entry, the key of the run before, and the runs above it. */
interface PendingRun {
  readonly entry: number;
  readonly parent: string | null;
  readonly level: number;
}

/** Shape of a block tree; entries that are added afterwards are not in it. */
export class TreeShape {
  /** Blocks that somebody holds. */
  numBlocks = 0;
  readonly #tree: BlockTree;
  readonly #keys: Int32Array;
  /** Values of each entry: number of its set of holders (0: nobody), first child, next child of its parent, blocks before and from it on. */
  readonly #sets: Int32Array;
  readonly #firstChild: Int32Array;
  readonly #nextChild: Int32Array;
  readonly #depths: Int32Array;
  readonly #blocks: Int32Array;
  readonly #roots: number[] = [];
  /** Holders of each set, as of the shaping. */
  readonly #holders = new Map<number, readonly HeldBy[]>();

  private constructor(tree: BlockTree) {
    this.#tree = tree;
    const size = tree.numEntries + 1;
    // A copy: numbers of entries are used again.
    this.#keys = tree.keys.slice(0, 2 * size);
    const numbers = (): Int32Array => new Int32Array(size);
    [this.#sets, this.#firstChild, this.#nextChild] = [numbers(), numbers(), numbers()];
    [this.#depths, this.#blocks] = [numbers(), numbers()];
  }

  /** Shapes a tree, and takes entries out of it that nobody holds. */
  static async of(tree: BlockTree, index: PrefixIndex, clock: Clock): Promise<TreeShape> {
    const shape = new TreeShape(tree);
    await sliced(1, tree.numEntries + 1, clock, (entry) => {
      shape.#find(entry, index);
    });
    const size = shape.#sets.length;
    const parentOf = new Int32Array(size);
    await sliced(1, size, clock, (entry) => {
      shape.#link(entry, parentOf);
    });
    await shape.#measure(parentOf, clock);
    await sliced(1, size, clock, (entry) => {
      if (shape.#sets[entry] === 0 && shape.#isSame(entry) && !shape.#isHeldAgain(entry, index)) tree.remove(entry);
    });
    return shape;
  }

  /** Finds the holders of an entry. */
  #find(entry: number, index: PrefixIndex): void {
    const set = this.#isUsed(entry) ? index.setOf(this.#keys[2 * entry]!, this.#keys[2 * entry + 1]!) : 0;
    if (set === 0) return;
    this.#sets[entry] = set;
    this.numBlocks++;
    if (!this.#holders.has(set)) this.#holders.set(set, index.heldBySet(set));
  }

  /** Whether somebody has announced a block since nobody held it: the tree hears of it only once. */
  #isHeldAgain(entry: number, index: PrefixIndex): boolean {
    return index.setOf(this.#keys[2 * entry]!, this.#keys[2 * entry + 1]!) !== 0;
  }

  #isUsed(entry: number): boolean {
    return this.#keys[2 * entry] !== 0 || this.#keys[2 * entry + 1] !== 0;
  }

  /** Whether an entry still has the key that it had when the shaping began. */
  #isSame(entry: number): boolean {
    const { keys } = this.#tree;
    return (
      this.#isUsed(entry) &&
      keys[2 * entry] === this.#keys[2 * entry] &&
      keys[2 * entry + 1] === this.#keys[2 * entry + 1]
    );
  }

  /** Links an entry to its parent; one whose parent nobody holds begins a tree of its own. */
  #link(entry: number, parentOf: Int32Array): void {
    if (this.#sets[entry] === 0) return;
    const { parents } = this.#tree;
    const isKnown = this.#isSame(entry) && (parents[2 * entry] !== 0 || parents[2 * entry + 1] !== 0);
    const found = isKnown ? this.#tree.find(parents[2 * entry]!, parents[2 * entry + 1]!) : 0;
    const parent = found < this.#sets.length && this.#sets[found] !== 0 && this.#isSame(found) ? found : 0;
    if (parent === 0 || parent === entry) {
      this.#roots.push(entry);
      return;
    }
    parentOf[entry] = parent;
    this.#nextChild[entry] = this.#firstChild[parent]!;
    this.#firstChild[parent] = entry;
  }

  /** Counts the blocks from each entry on, from the ends of chains to the beginnings. */
  async #measure(parentOf: Int32Array, clock: Clock): Promise<void> {
    const order = new Int32Array(this.numBlocks);
    order.set(this.#roots);
    let end = this.#roots.length;
    // Entries whose parents form a circle, which colliding keys could make, are reached from no root.
    await sliced(0, this.numBlocks, clock, (at) => {
      if (at >= end) return;
      const entry = order[at]!;
      this.#blocks[entry] = 1;
      for (let child = this.#firstChild[entry]!; child !== 0; child = this.#nextChild[child]!) {
        this.#depths[child] = this.#depths[entry]! + 1;
        order[end++] = child;
      }
    });
    await sliced(0, end, clock, (i) => {
      const entry = order[end - 1 - i]!;
      const parent = parentOf[entry]!;
      if (parent !== 0) this.#blocks[parent]! += this.#blocks[entry]!;
    });
  }

  /**
   * Returns runs of the tree, the largest subtrees first and parents before their children. `nameOf` returns the name of a holder, undefined
   * for one that is no member. Undefined when nobody holds the root.
   */
  runs({ root, depth, limit }: TreeQuery, nameOf: (holder: string) => string | undefined): TreeRuns | undefined {
    const first = root === undefined ? undefined : this.#entryOf(root);
    if (first === 0) return undefined;
    const pending = new LargestFirst(this.#blocks);
    const names = new HolderNames(nameOf);
    const runs: BlockRunView[] = [];
    let isTruncated = false;
    const add = (entries: readonly number[], parent: string | null, level: number): void => {
      const chosen = largest(entries, this.#blocks, limit);
      isTruncated ||= chosen.length < entries.length;
      for (const entry of chosen) pending.push({ entry, parent, level });
    };
    add(first === undefined ? this.#roots : [first], null, 0);
    for (let next = pending.pop(); next; next = pending.pop()) {
      if (runs.length >= limit) {
        isTruncated = true;
        break;
      }
      const { children, ...run } = this.#runFrom(next, names);
      runs.push({ ...run, children: children.length });
      if (next.level + 1 < depth) add(children, run.key, next.level + 1);
      else isTruncated ||= children.length > 0;
    }
    return { holders: names.all, runs, isTruncated };
  }

  /** Returns the run that begins at an entry, and the entries below its last one. */
  #runFrom(
    { entry, parent }: PendingRun,
    names: HolderNames,
  ): Omit<BlockRunView, 'children'> & { readonly children: readonly number[] } {
    const { usedS } = this.#tree;
    let [last, length, used] = [entry, 1, usedS[entry]!];
    for (;;) {
      const child = this.#firstChild[last]!;
      if (child === 0 || this.#nextChild[child] !== 0 || this.#sets[child] !== this.#sets[entry]) break;
      last = child;
      length++;
      used = Math.max(used, usedS[child]!);
    }
    const children: number[] = [];
    for (let child = this.#firstChild[last]!; child !== 0; child = this.#nextChild[child]!) children.push(child);
    return {
      key: this.#hexOf(entry),
      parent,
      depth: this.#depths[entry]!,
      length,
      blocks: this.#blocks[entry]!,
      children,
      held_by: names.of(this.#holders.get(this.#sets[entry]!) ?? []),
      used_at: used === 0 ? null : 1_000 * used,
    };
  }

  #hexOf(entry: number): string {
    const hex = (word: number): string => (word >>> 0).toString(16).padStart(8, '0');
    return hex(this.#keys[2 * entry + 1]!) + hex(this.#keys[2 * entry]!);
  }

  /** Returns the entry of a key; 0 when nobody holds its block. */
  #entryOf(key: string): number {
    const word = (from: number): number => Number.parseInt(key.slice(from, from + 8), 16) | 0;
    const entry = this.#tree.find(word(8), word(0));
    return entry < this.#sets.length && this.#blocks[entry] !== 0 && this.#isSame(entry) ? entry : 0;
  }
}

/** Returns those of some entries that can be among the `limit` with most blocks, by powers of two; all entries when they are not more. */
function largest(entries: readonly number[], blocks: Int32Array, limit: number): readonly number[] {
  if (entries.length <= limit) return entries;
  const powerOf = (entry: number): number => 31 - Math.clz32(blocks[entry]!);
  const counts = new Int32Array(32);
  for (const entry of entries) counts[powerOf(entry)]!++;
  let [least, numChosen] = [31, counts[31]!];
  while (numChosen < limit) numChosen += counts[--least]!;
  // Single blocks are alike: any of them will do.
  let numSingle = limit;
  return entries.filter((entry) => {
    const power = powerOf(entry);
    return power === least && power === 0 ? numSingle-- > 0 : power >= least;
  });
}

/** Runs that are still to be read, the one with most blocks first: a binary heap, bounded by the entries of the tree. */
class LargestFirst {
  readonly #blocks: Int32Array;
  readonly #heap: PendingRun[] = [];

  constructor(blocks: Int32Array) {
    this.#blocks = blocks;
  }

  push(run: PendingRun): void {
    const heap = this.#heap;
    let at = heap.push(run) - 1;
    for (let above = (at - 1) >> 1; at > 0 && this.#isLarger(run, heap[above]!); above = (at - 1) >> 1) {
      heap[at] = heap[above]!;
      at = above;
    }
    heap[at] = run;
  }

  pop(): PendingRun | undefined {
    const heap = this.#heap;
    const [first] = heap;
    const last = heap.pop();
    if (!last || heap.length === 0) return first;
    let at = 0;
    for (let child = 1; child < heap.length; child = 2 * at + 1) {
      if (child + 1 < heap.length && this.#isLarger(heap[child + 1]!, heap[child]!)) child++;
      if (!this.#isLarger(heap[child]!, last)) break;
      heap[at] = heap[child]!;
      at = child;
    }
    heap[at] = last;
    return first;
  }

  #isLarger(one: PendingRun, other: PendingRun): boolean {
    return this.#blocks[one.entry]! > this.#blocks[other.entry]!;
  }
}

/** Names of the holders that runs have, each listed once. */
class HolderNames {
  readonly all: string[] = [];
  readonly #nameOf: (holder: string) => string | undefined;
  /** Index in `all` by id; -1 for a holder that is no member. */
  readonly #known = new Map<string, number>();

  constructor(nameOf: (holder: string) => string | undefined) {
    this.#nameOf = nameOf;
  }

  of(heldBy: readonly HeldBy[]): BlockRunView['held_by'] {
    return heldBy.flatMap(({ holder, tiers: its }): BlockRunView['held_by'] => {
      const index = this.#indexOf(holder);
      return index < 0 ? [] : [[index, tiers.filter((_, i) => (its & (1 << i)) !== 0)]];
    });
  }

  #indexOf(holder: string): number {
    let index = this.#known.get(holder);
    if (index === undefined) {
      const name = this.#nameOf(holder);
      index = name === undefined ? -1 : this.all.push(name) - 1;
      this.#known.set(holder, index);
    }
    return index;
  }
}

/** Calls `work` for each number in [from, to), with turns of the event loop between slices. */
async function sliced(from: number, to: number, clock: Clock, work: (at: number) => void): Promise<void> {
  for (let at = from; at < to;) {
    const end = Math.min(to, at + SLICE);
    for (; at < end; at++) work(at);
    if (at < to) await clock.turn();
  }
}
