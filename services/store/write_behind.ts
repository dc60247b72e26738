/**
 * Writes records from DRAM to disk after their offer has been answered. A record stays pinned in DRAM until it is written or dropped.
 *
 * Bounded (P1): the caller waits, with `until`, while more than half of DRAM is queued.
 */
import { Condition } from '../../shared/base/condition.ts';
import type { BlockKey } from '../../shared/kv/block_key.ts';
import type { DiskWrite } from './disk_tier.ts';
import type { StoreTiers } from './tiers.ts';

/** Records of one LMDB transaction, at most. They share the cost of a commit, half a millisecond or more. */
export const MAX_BATCH = 256;
/** Bytes of one LMDB transaction, at most; a larger record has a transaction of its own. */
export const MAX_BATCH_BYTES = 32 << 20;

/** Queue of pinned records that are written to disk in batches. */
export class WriteBehind {
  readonly #tiers: StoreTiers;
  /** Writes by key, in order of arrival. A write stays here until its batch is committed. */
  readonly #queue = new Map<BlockKey, DiskWrite>();
  /** Notified after each batch. */
  readonly #written = new Condition();
  #bytes = 0;
  #isWriting = false;

  constructor(tiers: StoreTiers) {
    this.#tiers = tiers;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Queues writes whose blocks are pinned. A write whose key is queued already is dropped, and its extra pin released. */
  add(writes: readonly DiskWrite[]): void {
    for (const write of writes) {
      if (this.#queue.has(write.hash.key)) {
        this.#tiers.release([write]);
        continue;
      }
      this.#queue.set(write.hash.key, write);
      this.#bytes += write.bytes;
    }
    if (!this.#isWriting) void this.#writeAll();
  }

  /** Resolves when at most `mostBytes` bytes are queued, or `signal` aborts. */
  async until(mostBytes: number, signal: AbortSignal): Promise<void> {
    await this.#written.until(() => this.#bytes <= mostBytes, signal);
  }

  async #writeAll(): Promise<void> {
    this.#isWriting = true;
    while (this.#queue.size > 0) {
      const batch = firstOf(this.#queue.values());
      await this.#tiers.commit(batch);
      for (const { hash, bytes } of batch) {
        this.#queue.delete(hash.key);
        this.#bytes -= bytes;
      }
      this.#written.notify();
    }
    this.#isWriting = false;
  }
}

/** Returns the first writes that fit in one transaction, at least one. */
function firstOf(writes: Iterable<DiskWrite>): DiskWrite[] {
  const batch: DiskWrite[] = [];
  let bytes = 0;
  for (const write of writes) {
    bytes += write.bytes;
    if (batch.length === MAX_BATCH || (batch.length > 0 && bytes > MAX_BATCH_BYTES)) break;
    batch.push(write);
  }
  return batch;
}
