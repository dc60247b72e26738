/**
 * The LMDB tier as the control thread sees it: which keys are there, in order of use, within a byte budget.
 *
 * The truth is in the worker's environment; this index is rebuilt from it at start. A record that cannot be written or read is
 * dropped and counted: the next request computes it again.
 */
import { messageOf } from '../../shared/base/failure.ts';
import type { Log } from '../../shared/base/log.ts';
import type { WorkerCalls } from '../../shared/base/worker_calls.ts';
import type { BlockKey, ChainLink } from '../../shared/kv/block_key.ts';
import { newTierCounters } from '../../shared/kv/record_cache.ts';
import type { DiskEntry, DiskMethods } from './disk_worker.ts';

/** LMDB gives a record its own pages. */
const PAGE_BYTES = 4_096;
/** Freed when the disk turns out fuller than the budget says. */
const EMERGENCY_SHARE = 0.1;

export interface DiskTierOptions {
  readonly worker: Pick<WorkerCalls<DiskMethods>, 'call'>;
  readonly budgetBytes: number;
  readonly log: Log;
  readonly onStored: (key: BlockKey) => void;
  readonly onRemoved: (key: BlockKey) => void;
}

export interface DiskWrite {
  readonly link: ChainLink;
  readonly slot: number;
  readonly bytes: number;
}

export class DiskTier {
  readonly counters = newTierCounters();
  readonly #options: DiskTierOptions;
  /** Insertion order is the order of use. */
  readonly #entries = new Map<BlockKey, DiskEntry>();
  #usedBytes = 0;
  numFailures = 0;

  constructor(options: DiskTierOptions, entries: readonly DiskEntry[]) {
    this.#options = options;
    for (const entry of entries) this.#add(entry);
  }

  get size(): number {
    return this.#entries.size;
  }

  get usedBytes(): number {
    return this.#usedBytes;
  }

  has(link: ChainLink): boolean {
    return this.bytesOf(link) !== undefined;
  }

  /** Size of the record, undefined when this very block is not here. */
  bytesOf({ key, digest }: ChainLink): number | undefined {
    const entry = this.#entries.get(key);
    return entry?.digest === digest ? entry.bytes : undefined;
  }

  #add(entry: DiskEntry): void {
    if (this.#entries.has(entry.key)) return;
    this.#entries.set(entry.key, entry);
    this.#usedBytes += pagedBytes(entry.bytes);
    this.#options.onStored(entry.key);
  }

  #forget(key: BlockKey): void {
    const entry = this.#entries.get(key);
    if (!entry) return;
    this.#entries.delete(key);
    this.#usedBytes -= pagedBytes(entry.bytes);
    this.#options.onRemoved(key);
  }

  /** Evicts down to the budget, for instance after a restart with a smaller one. */
  async trim(): Promise<void> {
    await this.#makeRoom(this.#options.budgetBytes);
  }

  /** Writes what fits, oldest out first. Resolves when it is durable (S1) or given up; never throws. */
  async put(writes: readonly DiskWrite[]): Promise<void> {
    const { worker, budgetBytes, log } = this.#options;
    let newBytes = 0;
    // More than the whole budget at once: the first ones, which a prefix needs first.
    const fresh = writes.filter(({ link, bytes }) => {
      if (this.#entries.has(link.key) || newBytes + pagedBytes(bytes) > budgetBytes) return false;
      newBytes += pagedBytes(bytes);
      return true;
    });
    if (fresh.length === 0) return;
    try {
      await this.#makeRoom(budgetBytes - newBytes);
      const stored = new Set(
        await worker.call(
          'put',
          fresh.map(({ link, slot, bytes }) => ({ slot, bytes, key: link.key, digest: link.digest })),
        ),
      );
      this.counters.offered += stored.size;
      this.counters.stored += stored.size;
      for (const { link, bytes } of fresh) {
        if (stored.has(link.key)) this.#add({ key: link.key, digest: link.digest, bytes });
      }
    } catch (error) {
      this.numFailures++;
      log.warn(
        { error: messageOf(error), blocks: fresh.length },
        'the disk tier could not store blocks; they stay in DRAM only',
      );
      await this.#relieve();
    }
  }

  /** Into the slot; false when the record is missing or damaged, and then it is gone from here. */
  async get(link: ChainLink, slot: number): Promise<boolean> {
    const entry = this.#entries.get(link.key);
    if (entry?.digest !== link.digest) {
      this.counters.misses++;
      return false;
    }
    let fault: string | undefined;
    try {
      fault = await this.#options.worker.call('get', { key: link.key, digest: link.digest, slot });
    } catch (error) {
      fault = messageOf(error);
    }
    if (fault === undefined) {
      this.counters.hits++;
      if (this.#entries.delete(link.key)) this.#entries.set(link.key, entry);
      return true;
    }
    this.counters.misses++;
    this.numFailures++;
    this.#options.log.warn({ fault }, 'a record on disk is unusable and was dropped');
    await this.#remove([link.key]);
    return false;
  }

  async #makeRoom(limitBytes: number): Promise<void> {
    const victims: BlockKey[] = [];
    let used = this.#usedBytes;
    for (const { key, bytes } of this.#entries.values()) {
      if (used <= limitBytes) break;
      used -= pagedBytes(bytes);
      victims.push(key);
    }
    if (victims.length === 0) return;
    this.counters.evictions += victims.length;
    await this.#remove(victims);
  }

  async #remove(keys: readonly BlockKey[]): Promise<void> {
    for (const key of keys) this.#forget(key);
    await this.#options.worker.call('remove', keys);
  }

  async #relieve(): Promise<void> {
    try {
      await this.#makeRoom(this.#usedBytes * (1 - EMERGENCY_SHARE));
    } catch (error) {
      this.#options.log.warn({ error: messageOf(error) }, 'the disk tier could not make room');
    }
  }
}

function pagedBytes(bytes: number): number {
  return Math.ceil((bytes + 16) / PAGE_BYTES) * PAGE_BYTES;
}
