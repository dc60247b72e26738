/**
 * A store's blocks: DRAM over disk.
 *
 *   offer ──fetch, verify──► DRAM ──write behind──► disk
 *   fetch ◄─────────────────  │  ◄─promote, verify── │
 *                          LRU out                LRU out
 *
 * Records of several formats and sizes lie side by side in both.
 */
import type { Clock } from '../../shared/base/clock.ts';
import type { Log } from '../../shared/base/log.ts';
import { linkSignals, DONE } from '../../shared/base/signal.ts';
import type { Thread } from '../../shared/base/threads.ts';
import { Failure } from '../../shared/base/failure.ts';
import type { BlockHash, BlockKey } from '../../shared/kv/block_key.ts';
import { contentHashOf, numericsOf } from '../../shared/kv/record.ts';
import {
  RecordCache,
  type CachedRecord,
  type RecordInPlace,
  type BorrowedRecord,
} from '../../shared/kv/record_cache.ts';
import { Slab, slotBytes, slotLength, type SlabMemory } from '../../shared/kv/slab.ts';
import { WantedKeys } from '../../shared/kv/wanted_keys.ts';
import type { Announcer } from '../../shared/node/announcer.ts';
import type { BlockSource } from '../../shared/net/block_source.ts';
import type { TransferThread } from '../../shared/net/transfer_thread/transfer_thread.ts';
import { tierStats } from '../../shared/protocol/tier_stats.ts';
import type { InstanceLoad } from '../../shared/protocol/membership.ts';
import type { DiskEntry } from './disk_process.ts';
import { DiskTier, type DiskTierOptions, type DiskWrite } from './disk_tier.ts';
import type { DiskReader } from './disk_reader.ts';
import type { DiskThread } from './disk_thread.ts';

/** Dependencies and byte budgets of a StoreTiers. */
export interface StoreTiersOptions {
  readonly worker: Thread<DiskThread>;
  /** Reader threads; one may start with its first call. */
  readonly readers: readonly Pick<Thread<DiskReader>, 'call'>[];
  readonly transferThread: TransferThread;
  /** Whether processes of this host may read records in place, from shared memory. */
  readonly isShared: boolean;
  readonly dramBytes: number;
  readonly diskBytes: number;
  readonly openDisk: DiskTierOptions['open'];
  readonly records: DiskTierOptions['records'];
  readonly clock: Clock;
  readonly signal: AbortSignal;
  readonly announcer: Announcer;
  readonly log: Log;
}

/**
 * Smallest record size in bytes that an offer may name: a header and some payload. A smaller size would divide the slab into too many
 * slots (P1).
 */
const MIN_RECORD_BYTES = 512;

/**
 * Limits on reading ahead from disk (P1): MAX_AHEAD blocks and AHEAD_BYTES bytes for each announced run of blocks. MAX_RISING bounds
 * the reads under way for all runs.
 */
const MAX_AHEAD = 16;
const AHEAD_BYTES = 16 << 20;
const MAX_PROMOTING = 256;
/**
 * Milliseconds that a borrow waits for a read from disk. Must be less than a fetch's patience (12 s), after which the fetch gives up
 * this store.
 */
const READ_PATIENCE_MS = 10_000;
/**
 * A record is read ahead only when it takes at most 1/AHEAD_SHARE of the slab. In a smaller slab, records read ahead would evict one
 * another.
 */
const AHEAD_SHARE = 64;
/** Formats reported for each tier, at most (P1). */
const MAX_FORMATS = 8;

/** The blocks of a store, in DRAM and on disk, as a source for fetches. */
export class StoreTiers implements BlockSource {
  readonly disk: DiskTier;
  readonly #options: StoreTiersOptions;
  readonly wanted = new WantedKeys();
  /** Reads from disk into DRAM that are under way, by key. */
  readonly #promoting = new Map<BlockKey, Promise<void>>();
  /** Records in DRAM that were read from disk and not lent yet; bounded by the records in DRAM. */
  readonly #fresh = new Set<BlockKey>();
  readonly slab: Slab;
  readonly dram: RecordCache;
  /** Resolves when every thread knows the slab. Nothing may be put into the slab before. */
  readonly attached: Promise<void>;
  /** Offered blocks whose content differs from the block held here in the same numerics class (E2). */
  numDivergent = 0;

