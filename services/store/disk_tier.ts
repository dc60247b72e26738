/**
 * The disk tier as the control thread sees it: which keys are there, in order of use, within a byte budget.
 *
 * The truth is in the worker's environment; this index is rebuilt from it at start, and emptied when the environment was begun
 * anew. A record that cannot be written or read is dropped and counted: the next request computes it again. Without an
 * environment (`fault`) nothing is here and nothing is stored, and it is opened again after a pause.
 */
import { messageOf } from '../../shared/base/failure.ts';
import type { Thread } from '../../shared/base/threads.ts';
import type { BlockKey, BlockHash, Digest, TenantId } from '../../shared/kv/block_key.ts';
import type { FormatCounts } from '../../shared/kv/format_counts.ts';
import { newTierCounters } from '../../shared/kv/tier_counters.ts';
import { isForRoom } from './disk_errors.ts';
import { DiskEnvironment, type DiskEnvironmentOptions } from './disk_environment.ts';
import { DiskForgetting, type ForgottenOnDisk } from './disk_forgetting.ts';
import { DiskIndex, pagedBytes, type DiskIndexOptions } from './disk_index.ts';
import type { DiskEntry } from './disk_process.ts';
import type { DiskRead, DiskReader } from './disk_reader.ts';
import { DiskReads } from './disk_reads.ts';
import { UseOrder } from './use_order.ts';

/** Share of the used bytes that is evicted when the disk is full although the budget is not. */
const EMERGENCY_SHARE = 0.1;

/**
 * Shares of the budget: above HIGH_MARK the least recently used records are evicted down to LOW_MARK, TRIM_BYTES per transaction. A
 * budget below MIN_TRIMMED_BYTES is used completely.
 */
const HIGH_MARK = 0.97;
const LOW_MARK = 0.94;
const MIN_TRIMMED_BYTES = 256 << 20;
const TRIM_BYTES = 32 << 20;
/** Entries that are added to the index before the event loop gets a turn. */
const RECOVERED_PER_TURN = 2_048;

/** Dependencies, index callbacks and byte budget of a DiskTier. */
export interface DiskTierOptions extends DiskIndexOptions, DiskEnvironmentOptions {
  readonly readers: readonly Pick<Thread<DiskReader>, 'call'>[];
  /** Returns the path of the file of records. */
  readonly records: () => string;
  readonly budgetBytes: number;
}

/** A record in a slot of the slab that is to be written to disk. */
export interface DiskWrite {
  readonly hash: BlockHash;
  readonly format: Digest;
  readonly slot: number;
  readonly bytes: number;
}

/** The disk tier: writes, reads and evicts records within its byte budget. Failures are counted and logged, not thrown. */
export class DiskTier {
  readonly counters = newTierCounters();
  readonly #options: DiskTierOptions;
  readonly #reads: DiskReads;
  readonly #index: DiskIndex;
  readonly #environment: DiskEnvironment;
  readonly #order: UseOrder;
  readonly #forgetting: DiskForgetting;
  #isTrimming = false;
  /** Bytes of running puts, taken from the budget before their records are stored. */
  #reservedBytes = 0;
  /** Keys that a put has under way, and its end. Bounded by the offers (P1). */
  readonly #putting = new Map<BlockKey, Promise<void>>();
  numFailures = 0;

