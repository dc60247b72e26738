/**
 * Records in host memory with least-recently-used eviction: the outbox of an instance, or the DRAM tier of a store.
 *
 * A record that an open fetch stream has yet to send is a soft pin: it is evicted last, so a stream neither starves nor blocks
 * others. A record that is being written to disk is pinned: its slot is not reused before the write is done. Bounded by the slab's
 * bytes (P1). One key holds one record; a second one is counted as a duplicate and dropped.
 *
 * Eviction runs ahead of need: when less than LOW_WATER of the memory is free, the oldest records are evicted in turns of their
 * own until HIGH_WATER is free, so that storing a record seldom waits for an eviction.
 */
import type { BlockKey, BlockHash, Digest, TenantId } from './block_key.ts';
import { LeastRecentlyUsed, type EvictionPolicy } from './eviction.ts';
import { FormatCounts } from './format_counts.ts';
import { isStateRecord, tenantOf } from './record.ts';
import { slotBytes, slotLength, type Slab } from './slab.ts';
import { StateShare } from './state_share.ts';
import type { Extent } from './extent_allocator.ts';
import { newTierCounters } from './tier_counters.ts';

/** A record of the cache: its names, and `bytes` bytes at `slot` of the slab. */
export interface CachedRecord {
  readonly hash: BlockHash;
  readonly format: Digest;
  readonly slot: number;
  readonly bytes: number;
}

/** A record for a reader, until it is released. */
export interface BorrowedRecord {
  readonly record: Uint8Array;
  /** Slot of the record, which stays in place until the release; undefined when `record` is a copy. */
  readonly slot: number | undefined;
  /** Whether the record was read from disk for this reader; absent: it was in memory. */
  readonly isFromDisk?: boolean;
  readonly release: () => void;
}

/** A borrowed record that is read in its slot, without a copy. */
export interface RecordInPlace extends BorrowedRecord {
  readonly slot: number;
}

/** Fraction of the slab that readers may borrow at once: one byte in BORROWED_SHARE. */
const BORROWED_SHARE = 4;
/**
 * Fractions of the slab that start and end trimming ahead of need. Where LOW_WATER is less than a slot, records are evicted only when
 * their slot is needed.
 */
const LOW_WATER = 0.02;
const HIGH_WATER = 0.04;
/** Records evicted per turn of the thread's loop when the cache is trimmed ahead of need: some tenths of a millisecond. */
const VICTIMS_PER_TURN = 64;
const LOOKS_PER_TURN = 1_024;
/** Most evictions of one acquireSlot(), when a larger record needs adjacent slots and others lie between them. */
const MAX_VICTIMS = 32;

/** Callbacks of a RecordCache. */
export interface RecordCacheOptions {
  /** Called after a record was removed; its slot is free already. */
  readonly onEvict: (record: CachedRecord) => void;
  /** Whether an open fetch is about to read this key; such a record is evicted only when no other is left. */
  readonly isWanted: (key: BlockKey) => boolean;
  /** Resolves after one turn of the event loop; without it nothing is evicted ahead of need. */
  readonly turn?: () => Promise<void>;
}

/** Records by key in a slab. Evicts the least recently used records when a new one needs their room. */
export class RecordCache {
  readonly counters = newTierCounters();
  readonly #slab: Slab;
  readonly #options: RecordCacheOptions;
  readonly #records = new Map<BlockKey, CachedRecord>();
  readonly #eviction: EvictionPolicy<BlockKey> = new LeastRecentlyUsed();
  readonly #bySlot = new Map<number, CachedRecord>();
  readonly formats = new FormatCounts();
  readonly #states: StateShare;
  #bytesBorrowed = 0;
  #isTrimming = false;

  constructor(slab: Slab, options: RecordCacheOptions) {
    this.#slab = slab;
    this.#options = options;
    this.#states = new StateShare(slab.numBytes);
  }

  get size(): number {
    return this.#records.size;
  }

  /** Slots of the slab that are taken and hold no record: something is on its way into or out of them. */
  get numSlotsInTransit(): number {
    return this.#slab.numInUse - this.size;
  }

  has(key: BlockKey): boolean {
    return this.#records.has(key);
  }