  constructor(options: StoreTiersOptions) {
    this.#options = options;
    const {
      worker,
      readers,
      transferThread,
      isShared,
      dramBytes,
      diskBytes,
      log,
      announcer,
      openDisk,
      records,
      clock,
      signal,
    } = options;
    this.slab = new Slab(dramBytes);
    this.dram = new RecordCache(this.slab, {
      onEvict: ({ hash }) => {
        this.#fresh.delete(hash.key);
        announcer.removed('dram', hash.key);
      },
      isWanted: (key) => this.wanted.has(key),
      turn: () => clock.turn(),
    });
    // A thread serves its calls in order, so every later call finds the slab attached. A thread's death is reported by its onDeath
    // callback.
    const { memory } = this.slab;
    const attached = [worker.call('attach', memory), transferThread.call('attach', { memory, isShared })];
    this.attached = Promise.all(attached).then(() => undefined);
    this.attached.catch(() => undefined);
    this.disk = new DiskTier({
      worker,
      readers: readers.map((reader) => attachedAtFirst(reader, memory)),
      records,
      log,
      clock,
      signal,
      open: openDisk,
      budgetBytes: diskBytes,
      onStored: (entry) => {
        announcer.stored('disk', entry);
      },
      onRemoved: (key) => {
        announcer.removed('disk', key);
      },
    });
  }

  /**
   * Validates the record size of an offer. @throws Failure `invalid_request` for a size under MIN_RECORD_BYTES, `overloaded` when the
   * slab cannot hold one record of that size.
   */
  checkSize(recordBytes: number): void {
    const { dramBytes } = this.#options;
    if (!Number.isInteger(recordBytes) || recordBytes < MIN_RECORD_BYTES) {
      throw new Failure('invalid_request', `a record has at least ${MIN_RECORD_BYTES} bytes, not ${recordBytes}`);
    }
    if (slotLength(recordBytes) > this.slab.numBytes) {
      throw new Failure('overloaded', `--dram-bytes ${dramBytes} holds no record of ${recordBytes} bytes`);
    }
  }

  /** Whether the block is neither in DRAM nor on disk. */
  lacks(hash: BlockHash): boolean {
    return !this.dram.has(hash.key) && !this.disk.has(hash);
  }

  /**
   * Returns the disk write for a block that is in DRAM and not on disk, and pins the block until {@link commit} or {@link release}.
   * Undefined when there is nothing to write, or no usable disk tier.
   */
  writeOf(hash: BlockHash): DiskWrite | undefined {
    if (!this.canStore || this.disk.has(hash)) return undefined;
    const record = this.dram.find(hash);
    if (!record) return undefined;
    this.dram.pin(hash.key);
    return { hash, format: record.format, slot: record.slot, bytes: record.bytes };
  }

  /** Writes records to disk, or drops the writes that the disk tier cannot store; then unpins their blocks in DRAM. */
  async commit(writes: readonly DiskWrite[]): Promise<void> {
    try {
      if (writes.length > 0) await this.disk.put(writes);
    } finally {
      this.release(writes);
    }
  }

  /** Unpins blocks that need not be written. */
  release(writes: readonly DiskWrite[]): void {
    for (const { hash } of writes) this.dram.unpin(hash.key);
  }

  get canStore(): boolean {
    return this.#options.diskBytes > 0 && this.disk.fault === undefined;
  }

  /** Counts offered blocks that are held already, for each tier. The dedup factor (offered / stored) is computed from these counts. */
  noteDuplicates(hashes: readonly BlockHash[]): void {
    for (const hash of hashes) {
      if (this.dram.has(hash.key)) this.dram.counters.offered++;
      if (this.disk.has(hash)) this.disk.counters.offered++;
    }
  }

  /**
   * Returns the numerics class and the content hash of a block that is held, as record.ts defines them; undefined when the block is
   * not held.
   */
  identityOf(hash: BlockHash): Pick<DiskEntry, 'numerics' | 'contentHash'> | undefined {
    const held = this.dram.peek(hash);
    if (!held) return this.disk.entryOf(hash);
    const record = slotBytes(this.slab.memory, held.slot, held.bytes);
    return { numerics: numericsOf(record), contentHash: contentHashOf(record) };
  }

  /** Puts a verified record into DRAM. Returns its disk write, with the block pinned; undefined when there is nothing to write. */
  accept(record: CachedRecord): DiskWrite | undefined {
    this.#keep(record);
    return this.writeOf(record.hash);
  }

