/**
 * Keys of blocks that nobody holds any more, with when and how they went: the newest MAX_KEYS, in a ring.
 *
 *   entry    [key low][key high][tenths of a second since the ring was made][node · 16 | tiers · 2 | lost]     16 bytes
 *   places   open-addressed table from a key to its newest entry, 1 + its index; 0 is free
 *
 * A key that is held again keeps its entry until the ring overwrites it: whoever asks for a key knows whether it is held. Bounded (P1):
 * 24 MB at MAX_KEYS, which the system allocates as they are reached.
 */
import { tiers } from '../../../shared/protocol/block_events.ts';
import type { Gone } from '../../../shared/placement/prefix_index/holder_sets.ts';
import type { GoneListener } from '../../../shared/placement/prefix_index/prefix_index.ts';

/** Keys that are remembered. */
const MAX_KEYS = 1_000_000;
/** Names of nodes that entries can name (P1); those beyond stay unnamed. */
const MAX_NODES = 1 << 16;
/** Words of an entry, and their indices. */
const WORDS = 4;
const LOW = 0;
const HIGH = 1;
const AT = 2;
const SOURCE = 3;
/** Milliseconds of a unit of time: 32 bits reach 13 years. */
const UNIT_MS = 100;
const LOST = 1;
const TIER_SHIFT = 1;
const NODE_SHIFT = 16;
/** Odd multipliers that spread keys, from the golden ratio and from MurmurHash3. */
const SPREAD_LOW = 0x9e3779b1;
const SPREAD_HIGH = 0x85ebca6b;

/** How a block went. */
export interface GoneBlock {
  readonly how: Gone['how'];
  /** Name of its last holder; empty where more nodes than can be named have gone. */
  readonly node: string;
  /** Tier in which the last holder had it. */
  readonly tier: string;
  /** Time of day in ms. */
  readonly at: number;
}

/** Ring of the keys that went last; the prefix index feeds it. */
export class GoneKeys implements GoneListener {
  readonly #clock: { wallMs(): number };
  readonly #startMs: number;
  readonly #maxKeys: number;
  readonly #ring: Int32Array;
  readonly #places: Int32Array;
  /** Numbers of the nodes by name, and their names by number. */
  readonly #numbers = new Map<string, number>([['', 0]]);
  readonly #names = [''];
  /** Entries written so far. */
  #numWritten = 0;
  /** Last event and its packed source: blocks of one run share the event. */
  #last: { readonly gone: Gone; readonly source: number } | undefined;

  constructor(clock: { wallMs(): number }, maxKeys = MAX_KEYS) {
    this.#clock = clock;
    this.#startMs = clock.wallMs();
    this.#maxKeys = maxKeys;
    // Shared buffers, so that the garbage collector does not count memory that no entry has reached.
    this.#ring = new Int32Array(new SharedArrayBuffer(4 * WORDS * maxKeys));
    this.#places = new Int32Array(new SharedArrayBuffer(4 * 2 ** Math.ceil(Math.log2(2 * maxKeys))));
  }

  /** Number of keys that are remembered. */
  get size(): number {
    return Math.min(this.#numWritten, this.#maxKeys);
  }

  wallMs(): number {
    return this.#clock.wallMs();
  }

  onGone(low: number, high: number, gone: Gone): void {
    const ring = this.#ring;
    const index = this.#numWritten % this.#maxKeys;
    const at = WORDS * index;
    if (this.#numWritten >= this.#maxKeys) this.#forget(index);
    this.#numWritten++;
    if (this.#last?.gone !== gone) this.#last = { gone, source: this.#sourceOf(gone) };
    ring[at + LOW] = low;
    ring[at + HIGH] = high;
    ring[at + AT] = Math.max(0, Math.floor((gone.atMs - this.#startMs) / UNIT_MS));
    ring[at + SOURCE] = this.#last.source;
    // An older entry of the key is left behind without a place.
    this.#places[this.#find(low, high)] = index + 1;
  }

  /** Returns how the block of a key went last; undefined for a key that the ring does not have. */
  find(low: number, high: number): GoneBlock | undefined {
    const place = this.#places[this.#find(low, high)]!;
    if (place === 0) return undefined;
    const at = WORDS * (place - 1);
    const source = this.#ring[at + SOURCE]!;
    return {
      how: (source & LOST) === 0 ? 'evicted' : 'lost',
      node: this.#names[source >>> NODE_SHIFT] ?? '',
      tier: tierOf(source >>> TIER_SHIFT),
      at: this.#startMs + UNIT_MS * (this.#ring[at + AT]! >>> 0),
    };
  }

  #sourceOf({ holder, how, tiers: its }: Gone): number {
    const name = nodeOf(holder);
    let number = this.#numbers.get(name);
    if (number === undefined) {
      number = this.#names.length < MAX_NODES ? this.#names.push(name) - 1 : 0;
      if (number > 0) this.#numbers.set(name, number);
    }
    return (number << NODE_SHIFT) | (its << TIER_SHIFT) | (how === 'lost' ? LOST : 0);
  }

  /** Returns the place of a key, or the free one where it would be written. */
  #find(low: number, high: number): number {
    const [ring, places] = [this.#ring, this.#places];
    const mask = places.length - 1;
    for (let place = homeOf(low, high, mask); ; place = (place + 1) & mask) {
      const index = places[place]!;
      if (index === 0) return place;
      const at = WORDS * (index - 1);
      if (ring[at + LOW] === low && ring[at + HIGH] === high) return place;
    }
  }

  /** Frees the place of an entry that is about to be overwritten, and moves later places forward that a search would miss. */
  #forget(index: number): void {
    const [ring, places] = [this.#ring, this.#places];
    const mask = places.length - 1;
    let free = this.#find(ring[WORDS * index + LOW]!, ring[WORDS * index + HIGH]!);
    if (places[free] !== index + 1) return;
    for (let place = (free + 1) & mask; places[place] !== 0; place = (place + 1) & mask) {
      const at = WORDS * (places[place]! - 1);
      const home = homeOf(ring[at + LOW]!, ring[at + HIGH]!, mask);
      // The entry may go to the free place unless its home lies after that.
      if (((place - home) & mask) < ((place - free) & mask)) continue;
      places[free] = places[place]!;
      free = place;
    }
    places[free] = 0;
  }
}

/** Returns the place in a table of `mask` + 1 places where the search for a key begins. */
export function homeOf(low: number, high: number, mask: number): number {
  const mixed = Math.imul(low ^ Math.imul(high, SPREAD_HIGH), SPREAD_LOW);
  return (mixed ^ (mixed >>> 15)) & mask;
}

/** Returns the name of a node from the id of a holder, `name/epoch`. */
export function nodeOf(holder: string): string {
  const end = holder.lastIndexOf('/');
  return end < 0 ? holder : holder.slice(0, end);
}

/** Returns the name of the fastest of some tiers, given as one bit each; bits beyond the tiers are ignored. */
export function tierOf(bits: number): string {
  return tiers.find((_, i) => (bits & (1 << i)) !== 0) ?? '';
}
