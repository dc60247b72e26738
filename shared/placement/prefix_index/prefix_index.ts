/**
 * Index of the holders of each block, and the tiers that hold it. Soft state, fed by block events.
 *
 * A query is a chain of keys; the answer names the holders of each range of blocks. A block's entry in the table has its set of
 * holders and its segment.
 *
 * A segment is a part of a chain whose blocks all have one set, found when a query walked it. A key names all tokens before it, so a
 * query that contains a segment's first block and its last one contains all between them, and jumps. A block that changes its set
 * ends its segment.
 *
 * Bounded (P1): beyond `maxKeys` new keys are not indexed, and blocks that are not indexed are computed, or found by their holder itself.
 */
import { tiers, type BlockRun } from '../../protocol/block_events.ts';
import { HolderSets, NO_SET, type Gone, type HeldBy } from './holder_sets.ts';
import { KeyTable, MAX_TOGETHER, PARTS, SET, SEGMENT, WORDS } from './key_table.ts';
import { KeySegments } from './key_segments.ts';

const MAX_KEYS = 16_000_000;
/**
 * Least number of blocks walked one by one before a range with one set becomes a segment; they must also be over 1 / MIN_SEGMENT of
 * the range.
 */
const MIN_SEGMENT = 16;
/** Places that one call sweeps for forgotten holders: some tens of microseconds. */
const SWEEP_SLOTS = 8_192;
/** Places that count as swept for each block that is reported to a listener, which takes some tenths of a microsecond. */
const REPORTED_SLOTS = 32;
/** Upper bound of the blocks that one query marks as a segment: some tens of microseconds. */
const MAX_MARKED = 2_048;

/** Blocks [start, end) of a chain, with every holder that has all of them in the same tiers. */
export interface HeldRange {
  readonly start: number;
  readonly end: number;
  readonly heldBy: readonly HeldBy[];
}

/** Listener for blocks that nobody holds any more; an index without one works the same. */
export interface GoneListener {
  /** Returns the time of day, in ms, at which holders are forgotten and blocks removed. */
  wallMs(): number;
  /** Called for each block that lost its last holder: at once when it was removed, for forgotten holders when the sweep gets there. */
  onGone(low: number, high: number, gone: Gone): void;
}

/** Maps block keys to the holders of the block, and answers which ranges of a chain are held where. */
export class PrefixIndex {
  readonly #maxKeys: number;
  readonly #table: KeyTable;
  readonly #sets = new HolderSets();
  readonly #segments = new KeySegments();
  /** First part of the table that is not swept completely: parts [#swept, PARTS) may have entries of forgotten holders. */
  #swept = PARTS;
  /**
   * Progress within part #swept: slots from #sweptFrom on are done. #sweptEnd is the part's end when its sweep began, so that
   * growth is noticed.
   */
  #sweptFrom = 0;
  #sweptEnd = 0;
  /** Scratch arrays: slots of the keys looked up together, and slots of the blocks walked in the current range. */
  readonly #ahead = new Int32Array(MAX_TOGETHER);
  readonly #walked = new Int32Array(MAX_MARKED);
  readonly #listener: GoneListener | undefined;
  /** Changes of a block that were not indexed for want of room. */
  numDropped = 0;

  constructor(maxKeys = MAX_KEYS, listener?: GoneListener) {
    this.#maxKeys = maxKeys;
    this.#table = new KeyTable(maxKeys);
    this.#listener = listener;
  }

  /** Keys, those of forgotten holders included until they are swept out. */
  get size(): number {
    return this.#table.size;
  }

  get numSets(): number {
    return this.#sets.size;
  }

  get bytes(): number {
    return this.#table.bytes + this.#segments.bytes;
  }

