/** Which blocks of the disk tier were used since that was last written down, so that the order of use outlives a restart. */
import type { Clock } from '../../shared/base/clock.ts';
import type { BlockKey } from '../../shared/kv/block_key.ts';

/** It is written down so often, for at most so many blocks (P1), so many in a transaction. */
const WRITE_MS = 5_000;
const MAX_USED = 65_536;
const KEYS_PER_CALL = 4_096;

export interface UseOrderOptions {
  readonly clock: Clock;
  readonly signal: AbortSignal;
  /** Whether it is there to be written about. */
  readonly isHeld: (key: BlockKey) => boolean;
  /** They are the freshest, in this order. A failure is whoever's that writes. */
  readonly write: (keys: readonly BlockKey[]) => Promise<void>;
}

export class UseOrder {
  readonly #options: UseOrderOptions;
  /** In the order of their last use. */
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

  /** For many together: a kill loses the last of them. */
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
