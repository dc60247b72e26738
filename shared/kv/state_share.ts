/**
 * Caps recurrent states at a third of a record cache's memory, because one state is as large as many blocks. Beyond the cap the least
 * recently used state is evicted, whatever the cache's own order says.
 */
import type { BlockKey } from './block_key.ts';

/** States may take 1 / STATE_PART of the memory. */
const STATE_PART = 3;

/** The states of one memory, in the order of their use. */
export class StateShare {
  readonly #mostBytes: number;
  readonly #bytesOf = new Map<BlockKey, number>();
  #numBytes = 0;

  /** `numBytes`: of the whole memory. */
  constructor(numBytes: number) {
    this.#mostBytes = numBytes / STATE_PART;
  }

  get numBytes(): number {
    return this.#numBytes;
  }

  /** A state of `bytes` bytes was stored. */
  add(key: BlockKey, bytes: number): void {
    this.#bytesOf.set(key, bytes);
    this.#numBytes += bytes;
  }

  /** The record was used just now. Nothing happens when it is no state. */
  touch(key: BlockKey): void {
    const bytes = this.#bytesOf.get(key);
    if (bytes === undefined) return;
    this.#bytesOf.delete(key);
    this.#bytesOf.set(key, bytes);
  }

  /** The record is gone. Nothing happens when it was no state. */
  remove(key: BlockKey): void {
    this.#numBytes -= this.#bytesOf.get(key) ?? 0;
    this.#bytesOf.delete(key);
  }

  /**
   * Returns the states to evict because states take more than their part: those used longest ago that may go, as many as are needed.
   * None is removed here.
   */
  excess(mayGo: (key: BlockKey) => boolean): BlockKey[] {
    const victims: BlockKey[] = [];
    let rest = this.#numBytes;
    for (const [key, bytes] of this.#bytesOf) {
      if (rest <= this.#mostBytes) break;
      if (!mayGo(key)) continue;
      victims.push(key);
      rest -= bytes;
    }
    return victims;
  }
}
