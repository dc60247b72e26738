/**
 * Records in host memory, least recently used first out: a prefill or decode instance's outbox, a store's DRAM tier.
 *
 * A pinned record is not evicted; an open fetch stream is the pin. Bounded by the slab's slots (P1). One key holds one
 * record: a second offer of it is counted as a duplicate and dropped.
 */
import assert from 'node:assert/strict';
import type { BlockKey, ChainLink } from './block_key.ts';
import type { Slab } from './slab.ts';

export interface CachedRecord {
  readonly link: ChainLink;
  readonly slot: number;
  numPins: number;
}

export interface TierCounters {
  hits: number;
  misses: number;
  evictions: number;
  /** Blocks that came in, duplicates too. */
  offered: number;
  /** Blocks that took room. */
  stored: number;
}

export function newTierCounters(): TierCounters {
  return { hits: 0, misses: 0, evictions: 0, offered: 0, stored: 0 };
}

/** How many times over the stored blocks were offered; 1 when nothing was offered twice. */
export function dedupFactor(counters: TierCounters): number {
  return counters.stored === 0 ? 1 : counters.offered / counters.stored;
}

export class RecordCache {
  readonly counters = newTierCounters();
  readonly #slab: Slab;
  readonly #onEvict: (record: CachedRecord) => void;
  /** Insertion order is the order of use: a touched record is taken out and put back. */
  readonly #records = new Map<BlockKey, CachedRecord>();

  constructor(slab: Slab, onEvict: (record: CachedRecord) => void) {
    this.#slab = slab;
    this.#onEvict = onEvict;
  }

  get size(): number {
    return this.#records.size;
  }

  records(): Iterable<CachedRecord> {
    return this.#records.values();
  }

  has(key: BlockKey): boolean {
    return this.#records.has(key);
  }

  /** The record if it is this very block (digest included), freshly used. Counts a hit or a miss. */
  get(link: ChainLink): CachedRecord | undefined {
    const record = this.#records.get(link.key);
    if (record?.link.digest !== link.digest) {
      this.counters.misses++;
      return undefined;
    }
    this.counters.hits++;
    this.#records.delete(link.key);
    this.#records.set(link.key, record);
    return record;
  }

  /** Takes over the slot. False, and the slot is still the caller's, when the key is already held. */
  put(link: ChainLink, slot: number): boolean {
    this.counters.offered++;
    if (this.#records.has(link.key)) return false;
    this.counters.stored++;
    this.#records.set(link.key, { link, slot, numPins: 0 });
    return true;
  }

  /** A slot to fill: a free one, else that of the least recently used record without a pin. */
  takeSlot(): number | undefined {
    const free = this.#slab.allocate();
    if (free !== undefined) return free;
    for (const record of this.#records.values()) {
      if (record.numPins > 0) continue;
      this.#drop(record);
      this.counters.evictions++;
      return this.#slab.allocate();
    }
    return undefined;
  }

  giveSlot(slot: number): void {
    this.#slab.release(slot);
  }

  /** Forgets a record, for instance because it turned out damaged. A pinned one stays until its streams end. */
  remove(key: BlockKey): void {
    const record = this.#records.get(key);
    if (record && record.numPins === 0) this.#drop(record);
  }

  pin(record: CachedRecord): void {
    record.numPins++;
  }

  unpin(record: CachedRecord): void {
    assert(record.numPins > 0, 'a record is unpinned once per pin');
    record.numPins--;
  }

  #drop(record: CachedRecord): void {
    this.#records.delete(record.link.key);
    this.#slab.release(record.slot);
    this.#onEvict(record);
  }
}
