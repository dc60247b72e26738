/**
 * Queue of blocks to copy out of the device; blocks that a reader waits for come first.
 *
 * Bounded (P1) by the device's blocks: for one more the oldest is dropped, and a reader that waits for it is notified.
 */
import type { BlockKey, BlockHash } from '../kv/block_key.ts';

/** A block that is to be copied out of the device. */
export interface Export {
  readonly hash: BlockHash;
  /** Anchor of a block that was computed here and has not been offered to its home store yet; undefined for other blocks. */
  readonly anchor: BlockKey | undefined;
}

/** Most queued blocks that are looked at for the next copy. */
const MAX_LOOKS = 4_096;

/** Queue of blocks to copy out of the device; blocks that a reader waits for come first. */
export class ExportQueue {
  readonly #maxBlocks: number;
  readonly #onFailed: (hash: BlockHash) => void;
  readonly #exports = new Map<BlockKey, Export>();
  /** Keys of the blocks that a reader waits for; a subset of `#exports`' keys. */
  readonly #asked = new Set<BlockKey>();

  /** `onFailed`: a block that was asked for will not be copied. */
  constructor(maxBlocks: number, onFailed: (hash: BlockHash) => void) {
    this.#maxBlocks = maxBlocks;
    this.#onFailed = onFailed;
  }

  get size(): number {
    return this.#exports.size;
  }

  /** Queues a block that was just computed, for the outbox and the stores. */
  computed(hash: BlockHash, anchor: BlockKey): void {
    this.#add({ hash, anchor });
  }

  /** Queues a block that a reader waits for, ahead of blocks that were only computed. */
  requested(hash: BlockHash): void {
    this.#asked.add(hash.key);
    this.#add({ hash, anchor: undefined });
  }

  /**
   * Returns up to `count` blocks to copy next, among the first MAX_LOOKS those for which `mayGo` is true; they stay queued until they are
   * {@link copied} or have {@link failed}.
   */
  next(count: number, mayGo: (hash: BlockHash) => boolean = () => true): Export[] {
    const found = new Map<BlockKey, Export>();
    let looks = 0;
    for (const queue of [this.#asked, this.#exports.keys()]) {
      for (const key of queue) {
        if (found.size === count || ++looks > MAX_LOOKS) break;
        const entry = this.#exports.get(key);
        if (entry && mayGo(entry.hash)) found.set(key, entry);
      }
    }
    return [...found.values()];
  }

  /**
   * Removes a block that has been copied out; the copy also serves requests that came in meanwhile. @returns the newest anchor known
   * for the block, undefined when there is none
   */
  copied({ hash, anchor }: Export): BlockKey | undefined {
    const latest = this.#exports.get(hash.key);
    this.#exports.delete(hash.key);
    this.#asked.delete(hash.key);
    return latest?.anchor ?? anchor;
  }

  /** Removes a block that will not be copied, because the device no longer holds it or the queue is full; notifies its reader. */
  failed(key: BlockKey): void {
    const entry = this.#exports.get(key);
    this.#exports.delete(key);
    if (this.#asked.delete(key) && entry) this.#onFailed(entry.hash);
  }

  #add({ hash, anchor }: Export): void {
    const queued = this.#exports.get(hash.key);
    this.#exports.set(hash.key, { hash, anchor: queued?.anchor ?? anchor });
    const [oldest] = this.#exports.keys();
    if (this.#exports.size > this.#maxBlocks && oldest !== undefined) this.failed(oldest);
  }
}
