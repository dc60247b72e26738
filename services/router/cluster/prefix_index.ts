/**
 * Who holds which blocks, in which tiers. Soft state, fed by block events.
 *
 * A question is a chain of keys; the answer says for each range of it who holds those blocks. A table in typed arrays, four words a block:
 *
 *   [key low][key high][set of holders][stretch]     open addressing, in SEGMENTS tables that grow one by one, so that none takes long
 *
 * A stretch is a part of a chain whose blocks all have one set, found when a question walked it. A key says all that comes before it, so
 * who meets a stretch's first block and its last one has met all between them, and jumps. A block that changes its set ends its stretch.
 *
 * Bounded (P1): beyond `maxKeys` new keys are not indexed, and what is not indexed is computed or found by its holder itself.
 */
import { tiers, type BlockRun } from '../../../shared/protocol/block_events.ts';
import { HolderSets, NO_SET, type HeldBy } from './holder_sets.ts';
import { Stretches } from './stretches.ts';

const MAX_KEYS = 16_000_000;
const SEGMENTS = 4_096;
/** Bits of a key's upper word that are not the segment's number. */
const SEGMENT_SHIFT = 20;
const WORDS = 4;
const SET = 2;
const STRETCH = 3;
/** Spreads keys that are small numbers. */
const SPREAD = 0x9e3779b1;
const MIN_SLOTS = 4;
const GROWTH = 1.25;
const MAX_LOAD = 0.75;
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
  readonly #segments: Int32Array[] = Array.from({ length: SEGMENTS }, () => NOTHING);
  /** How often each segment grew. */
  readonly #levels = new Uint8Array(SEGMENTS);
  /** Keys of each segment. */
  readonly #sizes = new Int32Array(SEGMENTS);
  readonly #sets = new HolderSets();
  readonly #stretches = new Stretches();
  #size = 0;
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
    return this.#size;
  }

  get numSets(): number {
    return this.#sets.size;
  }

  /** Of the tables, without what a segment's object takes. */
  get bytes(): number {
    return this.#segments.reduce((sum, { byteLength }) => sum + byteLength, 0) + this.#stretches.bytes;
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
      const segment = high >>> SEGMENT_SHIFT;
      let words = this.#segments[segment]!;
      let at = find(words, low, high);
      const isNew = words[at + SET] === 0;
      if (isNew && !isStored) continue;
      const from = isNew ? 0 : this.#sets.live(words[at + SET]!);
      if (from !== lastFrom || isNew) {
        lastFrom = from;
        lastTo = this.#sets.step(from, number, bit, isStored);
      }
      const to = lastTo;
      if (to === NO_SET || (isNew && this.#size >= this.#maxKeys)) {
        this.numDropped++;
        lastFrom = NO_SET;
        continue;
      }
      if (to === words[at + SET]) continue;
      if (to === 0) {
        this.#delete(segment, words, at);
        continue;
      }
      if (isNew) {
        if (this.#sizes[segment]! + 1 > (words.length / WORDS) * MAX_LOAD) {
          words = this.#grow(segment);
          at = find(words, low, high);
        }
        words[at] = low;
        words[at + 1] = high;
        this.#sizes[segment]!++;
        this.#size++;
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

  /** Per holder, the number of blocks it has without a hole from the first on; holders of none are left out. */
  runs(keys: Int32Array): Map<string, number> {
    return runsOf(this.ranges(keys));
  }

  /** Where blocks [first, last) are, into `#ahead`: memory answers all of them at the same time. */
  #lookAhead(keys: Int32Array, first: number, last: number): void {
    const { segments, places, lows } = this.#ahead;
    const count = last - first;
    for (let k = 0; k < count; k++) {
      const words = this.#segments[keys[2 * (first + k) + 1]! >>> SEGMENT_SHIFT]!;
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
      const words = this.#segments[keys[2 * at + 1]! >>> SEGMENT_SHIFT]!;
      if (words[find(words, keys[2 * at]!, keys[2 * at + 1]!) + STRETCH] === stretch) inside = at;
      else outside = at;
    }
    return inside + 1;
  }

  /** Remembers that blocks [start, end) have one set. All of them were walked, or some were jumped over. */
  #mark(keys: Int32Array, start: number, end: number, isJumped: boolean): void {
    const stretch = this.#stretches.begin(end);
    for (let i = start; i < end; i++) {
      const words = isJumped ? this.#segments[keys[2 * i + 1]! >>> SEGMENT_SHIFT]! : this.#walked.segments[i - start]!;
      const at = isJumped ? find(words, keys[2 * i]!, keys[2 * i + 1]!) : this.#walked.places[i - start]!;
      words[at + STRETCH] = stretch;
    }
  }

  #grow(segment: number): Int32Array {
    const old = this.#segments[segment]!;
    const words = new Int32Array(WORDS * slotsOf(segment, ++this.#levels[segment]!));
    for (let from = 0; from < old.length; from += WORDS) {
      if (old[from + SET] === 0) continue;
      const at = find(words, old[from]!, old[from + 1]!);
      for (let i = 0; i < WORDS; i++) words[at + i] = old[from + i]!;
    }
    this.#segments[segment] = words;
    return words;
  }

  /** Takes an entry out, and moves those behind it that could not have their place. */
  #delete(segment: number, words: Int32Array, at: number): void {
    this.#sets.count(words[at + SET]!, -1);
    this.#stretches.end(words[at + STRETCH]!);
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

  /** The next segments of a sweep that is under way. */
  #sweep(): void {
    for (let numSlots = 0; this.#swept < SEGMENTS && numSlots < SWEEP_SLOTS; this.#swept++) {
      numSlots += this.#segments[this.#swept]!.length / WORDS;
      this.#sweepSegment(this.#swept);
    }
  }

  #sweepSegment(segment: number): void {
    const words = this.#segments[segment]!;
    for (let at = 0; at < words.length;) {
      const raw = words[at + SET]!;
      const set = raw === 0 ? 0 : this.#sets.live(raw);
      if (raw !== 0 && set === 0) {
        // Another may be there now.
        this.#delete(segment, words, at);
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

/** Runs from the first block on. */
export function runsOf(ranges: readonly HeldRange[]): Map<string, number> {
  const runs = new Map<string, number>();
  let end = 0;
  for (const range of ranges) {
    if (range.start !== end) break;
    for (const { holder } of range.heldBy) if ((runs.get(holder) ?? 0) === range.start) runs.set(holder, range.end);
    end = range.end;
  }
  return runs;
}

/** A segment until it has something: one place, which is free. */
const NOTHING = new Int32Array(WORDS);

/** Not all grow at the same time. */
function slotsOf(segment: number, level: number): number {
  return Math.ceil(MIN_SLOTS * GROWTH ** (level + segment / SEGMENTS));
}

function homeOf(words: Int32Array, low: number): number {
  return WORDS * Math.floor(((Math.imul(low, SPREAD) >>> 0) * (words.length / WORDS)) / 2 ** 32);
}

function placesFor(count: number): { readonly segments: Int32Array[]; readonly places: Int32Array } {
  return { segments: Array.from({ length: count }, () => NOTHING), places: new Int32Array(count) };
}

/** Where a key is, or the empty place where it would be. */
function find(words: Int32Array, low: number, high: number): number {
  return findFrom(words, homeOf(words, low), low, high);
}

function findFrom(words: Int32Array, from: number, low: number, high: number): number {
  let at = from;
  while (words[at + SET] !== 0 && (words[at] !== low || words[at + 1] !== high)) {
    at += WORDS;
    if (at === words.length) at = 0;
  }
  return at;
}
