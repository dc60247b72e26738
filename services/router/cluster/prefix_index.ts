/**
 * Who holds which blocks, in which tiers. Soft state, fed by block events.
 *
 * A question is a chain of keys; the answer says for each range of it who holds those blocks. A block's entry in the table
 * says its set of holders, and its stretch.
 *
 * A stretch is a part of a chain whose blocks all have one set, found when a question walked it. A key says all that comes before it, so
 * who meets a stretch's first block and its last one has met all between them, and jumps. A block that changes its set ends its stretch.
 *
 * Bounded (P1): beyond `maxKeys` new keys are not indexed, and what is not indexed is computed or found by its holder itself.
 */
import { tiers, type BlockRun } from '../../../shared/protocol/block_events.ts';
import { HolderSets, NO_SET, type HeldBy } from './holder_sets.ts';
import { find, findFrom, homeOf, KeyTable, NOTHING, segmentOf, SEGMENTS, SET, STRETCH, WORDS } from './key_table.ts';
import { Stretches } from './stretches.ts';

const MAX_KEYS = 16_000_000;
/** Places that are looked at together. */
const AHEAD = 32;
/** A walk of so many blocks that had one set is worth remembering, and when it met few stretches only. */
const MIN_STRETCH = 16;
/** Places that one call looks at for forgotten holders: some tens of microseconds. */
const SWEEP_SLOTS = 8_192;
/** Remembered at most by one question: some tens of microseconds. */
const MAX_MARKED = 2_048;

/** Blocks [start, end) of a chain, and who holds all of them in the same tiers; nobody is left out. */
export interface HeldRange {
  readonly start: number;
  readonly end: number;
  readonly heldBy: readonly HeldBy[];
}

export class PrefixIndex {
  readonly #maxKeys: number;
  readonly #table = new KeyTable();
  readonly #sets = new HolderSets();
  readonly #stretches = new Stretches();
  /** Segments that may have entries of forgotten holders: [#swept, SEGMENTS). */
  #swept = SEGMENTS;
  /** Places that were looked at together, and those of the range that is walked. */
  readonly #ahead = { ...placesFor(AHEAD), lows: new Int32Array(AHEAD) };
  readonly #walked = placesFor(MAX_MARKED);
  /** What was not indexed because there was no room. */
  numDropped = 0;

  constructor(maxKeys = MAX_KEYS) {
    this.#maxKeys = maxKeys;
  }

  /** Keys, those of forgotten holders included until they are swept out. */
  get size(): number {
    return this.#table.size;
  }

  get numSets(): number {
    return this.#sets.size;
  }

  /** Of the tables, without what a segment's object takes. */
  get bytes(): number {
    return this.#table.bytes + this.#stretches.bytes;
  }

