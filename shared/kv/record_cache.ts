/**
 * Records in host memory, least recently used first out: a prefill or decode instance's outbox, a store's DRAM tier.
 *
 * An open fetch stream is a soft pin: what it still has to send is evicted last, so a stream cannot starve and cannot block
 * either. A record that is on its way to disk is pinned: its slot is not anybody else's until it is there. Bounded by the slab's slots (P1). One key holds one record: a second one is counted as a duplicate and dropped.
 */
import type { BlockKey, BlockHash } from './block_key.ts';
import { slotBytes, type Slab } from './slab.ts';
import { newTierCounters } from './tier_counters.ts';

export interface CachedRecord {
  readonly hash: BlockHash;
  readonly slot: number;
}

/** A record for a reader, until it is released. */
export interface Lent {
  readonly record: Uint8Array;
  /** Where it lies, and stays; undefined: it is a copy. */
  readonly slot: number | undefined;
  readonly release: () => void;
}

export interface InPlace extends Lent {
  readonly slot: number;
}

/** One slot of so many may be on loan. */
const LOAN_SHARE = 4;

export interface RecordCacheOptions {
  /** A record left; its slot is free already. */
  readonly onEvict: (record: CachedRecord) => void;
  /** Somebody is about to read this key: evicted only when nothing else is left. */
  readonly isWanted: (key: BlockKey) => boolean;
}

export class RecordCache {
  readonly counters = newTierCounters();
  readonly #slab: Slab;
  readonly #options: RecordCacheOptions;
  /** Insertion order is the order of use: a touched record is taken out and put back. */
  readonly #records = new Map<BlockKey, CachedRecord>();
  readonly #pinned = new Map<BlockKey, number>();
  #numOnLoan = 0;

  constructor(slab: Slab, options: RecordCacheOptions) {
    this.#slab = slab;
    this.#options = options;
  }

  get size(): number {
    return this.#records.size;
  }

  /** Slots of the slab that are taken and hold no record: something is on its way into or out of them. */
  get numLent(): number {
    return this.#slab.numSlots - this.#slab.numFree - this.size;
  }

  has(key: BlockKey): boolean {
    return this.#records.has(key);
  }

  /** The record if it is this very block (digest included), freshly used. The caller counts hits and misses. */
  find(hash: BlockHash): CachedRecord | undefined {
    const record = this.#records.get(hash.key);
    if (record?.hash.digest !== hash.digest) return undefined;
    this.#records.delete(hash.key);
    this.#records.set(hash.key, record);
    return record;
  }

  /** Takes over the slot. False, and the slot is still the caller's, when the key is already held. */
  put(hash: BlockHash, slot: number): boolean {
    this.counters.offered++;
    if (this.#records.has(hash.key)) return false;
    this.counters.stored++;
    this.#records.set(hash.key, { hash, slot });
    return true;
  }

  /** Records that lie here for readers, pinned. */
  get numOnLoan(): number {
    return this.#numOnLoan;
  }

  /** So many more may be. */
  get numLoanable(): number {
    return Math.floor(this.#slab.numSlots / LOAN_SHARE) - this.#numOnLoan;
  }

  /** The record where it lies, or a copy of it when enough are on loan. The caller counts hits and misses. */
  lend(hash: BlockHash, bytes: number): Lent | undefined {
    const inPlace = this.lendInPlace(hash, bytes);
    if (inPlace) return inPlace;
    const found = this.find(hash);
    const record = found && Buffer.from(slotBytes(this.#slab.memory, found.slot).subarray(0, bytes));
    return record && { record, slot: undefined, release: () => undefined };
  }

  /**
   * The record where it lies, freshly used, pinned until it is released. Undefined when it is not here, or a quarter of the slots is on
   * loan: readers that stop leave the others room.
   */
  lendInPlace(hash: BlockHash, bytes: number): InPlace | undefined {
    if (this.numLoanable <= 0) return undefined;
    const found = this.find(hash);
    if (!found) return undefined;
    const { slot } = found;
    const record = slotBytes(this.#slab.memory, slot).subarray(0, bytes);
    this.pin(hash.key);
    this.#numOnLoan++;
    let isOut = true;
    return {
      record,
      slot,
      release: () => {
        if (!isOut) return;
        isOut = false;
        this.#numOnLoan--;
        this.unpin(hash.key);
      },
    };
  }

  /** The record is not evicted until it is unpinned as often. */
  pin(key: BlockKey): void {
    this.#pinned.set(key, (this.#pinned.get(key) ?? 0) + 1);
  }

  unpin(key: BlockKey): void {
    const count = this.#pinned.get(key) ?? 0;
    if (count > 1) this.#pinned.set(key, count - 1);
    else this.#pinned.delete(key);
  }

  /** A slot to fill: a free one, else that of the least recently used record, wanted ones last. Undefined when all are in other hands. */
  takeSlot(): number | undefined {
    const free = this.#slab.allocate();
    if (free !== undefined) return free;
    const victim = this.#victim();
    if (!victim) return undefined;
    this.remove(victim.hash.key);
    this.counters.evictions++;
    return this.#slab.allocate();
  }

  giveSlot(slot: number): void {
    this.#slab.release(slot);
  }

  remove(key: BlockKey): void {
    const record = this.#records.get(key);
    if (!record) return;
    this.#records.delete(key);
    this.#slab.release(record.slot);
    this.#options.onEvict(record);
  }

  #victim(): CachedRecord | undefined {
    let oldest: CachedRecord | undefined;
    for (const record of this.#records.values()) {
      if (this.#pinned.has(record.hash.key)) continue;
      if (!this.#options.isWanted(record.hash.key)) return record;
      oldest ??= record;
    }
    return oldest;
  }
}
