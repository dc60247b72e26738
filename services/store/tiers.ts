/**
 * A store's blocks: DRAM over disk.
 *
 *   offer ──fetch, verify──► DRAM ──write behind──► disk
 *   fetch ◄─────────────────  │  ◄─promote, verify── │
 *                          LRU out                LRU out
 *
 * DRAM slots have one size, that of the first record that came (or was recovered): a cluster serves one model at a time.
 * What has another size stays on disk.
 */
import type { Clock } from '../../shared/base/clock.ts';
import type { Log } from '../../shared/base/log.ts';
import type { Thread } from '../../shared/base/threads.ts';
import { Failure } from '../../shared/base/failure.ts';
import type { BlockHash } from '../../shared/kv/block_key.ts';
import { RecordCache, type InPlace, type Lent } from '../../shared/kv/record_cache.ts';
import { newTierCounters } from '../../shared/kv/tier_counters.ts';
import { Slab } from '../../shared/kv/slab.ts';
import { WantedKeys } from '../../shared/kv/wanted_keys.ts';
import type { Announcer } from '../../shared/net/announcer.ts';
import type { BlockSource } from '../../shared/net/block_source.ts';
import type { Mover } from '../../shared/net/mover/mover.ts';
import { tierStats } from '../../shared/protocol/tier_stats.ts';
import type { Load } from '../../shared/protocol/membership.ts';
import { DiskTier, type DiskTierOptions, type DiskWrite } from './disk_tier.ts';
import type { DiskThread } from './disk_worker.ts';

export interface StoreTiersOptions {
  readonly worker: Thread<DiskThread>;
  readonly mover: Mover;
  readonly dramBytes: number;
  readonly diskBytes: number;
  readonly openDisk: DiskTierOptions['open'];
  readonly clock: Clock;
  readonly signal: AbortSignal;
  readonly announcer: Announcer;
  readonly log: Log;
}

/** A header and some payload: less is no block, and would make slots without number. */
const MIN_RECORD_BYTES = 512;

/** Records in DRAM, once the size of a record is known. */
interface Dram {
  readonly slab: Slab;
  readonly cache: RecordCache;
  readonly recordBytes: number;
}

export class StoreTiers implements BlockSource {
  readonly disk: DiskTier;
  readonly #options: StoreTiersOptions;
  readonly wanted = new WantedKeys();
  #dram: Dram | undefined;

  constructor(options: StoreTiersOptions) {
    this.#options = options;
    const { worker, diskBytes, log, announcer, openDisk, clock, signal } = options;
    this.disk = new DiskTier({
      ...{ worker, log, clock, signal, open: openDisk, budgetBytes: diskBytes },
      onStored: (key) => {
        announcer.stored('disk', key);
      },
      onRemoved: (key) => {
        announcer.removed('disk', key);
      },
    });
  }

