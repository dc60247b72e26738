/** Order in which blocks of the disk tier were used since the last write of that order, so that the order outlives a restart. */
import type { Clock } from '../../shared/base/clock.ts';
import type { BlockKey } from '../../shared/kv/block_key.ts';

/** Milliseconds between two writes of the order. Each covers at most MAX_USED blocks (P1), KEYS_PER_CALL in a transaction. */
const WRITE_MS = 5_000;
const MAX_USED = 65_536;
const KEYS_PER_CALL = 4_096;

/** Dependencies of a UseOrder, and the function that writes the order. */
export interface UseOrderOptions {
  readonly clock: Clock;
  readonly signal: AbortSignal;
  /** Whether the disk tier holds the block; the order of other keys is not written. */
  readonly isHeld: (key: BlockKey) => boolean;
  /** Stores `keys` as the most recently used, in this order. The function handles its own failures. */
  readonly write: (keys: readonly BlockKey[]) => Promise<void>;
}

/** Collects the keys that were used, and writes their order every WRITE_MS. */
export class UseOrder {
  readonly #options: UseOrderOptions;
  /** Used keys, in the order of their last use. */
  readonly #used = new Set<BlockKey>();
  #isWaiting = false;

  constructor(options: UseOrderOptions) {
    this.#options = options;
  }

  used(key: BlockKey): void {
    this.#used.delete(key);
    if (this.#used.size < MAX_USED) this.#used.add(key);
    if (!this.#isWaiting) void this.#writeLater();
  }

  /** Writes the order of all used keys once after WRITE_MS. A killed store loses the keys that are not written yet. */
  async #writeLater(): Promise<void> {
    const { clock, signal, isHeld, write } = this.#options;
    this.#isWaiting = true;
    await clock.sleep(WRITE_MS, signal);
    this.#isWaiting = false;
    const keys = [...this.#used].filter(isHeld);
    this.#used.clear();
    for (let at = 0; at < keys.length && !signal.aborted; at += KEYS_PER_CALL)
      await write(keys.slice(at, at + KEYS_PER_CALL));
  }
}