  apply(holder: string, { operation, tier, keys }: BlockRun): void {
    const number = this.#sets.numberOf(holder);
    const bit = 1 << tiers.indexOf(tier);
    this.#sweep();
    const isStored = operation === 'stored';
    // A run's blocks mostly have the same set before, and the same after.
    let [lastFrom, lastTo] = [NO_SET, NO_SET];
    for (let i = 0; i < keys.length; i += 2) {
      const [low, high] = [keys[i]!, keys[i + 1]!];
      const segment = segmentOf(high);
      let words = this.#table.segments[segment]!;
      let at = find(words, low, high);
      const isNew = words[at + SET] === 0;
      if (isNew && !isStored) continue;
      const from = isNew ? 0 : this.#sets.live(words[at + SET]!);
      if (from !== lastFrom || isNew) {
        lastFrom = from;
        lastTo = this.#sets.step(from, number, bit, isStored);
      }
      const to = lastTo;
      if (to === NO_SET || (isNew && this.#table.size >= this.#maxKeys)) {
        this.numDropped++;
        lastFrom = NO_SET;
        continue;
      }
      if (to === words[at + SET]) continue;
      if (to === 0) {
        this.#delete(segment, at);
        continue;
      }
      if (isNew) {
        at = this.#table.insert(segment, at, low, high);
        words = this.#table.segments[segment]!;
      } else {
        this.#sets.count(words[at + SET]!, -1);
        this.#stretches.end(words[at + STRETCH]!);
      }
      words[at + SET] = to;
      words[at + STRETCH] = 0;
      this.#sets.count(to, 1);
    }
  }

  /**
   * Forgets everything a holder had: it is lost, or about to be told anew. At once for every question; its entries are swept out
   * a segment at a time.
   */
  removeHolder(holder: string): void {
    if (!this.#sets.forget(holder)) return;
    this.#swept = 0;
    this.#sweep();
  }

  /** What `staged` was told to have is what `holder` has; nothing else of it is left. */
  replaceHolder(holder: string, staged: string): void {
    if (this.#sets.has(holder)) this.#swept = 0;
    if (this.#sets.has(staged)) this.#sets.rename(staged, holder);
    else this.#sets.forget(holder);
  }

  /** Who holds what of a chain: ranges of blocks that somebody holds, ascending. */
  ranges(keys: Int32Array): HeldRange[] {
    this.#sweep();
    const sets = this.#sets;
    const { segments, places } = this.#ahead;
    const walked = this.#walked;
    const numBlocks = keys.length / 2;
    const found: HeldRange[] = [];
    let [start, set, numWalked, numJumps] = [0, 0, 0, 0];
    // Blocks [first, last) have been looked at together.
    let [first, last, numAhead] = [0, 0, 1];
    for (let i = 0; i <= numBlocks;) {
      if (i >= last && i < numBlocks) {
        first = i;
        last = Math.min(i + numAhead, numBlocks);
        numAhead = Math.min(4 * numAhead, AHEAD);
        this.#lookAhead(keys, first, last);
      }
      const words = segments[i - first]!;
      const at = places[i - first]!;
      const raw = i === numBlocks ? 0 : words[at + SET]!;
      const its = raw === 0 ? 0 : sets.live(raw);
      if (its !== set || i === numBlocks) {
        if (set !== 0) {
          found.push({ start, end: i, heldBy: sets.heldBy(set) });
          if (numWalked >= MIN_STRETCH && numWalked * MIN_STRETCH > i - start)
            this.#mark(keys, start, numJumps > 0 ? Math.min(i, start + MAX_MARKED) : start + numWalked, numJumps > 0);
        }
        [start, set, numWalked, numJumps] = [i, its, 0, 0];
      }
      const stretch = its === 0 ? 0 : words[at + STRETCH]!;
      const next = stretch === 0 ? i + 1 : this.#jump(keys, i, stretch);
      if (next === i + 1 && numWalked < MAX_MARKED) {
        walked.segments[numWalked] = words;
        walked.places[numWalked++] = at;
      }
      if (next > i + 1) {
        numJumps++;
        // Who jumps need not look ahead.
        numAhead = 1;
      }
      i = next;
    }
    return found;
  }

  /** Where blocks [first, last) are, into `#ahead`: memory answers all of them at the same time. */
  #lookAhead(keys: Int32Array, first: number, last: number): void {
    const { segments, places, lows } = this.#ahead;
    const count = last - first;
    for (let k = 0; k < count; k++) {
      const words = this.#table.segments[segmentOf(keys[2 * (first + k) + 1]!)]!;
      const at = homeOf(words, keys[2 * (first + k)]!);
      segments[k] = words;
      places[k] = at;
      lows[k] = words[at]!;
    }
    for (let k = 0; k < count; k++) {
      const [low, high] = [keys[2 * (first + k)]!, keys[2 * (first + k) + 1]!];
      const words = segments[k]!;
      const at = places[k]!;
      if (lows[k] !== low || words[at + 1] !== high || words[at + SET] === 0)
        places[k] = findFrom(words, at, low, high);
    }
  }

  /** The first block from `from` on that is not in its stretch. */
  #jump(keys: Int32Array, from: number, stretch: number): number {
    const end = Math.min(this.#stretches.endOf(stretch), keys.length / 2);
    let [inside, outside] = [from, end];
    // The last one first: mostly the question has the whole stretch.
    for (let at = end - 1; inside + 1 < outside; at = (inside + outside) >> 1) {
      const words = this.#table.segments[segmentOf(keys[2 * at + 1]!)]!;
      if (words[find(words, keys[2 * at]!, keys[2 * at + 1]!) + STRETCH] === stretch) inside = at;
      else outside = at;
    }
    return inside + 1;
  }

  /** Remembers that blocks [start, end) have one set. All of them were walked, or some were jumped over. */
  #mark(keys: Int32Array, start: number, end: number, isJumped: boolean): void {
    const stretch = this.#stretches.begin(end);
    for (let i = start; i < end; i++) {
      const words = isJumped ? this.#table.segments[segmentOf(keys[2 * i + 1]!)]! : this.#walked.segments[i - start]!;
      const at = isJumped ? find(words, keys[2 * i]!, keys[2 * i + 1]!) : this.#walked.places[i - start]!;
      words[at + STRETCH] = stretch;
    }
  }

  #delete(segment: number, at: number): void {
    const words = this.#table.segments[segment]!;
    this.#sets.count(words[at + SET]!, -1);
    this.#stretches.end(words[at + STRETCH]!);
    this.#table.delete(segment, at);
  }

  /** The next segments of a sweep that is under way. */
  #sweep(): void {
    for (let numSlots = 0; this.#swept < SEGMENTS && numSlots < SWEEP_SLOTS; this.#swept++) {
      numSlots += this.#table.segments[this.#swept]!.length / WORDS;
      this.#sweepSegment(this.#swept);
    }
  }

  #sweepSegment(segment: number): void {
    const words = this.#table.segments[segment]!;
    for (let at = 0; at < words.length;) {
      const raw = words[at + SET]!;
      const set = raw === 0 ? 0 : this.#sets.live(raw);
      if (raw !== 0 && set === 0) {
        // Another may be there now.
        this.#delete(segment, at);
        continue;
      }
      if (set !== raw) {
        this.#sets.count(raw, -1);
        this.#sets.count(set, 1);
        words[at + SET] = set;
      }
      at += WORDS;
    }
  }
}

function placesFor(count: number): { readonly segments: Int32Array[]; readonly places: Int32Array } {
  return { segments: Array.from({ length: count }, () => NOTHING), places: new Int32Array(count) };
}