  /** Host memory for records of this size. @throws Failure when the tier holds another size or the budget holds none. */
  async openDram(recordBytes: number): Promise<Dram> {
    if (!Number.isInteger(recordBytes) || recordBytes < MIN_RECORD_BYTES) {
      throw new Failure('invalid_request', `a record has at least ${MIN_RECORD_BYTES} bytes, not ${recordBytes}`);
    }
    if (this.#dram?.recordBytes === recordBytes) return this.#dram;
    if (this.#dram) {
      throw new Failure(
        'cluster_mismatch',
        `this store holds records of ${this.#dram.recordBytes} bytes in DRAM, not ${recordBytes}: start another store for this model`,
      );
    }
    const { dramBytes, worker, mover, announcer } = this.#options;
    const numSlots = Math.floor(dramBytes / recordBytes);
    if (numSlots < 1) {
      throw new Failure('overloaded', `--dram-bytes ${dramBytes} holds no record of ${recordBytes} bytes`);
    }
    const slab = new Slab(recordBytes, numSlots);
    const cache = new RecordCache(slab, {
      onEvict: ({ hash }) => {
        announcer.removed('dram', hash.key);
      },
      isWanted: (key) => this.wanted.has(key),
    });
    this.#dram = { slab, cache, recordBytes };
    // The disk thread takes its calls in order, and may be busy with a disk that hangs: nobody waits for it here.
    worker.call('attach', slab.memory).catch(() => undefined);
    await mover.call('attach', slab.memory);
    return this.#dram;
  }

  /** Neither in DRAM nor on disk. */
  lacks(hash: BlockHash): boolean {
    return !this.#dram?.cache.has(hash.key) && !this.disk.has(hash);
  }

  /**
   * A block that is in DRAM and not on disk, on its way there: pinned until {@link commit} is through. Undefined when there is nothing to
   * write, or no disk to write it to.
   */
  writeOf(hash: BlockHash): DiskWrite | undefined {
    const dram = this.#dram;
    if (!dram || !this.canStore || this.disk.has(hash)) return undefined;
    const record = dram.cache.find(hash);
    if (!record) return undefined;
    dram.cache.pin(hash.key);
    return { hash, slot: record.slot, bytes: dram.recordBytes };
  }

  /** Puts them on disk, or gives them up; their slots may be used again then. */
  async commit(writes: readonly DiskWrite[]): Promise<void> {
    try {
      if (writes.length > 0) await this.disk.put(writes);
    } finally {
      this.release(writes);
    }
  }

  /** They need not be written. */
  release(writes: readonly DiskWrite[]): void {
    for (const { hash } of writes) this.#dram?.cache.unpin(hash.key);
  }

  /** Of DRAM, once the size of a record is known. */
  get numSlots(): number {
    return this.#dram?.slab.numSlots ?? 0;
  }

  get canStore(): boolean {
    return this.#options.diskBytes > 0 && this.disk.fault === undefined;
  }

  /** Offered again: counted, so that the dedup factor says how often a block was spared its place. */
  noteDuplicates(hashes: readonly BlockHash[]): void {
    for (const hash of hashes) {
      if (this.#dram?.cache.has(hash.key)) this.#dram.cache.counters.offered++;
      if (this.disk.has(hash)) this.disk.counters.offered++;
    }
  }

  /** Takes over a verified record; pinned, with a write to put on disk, where there is a disk. */
  accept(dram: Dram, hash: BlockHash, slot: number): DiskWrite | undefined {
    this.#keep(dram, hash, slot);
    return this.writeOf(hash);
  }

  #keep(dram: Dram, hash: BlockHash, slot: number): void {
    if (dram.cache.put(hash, slot)) this.#options.announcer.stored('dram', hash.key);
    else dram.cache.giveSlot(slot);
  }

  get numLoanable(): number {
    return this.#dram?.cache.numLoanable ?? 0;
  }

  lendHeld(hash: BlockHash): InPlace | undefined {
    const dram = this.#dram;
    const lent = dram?.cache.lendInPlace(hash, dram.recordBytes);
    if (dram && lent) dram.cache.counters.hits++;
    return lent;
  }

  async lend(hash: BlockHash): Promise<Lent | undefined> {
    const held = this.#dram?.cache.lend(hash, this.#dram.recordBytes);
    const counters = this.#dram?.cache.counters;
    if (counters && held) counters.hits++;
    if (held) return held;
    if (counters) counters.misses++;
    const bytes = this.disk.bytesOf(hash);
    if (bytes === undefined) return undefined;
    const dram = await this.openDram(bytes);
    const slot = dram.cache.takeSlot();
    if (slot === undefined) return undefined;
    if (!(await this.disk.get(hash, slot).catch(() => false))) {
      dram.cache.giveSlot(slot);
      return undefined;
    }
    this.#keep(dram, hash, slot);
    return dram.cache.lend(hash, dram.recordBytes);
  }

  snapshot(): ReturnType<BlockSource['snapshot']> {
    return this.#options.announcer.snapshot();
  }

  /** Slots of DRAM that are being filled. */
  get numLent(): number {
    return this.#dram?.cache.numLent ?? 0;
  }

  tiers(): Load['tiers'] {
    const { dramBytes, diskBytes } = this.#options;
    const cache = this.#dram?.cache;
    const { counters, size, takenBytes } = this.disk;
    return {
      dram: tierStats(cache?.counters ?? newTierCounters(), cache?.size ?? 0, this.#dram?.recordBytes ?? 0, dramBytes),
      disk: {
        ...tierStats(counters, size, 0, diskBytes),
        bytes: takenBytes,
        ...(this.disk.fault === undefined ? {} : { fault: this.disk.fault }),
      },
    };
  }
}