  /** Returns the record of exactly this block (digest included) without marking it as used. */
  peek(hash: BlockHash): CachedRecord | undefined {
    const record = this.#records.get(hash.key);
    return record?.hash.digest === hash.digest ? record : undefined;
  }

  /** Returns the record of exactly this block (digest included) and marks it as used. The caller counts hits and misses. */
  find(hash: BlockHash): CachedRecord | undefined {
    const record = this.peek(hash);
    if (record) {
      this.#eviction.touch(hash.key);
      this.#states.touch(hash.key);
    }
    return record;
  }

  /** Stores a record and takes over its slot. Returns false, with the slot still the caller's, when the key is already held. */
  put(record: CachedRecord): boolean {
    this.counters.offered++;
    const { key } = record.hash;
    if (this.#records.has(key)) return false;
    this.counters.stored++;
    this.#records.set(key, record);
    this.#eviction.insert(key);
    this.#bySlot.set(record.slot, record);
    this.formats.add(record.format, record.bytes);
    if (isStateRecord(this.#bytesOf(record))) this.#addState(record);
    this.#trimAhead(record.bytes);
    return true;
  }

  /** Counts a state that was stored, and evicts others when states take more than their part. */
  #addState({ hash: { key }, bytes }: CachedRecord): void {
    this.#states.add(key, slotLength(bytes));
    const mayGo = (other: BlockKey): boolean =>
      other !== key && !this.#eviction.isPinned(other) && !this.#options.isWanted(other);
    for (const victim of this.#states.excess(mayGo)) {
      const record = this.#records.get(victim);
      if (record) this.#evict(record);
    }
  }

  /** Returns how many more records of `bytes` bytes readers can borrow in place. At most a quarter of the slab is lent at once. */
  numBorrowable(bytes: number): number {
    return Math.floor((this.#slab.numBytes / BORROWED_SHARE - this.#bytesBorrowed) / slotLength(bytes));
  }

  /**
   * Returns the record in place, or a copy when too much memory is borrowed; undefined when the cache does not have it. The caller
   * counts hits and misses.
   */
  borrow(hash: BlockHash): BorrowedRecord | undefined {
    const inPlace = this.borrowInPlace(hash);
    if (inPlace) return inPlace;
    const found = this.find(hash);
    const record = found && Buffer.from(this.#bytesOf(found));
    return record && { record, slot: undefined, release: () => undefined };
  }

  /**
   * Returns the record in place, marked as used and pinned until its release. Undefined when the cache does not have it, or a quarter
   * of the memory is borrowed: stalled readers must leave room for others.
   */
  borrowInPlace(hash: BlockHash): RecordInPlace | undefined {
    const found = this.find(hash);
    const release = found && this.reserveBorrow(found.bytes);
    if (!release) return undefined;
    this.pin(hash.key);
    let isOut = true;
    return {
      record: this.#bytesOf(found),
      slot: found.slot,
      release: () => {
        if (!isOut) return;
        isOut = false;
        release();
        this.unpin(hash.key);
      },
    };
  }

  /**
   * Counts a record of `bytes` bytes, wherever it lies, as borrowed until the returned function is called. Undefined when too much is
   * borrowed.
   */
  reserveBorrow(bytes: number): (() => void) | undefined {
    if (this.numBorrowable(bytes) <= 0) return undefined;
    const length = slotLength(bytes);
    this.#bytesBorrowed += length;
    return () => {
      this.#bytesBorrowed -= length;
    };
  }

  #bytesOf({ slot, bytes }: CachedRecord): Uint8Array {
    return slotBytes(this.#slab.memory, slot, bytes);
  }

  /** The record is not evicted until it is unpinned as often. */
  pin(key: BlockKey): void {
    this.#eviction.pin(key);
  }

  unpin(key: BlockKey): void {
    this.#eviction.unpin(key);
  }

  /**
   * Returns a slot to fill: a free one, else one freed by evicting the least recently used record (wanted ones last), with its
   * neighbours where its own slot is too small. Undefined when no record can be evicted.
   */
  acquireSlot(bytes: number): number | undefined {
    const free = this.#slab.allocate(bytes);
    if (free !== undefined) return free;
    for (let i = 0; i < MAX_VICTIMS; i++) {
      const victim = this.#victim();
      if (!victim) return undefined;
      const mayTakeWanted = i >= MAX_VICTIMS / 2;
      const slot = this.#slab.allocate(bytes, this.#clear(victim, slotLength(bytes), mayTakeWanted).start);
      if (slot !== undefined) return slot;
    }
    return undefined;
  }

  releaseSlot(slot: number): void {
    this.#slab.release(slot);
  }

  /** Removes the records of a tenant. Those that are pinned stay; returns how many they are, and those that were removed. */
  forget(tenant: TenantId): { readonly removed: readonly CachedRecord[]; readonly numPinned: number } {
    const own = [...this.#records.values()].filter((record) => tenantOf(this.#bytesOf(record)) === tenant);
    const removed = own.filter(({ hash }) => !this.#eviction.isPinned(hash.key));
    for (const record of removed) this.#remove(record);
    return { removed, numPinned: own.length - removed.length };
  }

  remove(key: BlockKey): void {
    const record = this.#records.get(key);
    if (record) this.#remove(record);
  }

  #remove(record: CachedRecord): Extent {
    this.#records.delete(record.hash.key);
    this.#states.remove(record.hash.key);
    this.#eviction.remove(record.hash.key);
    this.#bySlot.delete(record.slot);
    this.formats.remove(record.format, record.bytes);
    const extent = this.#slab.release(record.slot);
    this.#options.onEvict(record);
    return extent;
  }

  #evict(record: CachedRecord): Extent {
    this.counters.evictions++;
    return this.#remove(record);
  }

  /**
   * Evicts a record, and the ones around it until `bytes` bytes are free in one extent, or a slot that cannot be evicted is in the
   * way.
   */
  #clear(victim: CachedRecord, bytes: number, mayTakeWanted: boolean): Extent {
    let extent = this.#evict(victim);
    while (extent.end - extent.start < bytes) {
      const next = this.#evictableAt(extent.end, mayTakeWanted) ?? this.#evictableAt(extent.start, mayTakeWanted);
      if (!next) break;
      extent = this.#evict(next);
    }
    return extent;
  }

  #evictableAt(offset: number, mayTakeWanted: boolean): CachedRecord | undefined {
    const slot = this.#slab.slotAt(offset);
    const record = slot === undefined ? undefined : this.#bySlot.get(slot);
    if (!record || this.#eviction.isPinned(record.hash.key)) return undefined;
    return mayTakeWanted || !this.#options.isWanted(record.hash.key) ? record : undefined;
  }

  #victim(): CachedRecord | undefined {
    const key = this.#eviction.victim(this.#options.isWanted);
    return key === undefined ? undefined : this.#records.get(key);
  }

  /** Starts trimming when little memory is left after storing a record of `bytes` bytes. */
  #trimAhead(bytes: number): void {
    const { turn } = this.#options;
    const { numBytes, numFreeBytes } = this.#slab;
    const low = LOW_WATER * numBytes;
    if (!turn || this.#isTrimming || bytes > low || numFreeBytes >= low) return;
    this.#isTrimming = true;
    void this.#trim(turn);
  }

  async #trim(turn: () => Promise<void>): Promise<void> {
    const high = HIGH_WATER * this.#slab.numBytes;
    do await turn();
    while (this.#trimSome(high));
    this.#isTrimming = false;
  }

  /**
   * Evicts the oldest records that are neither pinned nor wanted, until `high` bytes are free or this turn's bounds are reached.
   * @returns whether another turn can evict more
   */
  #trimSome(high: number): boolean {
    let [numSeen, numGone] = [0, 0];
    for (const key of this.#eviction.inOrder()) {
      if (this.#slab.numFreeBytes >= high) return false;
      if (numSeen++ === LOOKS_PER_TURN || numGone === VICTIMS_PER_TURN) break;
      const record = this.#records.get(key);
      if (!record || this.#eviction.isPinned(key) || this.#options.isWanted(key)) continue;
      this.#evict(record);
      numGone++;
    }
    return numGone > 0;
  }
}