  /** Puts a record into DRAM. @returns whether it is there now; its key may be held already */
  #keep(record: CachedRecord): boolean {
    const isKept = this.dram.put(record);
    if (isKept) this.#options.announcer.stored('dram', record.hash);
    else this.dram.releaseSlot(record.slot);
    return isKept;
  }

  numBorrowable(bytes: number): number {
    return this.dram.numBorrowable(bytes);
  }

  borrowResident(hash: BlockHash): RecordInPlace | undefined {
    const borrowed = this.dram.borrowInPlace(hash);
    if (!borrowed) return undefined;
    this.#used(hash);
    return this.#fresh.delete(hash.key) ? { ...borrowed, isFromDisk: true } : borrowed;
  }

  /** Counts a hit in DRAM, and marks the block as used on disk too. */
  #used(hash: BlockHash): void {
    this.dram.counters.hits++;
    this.disk.touch(hash);
  }

  async borrow(
    hash: BlockHash,
    _requestId: string,
    _waitMs: number,
    signal: AbortSignal,
  ): Promise<BorrowedRecord | undefined> {
    const held = this.dram.borrow(hash);
    if (held) {
      this.#used(hash);
      return this.#fresh.delete(hash.key) ? { ...held, isFromDisk: true } : held;
    }
    this.dram.counters.misses++;
    const entry = this.disk.entryOf(hash);
    if (entry === undefined || slotLength(entry.bytes) > this.slab.numBytes) return undefined;
    const promoting =
      this.#promoting.get(hash.key) ?? (this.#promoting.size < MAX_PROMOTING ? this.#promote(hash, entry) : undefined);
    if (promoting) await this.#patiently(promoting, signal);
    this.#fresh.delete(hash.key);
    const read = this.dram.borrow(hash);
    return read && { ...read, isFromDisk: true };
  }

  /** Waits for a read from disk, for READ_PATIENCE_MS at most. The record's slot stays taken until the read ends. */
  async #patiently(promoting: Promise<void>, signal: AbortSignal): Promise<void> {
    const waited = linkSignals(signal);
    await Promise.race([promoting, this.#options.clock.sleep(READ_PATIENCE_MS, waited.signal)]);
    waited.abort(DONE);
    waited.release();
  }

  /** Reads a record from disk into a DRAM slot; does nothing when no slot is free. */
  async #promote(hash: BlockHash, { bytes, format }: DiskEntry): Promise<void> {
    const slot = this.dram.acquireSlot(bytes);
    if (slot === undefined) return;
    const promoting = this.disk.get(hash, slot).then(
      (isThere) => {
        if (!isThere) this.dram.releaseSlot(slot);
        else if (this.#keep({ hash, format, slot, bytes })) this.#fresh.add(hash.key);
      },
      () => {
        this.dram.releaseSlot(slot);
      },
    );
    this.#promoting.set(hash.key, promoting);
    await promoting;
    this.#promoting.delete(hash.key);
  }

  /** Reads blocks that are on disk alone into DRAM before their turn, within the bounds for one run and for all runs. */
  expect(hashes: readonly BlockHash[]): void {
    let left = AHEAD_BYTES;
    for (const hash of hashes.slice(0, MAX_AHEAD)) {
      const entry = this.dram.peek(hash) ? undefined : this.disk.entryOf(hash);
      if (!entry) continue;
      left -= entry.bytes;
      if (left < 0 || this.#promoting.size >= MAX_PROMOTING) return;
      if (!this.#promoting.has(hash.key) && slotLength(entry.bytes) <= this.slab.numBytes / AHEAD_SHARE)
        void this.#promote(hash, entry);
    }
  }

  /** Resolves when the reads from disk that are under way have ended. */
  promotionsEnded(): Promise<unknown> {
    return Promise.all(this.#promoting.values());
  }

  snapshot(): ReturnType<BlockSource['snapshot']> {
    return this.#options.announcer.snapshot();
  }

  /** DRAM slots that are acquired and hold no listed record: a record is on its way into or out of them. */
  get numSlotsInTransit(): number {
    return this.dram.numSlotsInTransit;
  }

  tiers(): InstanceLoad['tiers'] {
    const { dramBytes, diskBytes } = this.#options;
    const { dram, disk } = this;
    return {
      dram: {
        ...tierStats(dram.counters, dram.size, 0, dramBytes),
        bytes: this.slab.numBytes - this.slab.numFreeBytes,
        formats: dram.formats.largest(MAX_FORMATS),
      },
      disk: {
        ...tierStats(disk.counters, disk.size, 0, diskBytes),
        bytes: disk.takenBytes,
        formats: disk.formats.largest(MAX_FORMATS),
        ...(disk.fault === undefined ? {} : { fault: disk.fault }),
      },
    };
  }
}

/** Returns a reader that attaches the slab before its first read. */
function attachedAtFirst(reader: Pick<Thread<DiskReader>, 'call'>, memory: SlabMemory): typeof reader {
  let isAttached = false;
  return {
    call: (method, argument, signal) => {
      // A thread serves its calls in order, and its death is reported by its onDeath callback.
      if (!isAttached) reader.call('attach', memory).catch(() => undefined);
      isAttached = true;
      return reader.call(method, argument, signal);
    },
  };
}
