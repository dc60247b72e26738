/**
 * The disk tier as the control thread sees it: which keys are there, in order of use, within a byte budget.
 *
 * The truth is in the worker's environment; this index is rebuilt from it at start, and emptied when the environment was begun
 * anew. A record that cannot be written or read is dropped and counted: the next request computes it again. Without an
 * environment (`fault`) nothing is here and nothing is stored, and it is opened again after a pause.
 */
import { Backoff } from '../../shared/base/backoff.ts';
import type { Clock } from '../../shared/base/clock.ts';
import { messageOf } from '../../shared/base/failure.ts';
import type { Log } from '../../shared/base/log.ts';
import { OVER } from '../../shared/base/signal.ts';
import type { Thread } from '../../shared/base/threads.ts';
import type { BlockKey, BlockHash, Digest } from '../../shared/kv/block_key.ts';
import { LeastRecentlyUsed, type EvictionPolicy } from '../../shared/kv/eviction.ts';
import { FormatCounts } from '../../shared/kv/format_counts.ts';
import { aligned } from '../../shared/kv/stretches.ts';
import { newTierCounters } from '../../shared/kv/tier_counters.ts';
import { isForRoom } from './disk_errors.ts';
import type { DiskEntry } from './disk_process.ts';
import type { DiskReader } from './disk_reader.ts';
import { DiskReads } from './disk_reads.ts';
import type { DiskThread } from './disk_worker.ts';
import { PAGE_BYTES } from './records_file.ts';
import { UseOrder } from './use_order.ts';

/** Freed when the disk turns out fuller than the budget says. */
const EMERGENCY_SHARE = 0.1;

/** Shares of the budget: above the one the oldest go, until the other, so much in a transaction. A small budget is used to the last. */
const HIGH_MARK = 0.97;
const LOW_MARK = 0.94;
const MIN_TRIMMED_BYTES = 256 << 20;
const TRIM_BYTES = 32 << 20;
/** A batch of records takes tenths of a second on a slow disk, and the disk process is given 30 s for an answer. */
const ANSWER_MS = 90_000;
/** Entries that are taken over at a time. */
const RECOVERED_PER_TURN = 2_048;

/** Between two tries to open an environment that cannot be opened: this, then twice that, up to the second. */
const MIN_RETRY_MS = 1_000;
const MAX_RETRY_MS = 30_000;

/** Until the first opening has come back: what arrives meanwhile stays in DRAM, and is written when it is offered again. */
const OPENING = 'it is being opened';

export interface DiskTierOptions {
  /** Opens or makes the environment. */
  readonly open: () => Promise<Awaited<ReturnType<DiskThread['open']>>>;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  readonly worker: Pick<Thread<DiskThread>, 'call'>;
  readonly readers: readonly Pick<Thread<DiskReader>, 'call'>[];
  /** The file of records. */
  readonly records: () => string;
  readonly budgetBytes: number;
  readonly log: Log;
  readonly onStored: (key: BlockKey) => void;
  readonly onRemoved: (key: BlockKey) => void;
}

export interface DiskWrite {
  readonly hash: BlockHash;
  readonly format: Digest;
  readonly slot: number;
  readonly bytes: number;
}

export class DiskTier {
  readonly counters = newTierCounters();
  readonly #options: DiskTierOptions;
  readonly #reads: DiskReads;
  readonly #entries = new Map<BlockKey, DiskEntry>();
  readonly #eviction: EvictionPolicy<BlockKey> = new LeastRecentlyUsed();
  readonly formats = new FormatCounts();
  readonly #order: UseOrder;
  #isTrimming = false;
  #usedBytes = 0;
  /** Of puts that run: taken from the budget before they are stored. */
  #reservedBytes = 0;
  /** Keys that a put has under way, and its end. Bounded by the offers (P1). */
  readonly #putting = new Map<BlockKey, Promise<void>>();
  #isReopening = false;
  #generation = 0;
  /** Why nothing can be stored or read now. */
  fault: string | undefined;
  numFailures = 0;