  apply(holder: string, { operation, tier, keys }: BlockRun): void {
    const number = this.#sets.numberOf(holder);
    const bit = 1 << tiers.indexOf(tier);
    this.#sweep();
    const { words } = this.#table;
    const isStored = operation === 'stored';
    // A run's blocks mostly have the same set before, and the same after.
    let [lastFrom, lastTo] = [NO_SET, NO_SET];
    let gone: Gone | undefined;
    const numBlocks = keys.length / 2;
    for (let i = 0; i < numBlocks; i++) {
      if (i % MAX_TOGETHER === 0) this.#table.findAll(keys, i, Math.min(i + MAX_TOGETHER, numBlocks), this.#ahead);
      const low = keys[2 * i]!;
      const high = keys[2 * i + 1]!;
      let at = this.#ahead[i % MAX_TOGETHER]!;
      // The key was absent when it was looked up, or its entry has moved since.
      if (!this.#table.isAt(at, low, high)) at = this.#table.find(low, high);
      const isNew = words[at + SET] === 0;
      if (isNew && !isStored) continue;
      const from = isNew ? 0 : this.#sets.live(words[at + SET]!);
      if (from !== lastFrom) {
        lastFrom = from;
        lastTo = this.#sets.step(from, number, bit, isStored);
      }
      const to = lastTo;
      if (to === words[at + SET]) continue;
      // The block's holders are forgotten, and the sweep has not been there.
      if (from === 0 && !isNew) this.#departed(at);
      if (to === 0) {
        if (from !== 0 && this.#listener) {
          gone ??= { holder, how: 'evicted', atMs: this.#listener.wallMs(), tiers: bit };
          this.#listener.onGone(low, high, gone);
        }
        this.#delete(at);
        continue;
      }
      if (isNew && to !== NO_SET) at = this.#table.size < this.#maxKeys ? this.#table.insert(at, low, high) : -1;
      if (to === NO_SET || at < 0) {
        this.numDropped++;
        lastFrom = NO_SET;
        continue;
      }
      if (!isNew) {
        this.#sets.count(words[at + SET]!, -1);
        this.#segments.end(words[at + SEGMENT]!);
      }
      words[at + SET] = to;
      words[at + SEGMENT] = 0;
      this.#sets.count(to, 1);
    }
  }

  /**
   * Removes a holder that is lost or about to be indexed anew. Queries ignore the holder at once; its entries are swept out later,
   * SWEEP_SLOTS places per call.
   */
  removeHolder(holder: string): void {
    if (!this.#sets.forget(holder, this.#goneNow(holder, 'lost'))) return;
    this.#beginSweep();
    this.#sweep();
  }

  /** Removes a holder whose blocks were never announced as a whole: nobody is told of them. */
  dropStaged(staged: string): void {
    if (!this.#sets.forget(staged)) return;
    this.#beginSweep();
    this.#sweep();
  }

  /** Renames the holder `staged` to `holder`; everything that `holder` had before is forgotten. */
  replaceHolder(holder: string, staged: string): void {
    if (this.#sets.has(holder)) this.#beginSweep();
    const gone = this.#goneNow(holder, 'evicted');
    if (this.#sets.has(staged)) this.#sets.rename(staged, holder, gone);
    else this.#sets.forget(holder, gone);
  }

  /** Returns how a block went that the sweep has not reached; undefined for a block that is held, unknown or swept. */
  goneUnswept(low: number, high: number): Gone | undefined {
    if (this.#swept === PARTS) return undefined;
    const raw = this.#table.words[this.#table.find(low, high) + SET]!;
    return raw === 0 || this.#sets.live(raw) !== 0 ? undefined : this.#sets.goneWith(raw);
  }

  /** Returns the number of the set of a block's holders; 0 when nobody holds it. A number may mean another set later. */
  setOf(low: number, high: number): number {
    const raw = this.#table.words[this.#table.find(low, high) + SET]!;
    return raw === 0 ? 0 : this.#sets.live(raw);
  }

  /** Returns the holders of a set that {@link setOf} has just named. */
  heldBySet(set: number): readonly HeldBy[] {
    return this.#sets.heldBy(set);
  }

  /** Returns the number of blocks that each holder alone has; holders without any are left out. Time grows with the number of sets. */
  onlyHeld(): Map<string, number> {
    const only = new Map<string, number>();
    this.#sets.eachOnly((holder, numBlocks) => only.set(holder, (only.get(holder) ?? 0) + numBlocks));
    return only;
  }

  /** Returns the ranges of a chain that some instance holds, ascending, with their holders. `keys` has two words per block. */
  ranges(keys: Int32Array): HeldRange[] {
    this.#sweep();
    const sets = this.#sets;
    const { words } = this.#table;
    const ahead = this.#ahead;
    const walked = this.#walked;
    const numBlocks = keys.length / 2;
    const found: HeldRange[] = [];
    let [start, raw, set, numWalked, numJumps] = [0, 0, 0, 0, 0];
    const endRange = (end: number): void => {
      if (set === 0) return;
      found.push({ start, end, heldBy: sets.heldBy(set) });
      if (numWalked >= MIN_SEGMENT && numWalked * MIN_SEGMENT > end - start)
        this.#mark(keys, start, numJumps > 0 ? Math.min(end, start + MAX_MARKED) : start + numWalked, numJumps > 0);
    };
    // Places of blocks [first, last) are in `ahead`.
    let [first, last, numAhead] = [0, 0, 1];
    for (let i = 0; i < numBlocks;) {
      if (i >= last) {
        first = i;
        last = Math.min(i + numAhead, numBlocks);
        numAhead = Math.min(4 * numAhead, MAX_TOGETHER);
        this.#table.findAll(keys, first, last, ahead);
      }
      const at = ahead[i - first]!;
      if (words[at + SET] !== raw) {
        raw = words[at + SET]!;
        const its = raw === 0 ? 0 : sets.live(raw);
        if (its !== set) {
          endRange(i);
          [start, set, numWalked, numJumps] = [i, its, 0, 0];
        }
      }
      const segment = set === 0 ? 0 : words[at + SEGMENT]!;
      const next = segment === 0 ? i + 1 : this.#jump(keys, i, segment);
      if (next > i + 1) {
        numJumps++;
        // After a jump the next blocks are mostly jumped over too, so they are not looked up ahead.
        numAhead = 1;
      } else if (numWalked < MAX_MARKED) walked[numWalked++] = at;
      i = next;
    }
    endRange(numBlocks);
    return found;
  }

  /** Returns the first block after `from` that is not in the segment of block `from`, by binary search. */
  #jump(keys: Int32Array, from: number, segment: number): number {
    const end = Math.min(this.#segments.endOf(segment), keys.length / 2);
    const { words } = this.#table;
    let [inside, outside] = [from, end];
    // Try the last block first: most queries contain the whole segment.
    for (let at = end - 1; inside + 1 < outside; at = (inside + outside) >> 1) {
      if (words[this.#table.find(keys[2 * at]!, keys[2 * at + 1]!) + SEGMENT] === segment) inside = at;
      else outside = at;
    }
    return inside + 1;
  }

  /**
   * Marks blocks [start, end), which have one set, as a segment. `isJumped`: some blocks were jumped over, so their slots have to
   * be looked up.
   */
  #mark(keys: Int32Array, start: number, end: number, isJumped: boolean): void {
    const segment = this.#segments.begin(end);
    const { words } = this.#table;
    for (let i = start; i < end; i++) {
      const at = isJumped ? this.#table.find(keys[2 * i]!, keys[2 * i + 1]!) : this.#walked[i - start]!;
      words[at + SEGMENT] = segment;
    }
  }

  #goneNow(holder: string, how: Gone['how']): Omit<Gone, 'tiers'> | undefined {
    return this.#listener && { holder, how, atMs: this.#listener.wallMs() };
  }

  /**
   * Reports the block at `at`, which is about to be deleted or to get other holders, since all of its holders are forgotten. Returns
   * whether somebody was told.
   */
  #departed(at: number): boolean {
    if (!this.#listener) return false;
    const { words } = this.#table;
    const gone = this.#sets.goneWith(words[at + SET]!);
    if (gone) this.#listener.onGone(words[at]!, words[at + 1]!, gone);
    return gone !== undefined;
  }

  #delete(at: number): void {
    const { words } = this.#table;
    this.#sets.count(words[at + SET]!, -1);
    this.#segments.end(words[at + SEGMENT]!);
    this.#table.delete(at);
  }

  #beginSweep(): void {
    this.#swept = 0;
    this.#sweptEnd = 0;
  }

  /** Sweeps the next SWEEP_SLOTS slots, while a sweep is under way. */
  #sweep(): void {
    for (let numLeft = SWEEP_SLOTS; this.#swept < PARTS && numLeft > 0;) numLeft -= this.#sweepPart(numLeft);
  }

  /**
   * Sweeps up to `most` slots of part #swept, from its last slot to its first: a deletion moves entries to lower slots only, so
   * none escapes. A part that has grown is swept anew. Returns the number of slots swept, plus 1.
   */
  #sweepPart(most: number): number {
    const { words } = this.#table;
    const [first, end] = this.#table.boundsOf(this.#swept);
    if (end !== this.#sweptEnd) [this.#sweptFrom, this.#sweptEnd] = [end, end];
    let at = this.#sweptFrom;
    const isDone = at === first || this.#table.isEmpty(this.#swept);
    let numLeft = isDone ? 0 : most;
    while (at > first && numLeft > 0) {
      at -= WORDS;
      numLeft--;
      const raw = words[at + SET]!;
      if (raw === 0) continue;
      const set = this.#sets.live(raw);
      if (set === 0) {
        if (this.#departed(at)) numLeft -= REPORTED_SLOTS;
        this.#delete(at);
      } else if (set !== raw) {
        this.#sets.count(raw, -1);
        this.#sets.count(set, 1);
        words[at + SET] = set;
      }
    }
    this.#sweptFrom = at;
    if (isDone || at === first) this.#swept++;
    return isDone ? 1 : most - numLeft + 1;
  }
}
