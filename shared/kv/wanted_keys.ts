/** Keys that open fetch streams will still read, counted: several streams may want the same. Bounded by the streams (P1). */
import type { BlockKey, ChainLink } from './block_key.ts';

export class WantedKeys {
  readonly #counts = new Map<BlockKey, number>();

  has(key: BlockKey): boolean {
    return this.#counts.has(key);
  }

  add(links: readonly ChainLink[]): void {
    for (const { key } of links) this.#counts.set(key, (this.#counts.get(key) ?? 0) + 1);
  }

  remove(links: readonly ChainLink[]): void {
    for (const { key } of links) {
      const count = this.#counts.get(key) ?? 0;
      if (count > 1) this.#counts.set(key, count - 1);
      else this.#counts.delete(key);
    }
  }
}