  constructor(options: DiskTierOptions) {
    this.#options = options;
    this.#reads = new DiskReads(options.readers);
    this.#order = new UseOrder({
      ...{ clock: options.clock, signal: options.signal, isHeld: (key) => this.#entries.has(key) },
      write: (keys) => this.#writeOrder(keys),
    });
  }

  /** Opens it; when that fails, again and again until `signal` aborts. Resolves after the first try. */
  async start(): Promise<void> {
    if (this.#options.budgetBytes === 0) return;
    this.fault = OPENING;
    if (!(await this.#open())) void this.#reopen();
  }

  /** @returns whether it is open. */
  async #open(): Promise<boolean> {
    const { open, log } = this.#options;
    const { entries, wiped, fault, generation } = await open().catch((error: unknown) => ({
      ...{ entries: [], wiped: undefined, fault: messageOf(error), generation: this.#generation },
    }));
    this.#generation = generation;
    if (wiped !== undefined)
      log.warn({ reason: wiped }, 'the disk tier was not usable, was set aside and starts empty');
    const before = this.fault === OPENING ? undefined : this.fault;
    if (fault !== undefined && fault !== before) {
      log.error({ fault }, 'the disk tier cannot be opened: the store serves from DRAM and tries again');
    }
    if (fault === undefined && before !== undefined) log.info({ blocks: entries.length }, 'the disk tier is open');
    for (const [i, entry] of entries.entries()) {
      this.#add(entry);
      if (i % RECOVERED_PER_TURN === RECOVERED_PER_TURN - 1) await this.#options.clock.turn();
    }
    this.fault = fault;
    await this.trim();
    return fault === undefined;
  }

  async #reopen(): Promise<void> {
    if (this.#isReopening) return;
    this.#isReopening = true;
    const { clock, signal } = this.#options;
    const backoff = new Backoff({ clock, firstMs: MIN_RETRY_MS, mostMs: MAX_RETRY_MS });
    while (this.fault !== undefined) {
      await backoff.pause(signal);
      if (signal.aborted) return;
      await this.#open();
    }
    this.#isReopening = false;
  }

  /** It is not used until it has been opened again. */
  #leave(fault: string): void {
    if (this.fault !== undefined) return;
    this.fault = fault;
    for (const key of [...this.#entries.keys()]) this.#forget(key);
    this.#options.log.error({ fault }, 'the disk tier is not usable: the store serves from DRAM and tries again');
    void this.#reopen();
  }

  /** @throws Error when the disk does not answer: what opens it again waits behind what hangs. */
  async #answered<T>(call: Promise<T>): Promise<T> {
    const answered = new AbortController();
    const late = this.#options.clock.sleep(ANSWER_MS, answered.signal).then((): never => {
      const why = `the disk does not answer for ${ANSWER_MS} ms`;
      if (!answered.signal.aborted) this.#leave(why);
      throw new Error(why);
    });
    late.catch(() => undefined);
    try {
      return await Promise.race([call, late]);
    } finally {
      answered.abort(OVER);
    }
  }

  /** After a call that failed: what the environment is now. */
  async #look(): Promise<void> {
    // A thread that hangs says nothing of it.
    if (this.fault !== undefined) return;
    const { fault, generation } = await this.#options.worker.call('state', undefined);
    if (generation !== this.#generation) {
      this.#generation = generation;
      for (const key of [...this.#entries.keys()]) this.#forget(key);
    }
    if (fault !== undefined) this.#leave(fault);
  }

  get size(): number {
    return this.#entries.size;
  }

  /** Of the budget: records, and those that are being written. */
  get takenBytes(): number {
    return this.#usedBytes + this.#reservedBytes;
  }

  has(hash: BlockHash): boolean {
    return this.entryOf(hash) !== undefined;
  }

  /** Undefined when this very block is not here. */
  entryOf({ key, digest }: BlockHash): DiskEntry | undefined {
    const entry = this.#entries.get(key);
    return entry?.digest === digest ? entry : undefined;
  }

  /** It was used, here or in a tier above: others go before it, after a restart too. */
  touch(hash: BlockHash): void {
    if (!this.has(hash)) return;
    this.#eviction.touch(hash.key);
    this.#order.used(hash.key);
  }

  async #writeOrder(keys: readonly BlockKey[]): Promise<void> {
    if (this.fault !== undefined) return;
    try {
      await this.#answered(this.#options.worker.call('touch', keys));
    } catch (error) {
      await this.#failed(error, 'the order of use was not written down');
    }
  }

  #add(entry: DiskEntry): void {
    if (this.#entries.has(entry.key)) return;
    this.#entries.set(entry.key, entry);
    this.#eviction.insert(entry.key);
    this.formats.add(entry.format, entry.bytes);
    this.#usedBytes += pagedBytes(entry.bytes);
    this.#options.onStored(entry.key);
  }

  #forget(key: BlockKey): void {
    const entry = this.#entries.get(key);
    if (!entry) return;
    this.#entries.delete(key);
    this.#eviction.remove(key);
    this.formats.remove(entry.format, entry.bytes);
    this.#usedBytes -= pagedBytes(entry.bytes);
    this.#options.onRemoved(key);
  }

  /** Evicts down to the budget, for instance after a restart with a smaller one. */
  async trim(): Promise<void> {
    try {
      await this.#makeRoom(this.#options.budgetBytes);
    } catch (error) {
      await this.#failed(error, 'the disk tier could not make room');
    }
  }

  /** Writes what fits, oldest out first. Resolves when it is durable (S1) or given up; never throws. */
  async put(writes: readonly DiskWrite[]): Promise<void> {
    const others = writes.flatMap(({ hash }) => this.#putting.get(hash.key) ?? []);
    const own = this.#putFresh(writes.filter(({ hash }) => !this.#putting.has(hash.key)));
    await Promise.all([own, ...others]);
  }

  async #putFresh(writes: readonly DiskWrite[]): Promise<void> {
    const { worker, budgetBytes } = this.#options;
    if (this.fault !== undefined) return;
    let newBytes = 0;
    // More than the whole budget at once, those that are being put already included: the first ones, which a prefix needs first.
    const fresh = writes.filter(({ hash, bytes }) => {
      const total = this.#reservedBytes + newBytes + pagedBytes(bytes);
      if (this.#entries.has(hash.key) || total > budgetBytes) return false;
      newBytes += pagedBytes(bytes);
      return true;
    });
    if (fresh.length === 0) return;
    this.#reservedBytes += newBytes;
    let settle: () => void = () => undefined;
    const settled = new Promise<void>((resolve) => {
      settle = resolve;
    });
    for (const { hash } of fresh) this.#putting.set(hash.key, settled);
    try {
      await this.#makeRoom(budgetBytes - this.#reservedBytes);
      const writes = fresh.map(({ hash, slot, bytes }) => ({ slot, bytes, key: hash.key, digest: hash.digest }));
      const { stored, generation } = await this.#answered(worker.call('put', writes));
      // It may have been begun anew, by this call or by another beside it: what the index says is looked at first.
      if (generation !== this.#generation) await this.#look();
      if (generation !== this.#generation) return;
      this.counters.offered += stored.length;
      this.counters.stored += stored.length;
      for (const entry of stored) this.#add(entry);
      this.#trimAhead();
    } catch (error) {
      await this.#failed(error, 'the disk tier could not store blocks; they stay in DRAM only');
      if (isForRoom(error)) await this.#relieve();
    } finally {
      this.#reservedBytes -= newBytes;
      for (const { hash } of fresh) this.#putting.delete(hash.key);
      settle();
    }
  }

  async #failed(error: unknown, what: string): Promise<void> {
    this.numFailures++;
    this.#options.log.warn({ error: messageOf(error) }, what);
    await this.#look();
  }

  /** Into the slot; false when the record is missing or damaged, and then it is gone from here. */
  async get(hash: BlockHash, slot: number): Promise<boolean> {
    const entry = this.#entries.get(hash.key);
    if (entry?.digest !== hash.digest) {
      this.counters.misses++;
      return false;
    }
    const { at, bytes, format, digest } = entry;
    let fault: string | undefined;
    try {
      const file = { path: this.#options.records(), generation: this.#generation };
      fault = await this.#reads.read({ at, bytes, format, digest, slot }, file);
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
    // It went while it was read, or the environment was begun anew.
    if (this.#entries.get(hash.key) !== entry) return false;
    this.numFailures++;
    this.#options.log.warn({ fault }, 'a record on disk is unusable and was dropped');
    await this.#remove([hash.key]).catch((error: unknown) => this.#failed(error, 'a record could not be deleted'));
    return false;
  }

  /** Makes room for what comes, off the way of whoever brings it. */
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
        const before = this.#usedBytes;
        await this.#makeRoom(Math.max(limit - this.#reservedBytes, before - TRIM_BYTES));
        if (this.#usedBytes >= before) break;
      }
    } catch (error) {
      await this.#failed(error, 'the disk tier could not make room');
    }
    this.#isTrimming = false;
  }

  async #makeRoom(limitBytes: number): Promise<void> {
    const victims: BlockKey[] = [];
    let used = this.#usedBytes;
    for (const key of this.#eviction.inOrder()) {
      if (used <= limitBytes) break;
      used -= pagedBytes(this.#entries.get(key)?.bytes ?? 0);
      victims.push(key);
    }
    if (victims.length === 0) return;
    this.counters.evictions += victims.length;
    await this.#remove(victims);
  }

  async #remove(keys: readonly BlockKey[]): Promise<void> {
    const entries = keys.flatMap((key) => this.#entries.get(key) ?? []);
    for (const key of keys) this.#forget(key);
    const generation = this.#generation;
    try {
      // At once: what is put under the same key from now on comes behind it. Who reads one of them now finds it whole, or another's bytes.
      await this.#answered(this.#options.worker.call('remove', keys));
    } catch (error) {
      // A disk so full that nothing can be taken away: they are there still, and count.
      if (isForRoom(error) && generation === this.#generation) for (const entry of entries) this.#add(entry);
      throw error;
    }
  }

  async #relieve(): Promise<void> {
    try {
      await this.#makeRoom(this.#usedBytes * (1 - EMERGENCY_SHARE));
    } catch (error) {
      await this.#failed(error, 'the disk tier could not make room');
    }
  }
}

function pagedBytes(bytes: number): number {
  return aligned(bytes, PAGE_BYTES);
}
