/** Keys that open fetch streams will still read, counted: several streams may want the same. Bounded by the streams (P1). */
import type { BlockKey, BlockHash } from './block_key.ts';

/** Counted keys of the blocks that open fetches will still read. */
export class WantedKeys {
  readonly #counts = new Map<BlockKey, number>();

  has(key: BlockKey): boolean {
    return this.#counts.has(key);
  }

  add(hashes: readonly Pick<BlockHash, 'key'>[]): void {
    for (const { key } of hashes) this.#counts.set(key, (this.#counts.get(key) ?? 0) + 1);
  }

  remove(hashes: readonly Pick<BlockHash, 'key'>[]): void {
    for (const { key } of hashes) {
      const count = this.#counts.get(key) ?? 0;
      if (count > 1) this.#counts.set(key, count - 1);
      else this.#counts.delete(key);
    }
  }
}
