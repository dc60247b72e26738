/**
 * Records on their way from DRAM to disk after whoever offered them has been answered. They are pinned until they are there, or given up.
 *
 * Bounded (P1): they take half of DRAM at most; whoever brings more waits.
 */
import { Condition } from '../../shared/base/condition.ts';
import type { BlockKey } from '../../shared/kv/block_key.ts';
import type { DiskWrite } from './disk_tier.ts';
import type { StoreTiers } from './tiers.ts';

/** Records and bytes per LMDB transaction: a commit costs half a millisecond and more, shared by these. */
export const MAX_BATCH = 256;
/** Bytes of one LMDB transaction, at most; a larger record has a transaction of its own. */
export const MAX_BATCH_BYTES = 32 << 20;

/** Queue of pinned records that are written to disk in batches. */
export class WriteBehind {
  readonly #tiers: StoreTiers;
  /** In the order in which they came; those that are being written too. */
  readonly #queue = new Map<BlockKey, DiskWrite>();
  /** After each batch. */
  readonly #written = new Condition();
  #bytes = 0;
  #isWriting = false;

  constructor(tiers: StoreTiers) {
    this.#tiers = tiers;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Pinned ones; a key that is on its way already is unpinned once. */
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

  /** Until no more than so many bytes are on their way, or `signal` aborts. */
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