  constructor(options: DiskTierOptions) {
    this.#options = options;
    this.#index = new DiskIndex(options);
    this.#environment = new DiskEnvironment(options, {
      onFound: (entries) => this.#adopt(entries),
      onOpened: () => this.trim(),
      onGone: () => {
        this.#index.clear();
      },
    });
    this.#reads = new DiskReads(options.readers);
    this.#forgetting = new DiskForgetting({
      ...options,
      index: this.#index,
      environment: this.#environment,
      putsEnded: () => Promise.all(this.#putting.values()),
      failed: this.#failed.bind(this),
    });
    this.#order = new UseOrder({
      clock: options.clock,
      signal: options.signal,
      isHeld: (key) => this.#index.has(key),
      write: (keys) => this.#writeOrder(keys),
    });
  }

  /** Opens the environment; after a failure retries until `signal` aborts. Resolves after the first attempt. */
  async start(): Promise<void> {
    if (this.#options.budgetBytes === 0) return;
    await this.#environment.start();
  }

  async #adopt(entries: readonly DiskEntry[]): Promise<void> {
    for (const [i, entry] of entries.entries()) {
      this.#index.add(entry);
      if (i % RECOVERED_PER_TURN === RECOVERED_PER_TURN - 1) await this.#options.clock.turn();
    }
  }

  /** Why nothing can be stored or read now. */
  get fault(): string | undefined {
    return this.#environment.fault;
  }

  get formats(): FormatCounts {
    return this.#index.formats;
  }

  get size(): number {
    return this.#index.size;
  }

  /** Bytes of the budget in use: records on disk, and records that are being written. */
  get takenBytes(): number {
    return this.#index.usedBytes + this.#reservedBytes;
  }

  has(hash: BlockHash): boolean {
    return this.entryOf(hash) !== undefined;
  }

  /** Returns the entry of a block; undefined when its key is absent, or names a block with another digest. */
  entryOf(hash: BlockHash): DiskEntry | undefined {
    return this.#index.entryOf(hash);
  }

  /**
   * Marks a block as used, in this tier or in one above: other blocks are evicted before it, also after a restart. A block that is not
   * on disk is ignored.
   */
  touch(hash: BlockHash): void {
    if (!this.has(hash)) return;
    this.#index.touch(hash.key);
    this.#order.used(hash.key);
  }

  async #writeOrder(keys: readonly BlockKey[]): Promise<void> {
    if (this.fault !== undefined) return;
    try {
      await this.#environment.answered(this.#options.worker.call('touch', keys));
    } catch (error) {
      await this.#failed(
        error,
        'the order of use was not saved; after a restart, eviction may remove recently used blocks',
      );
    }
  }

  /** Evicts down to the budget, for instance after a restart with a smaller one, and states down to their part of it. */
  async trim(): Promise<void> {
    try {
      await this.#makeRoom(this.#options.budgetBytes);
    } catch (error) {
      await this.#failed(error, 'the disk tier could not make room');
    }
    await this.#trimStates(new Set());
  }

  /** Evicts states down to their part of the budget, but for those in `kept`. */
  async #trimStates(kept: ReadonlySet<BlockKey>): Promise<void> {
    try {
      await this.#evict(this.#index.excessStates(kept));
    } catch (error) {
      await this.#failed(error, 'the disk tier could not make room');
    }
  }

  /**
   * Writes the records that fit the budget, and evicts the least recently used ones for them. Resolves when the records are durable
   * (S1) or dropped; never throws.
   */
  async put(writes: readonly DiskWrite[]): Promise<void> {
    const others = writes.flatMap(({ hash }) => this.#putting.get(hash.key) ?? []);
    const own = this.#putFresh(writes.filter(({ hash }) => !this.#putting.has(hash.key)));
    await Promise.all([own, ...others]);
  }

  async #putFresh(writes: readonly DiskWrite[]): Promise<void> {
    const { worker, budgetBytes } = this.#options;
    if (this.fault !== undefined) return;
    let newBytes = 0;
    // Records beyond the whole budget, running puts included, are left out. The first ones are kept, because a prefix needs them first.
    const fresh = writes.filter(({ hash, bytes }) => {
      const total = this.#reservedBytes + newBytes + pagedBytes(bytes);
      if (this.#index.has(hash.key) || total > budgetBytes) return false;
      newBytes += pagedBytes(bytes);
      return true;
    });
    if (fresh.length === 0) return;
    this.#reservedBytes += newBytes;
    const release = (): void => {
      this.#reservedBytes -= newBytes;
      newBytes = 0;
    };
    let settle: () => void = () => undefined;
    const settled = new Promise<void>((resolve) => {
      settle = resolve;
    });
    for (const { hash } of fresh) this.#putting.set(hash.key, settled);
    try {
      await this.#makeRoom(budgetBytes - this.#reservedBytes);
      const writes = fresh.map(({ hash, slot, bytes }) => ({ slot, bytes, key: hash.key, digest: hash.digest }));
      const { stored, generation } = await this.#environment.answered(worker.call('put', writes));
      // This call, or another at the same time, may have begun the environment anew; look() updates the generation before the index is
      // changed.
      if (generation !== this.#environment.generation) await this.#environment.look();
      if (generation !== this.#environment.generation) return;
      this.counters.offered += stored.length;
      this.counters.stored += stored.length;
      for (const entry of stored) this.#index.add(entry);
      release();
      this.#trimAhead();
      await this.#trimStates(new Set(stored.map(({ key }) => key)));
    } catch (error) {
      await this.#failed(error, 'the disk tier could not store blocks; they stay in DRAM only');
      if (isForRoom(error)) await this.#relieve();
    } finally {
      release();
      for (const { hash } of fresh) this.#putting.delete(hash.key);
      settle();
    }
  }

  async #failed(error: unknown, what: string): Promise<void> {
    this.numFailures++;
    this.#options.log.warn({ error: messageOf(error) }, what);
    await this.#environment.look();
  }

  /**
   * Reads and verifies a record into a slot. Returns false when the record is missing, damaged or unreadable; a damaged record is
   * removed from the tier.
   */
  async get(hash: BlockHash, slot: number): Promise<boolean> {
    const entry = this.#index.get(hash.key);
    if (entry?.digest !== hash.digest) {
      this.counters.misses++;
      return false;
    }
    let fault: string | undefined;
    try {
      const file = { path: this.#options.records(), generation: this.#environment.generation };
      fault = await this.#reads.read({ ...readOf(entry), slot }, file);
    } catch (error) {
      this.counters.misses++;
      await this.#failed(error, 'the disk tier could not read a block');
      return false;
    }
    if (fault === undefined) {
      this.counters.hits++;
      this.touch(hash);
      return true;
    }
    this.counters.misses++;
    // The entry was removed during the read, or the environment was begun anew.
    if (this.#index.get(hash.key) !== entry) return false;
    this.numFailures++;
    this.#options.log.warn({ fault }, 'a record on disk is unusable and was dropped');
    await this.#remove([hash.key]).catch((error: unknown) => this.#failed(error, 'a record could not be deleted'));
    return false;
  }

  /** Deletes the records of a tenant, and its key. @throws Failure when the disk cannot do it; the call is to be made again then. */
  forget(tenant: TenantId): Promise<ForgottenOnDisk> {
    return this.#forgetting.forget(tenant);
  }

  /** Evicts in the background above HIGH_MARK, so that later puts need not wait for room. */
  #trimAhead(): void {
    const { budgetBytes } = this.#options;
    if (this.#isTrimming || budgetBytes < MIN_TRIMMED_BYTES || this.takenBytes <= HIGH_MARK * budgetBytes) return;
    this.#isTrimming = true;
    void this.#trimInParts();
  }

  async #trimInParts(): Promise<void> {
    const limit = LOW_MARK * this.#options.budgetBytes;
    try {
      while (this.takenBytes > limit && this.fault === undefined) {
        const before = this.#index.usedBytes;
        await this.#makeRoom(Math.max(limit - this.#reservedBytes, before - TRIM_BYTES));
        if (this.#index.usedBytes >= before) break;
      }
    } catch (error) {
      await this.#failed(error, 'the disk tier could not make room');
    }
    this.#isTrimming = false;
  }

  async #makeRoom(limitBytes: number): Promise<void> {
    await this.#evict(this.#index.victims(limitBytes));
  }

  async #evict(victims: readonly BlockKey[]): Promise<void> {
    if (victims.length === 0) return;
    this.counters.evictions += victims.length;
    await this.#remove(victims);
  }

  async #remove(keys: readonly BlockKey[]): Promise<void> {
    const entries = keys.flatMap((key) => this.#index.get(key) ?? []);
    for (const key of keys) this.#index.forget(key);
    const generation = this.#environment.generation;
    try {
      // Sent at once, so that a later put of the same key comes after it. A concurrent read of a removed record gets the record itself,
      // or other bytes, which fail verification.
      await this.#environment.answered(this.#options.worker.call('remove', keys));
    } catch (error) {
      // The disk is too full even for a delete: the records still exist and count against the budget.
      if (isForRoom(error) && generation === this.#environment.generation)
        for (const entry of entries) this.#index.add(entry);
      throw error;
    }
  }

  async #relieve(): Promise<void> {
    try {
      await this.#makeRoom(this.#index.usedBytes * (1 - EMERGENCY_SHARE));
    } catch (error) {
      await this.#failed(error, 'the disk tier could not make room');
    }
  }
}

function readOf({ at, bytes, format, digest, key, tenant, keyNumber }: DiskEntry): Omit<DiskRead, 'slot'> {
  return { at, bytes, format, digest, key, tenant, keyNumber };
}
