/** Records of blocks in the host memory of a simulated instance: the one used last stays longest. */
import assert from 'node:assert/strict';
import { LeastRecentlyUsed } from '../../shared/kv/eviction.ts';
import type { TraceHash } from './trace_hashes.ts';

/** Host memory with room for a number of blocks (P1). */
export class HostBlocks {
  readonly #blocks = new LeastRecentlyUsed<TraceHash>();
  readonly #numBlocks: number;
  readonly #onChanged: (isStored: boolean, hash: TraceHash) => void;

  /** `onChanged` is called for every block that is stored or evicted. */
  constructor(numBlocks: number, onChanged: (isStored: boolean, hash: TraceHash) => void) {
    this.#numBlocks = numBlocks;
    this.#onChanged = onChanged;
  }

  /** Returns whether the block is there; it then counts as used now. */
  use(hash: TraceHash): boolean {
    if (!this.#blocks.has(hash)) return false;
    this.#blocks.touch(hash);
    return true;
  }

  /** Stores a block, and evicts those used longest ago when there is no room. */
  keep(hash: TraceHash): void {
    if (this.use(hash) || this.#numBlocks === 0) return;
    while (this.#blocks.size >= this.#numBlocks) {
      const victim = this.#blocks.victim();
      assert(victim, 'nothing is pinned');
      this.#blocks.remove(victim);
      this.#onChanged(false, victim);
    }
    this.#blocks.insert(hash);
    this.#onChanged(true, hash);
  }
}
