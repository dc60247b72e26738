/**
 * Evicts the recurrent state with the lowest priority (GreedyDual-Size-Frequency; all states have one size).
 *
 *   priority = level + tokens · (1 + hits)
 *
 * `tokens` are saved from being computed by a hit, and `level` is the priority of the last victim, so a state that was hit often in the
 * past does not stay for ever.
 */
import type { EvictionPolicy } from '../kv/eviction.ts';

interface Valued {
  /** Tokens that a hit saves from being computed. */
  tokens: number;
  /** Hits since the state was stored. */
  numHits: number;
  /** The highest one stays longest. */
  priority: number;
}

/** State slots by worth. The worth of a slot is kept while the slot is in use, and begins anew with `value`. */
export class LeastWorthFirst implements EvictionPolicy<number> {
  readonly #items = new Set<number>();
  readonly #valued = new Map<number, Valued>();
  readonly #pins = new Map<number, number>();
  /** Priority of the last victim. */
  #level = 0;

  get size(): number {
    return this.#items.size;
  }

  has(item: number): boolean {
    return this.#items.has(item);
  }

  /** Sets the worth of a slot that now holds another state; `tokens`: tokens that a hit saves. */
  value(item: number, tokens: number): void {
    this.#valued.set(item, { tokens, numHits: 0, priority: this.#level + tokens });
  }

  insert(item: number): void {
    if (this.#items.has(item)) throw new Error('an item is inserted once');
    this.#items.add(item);
  }

  /** The state was hit just now. */
  touch(item: number): void {
    const valued = this.#valued.get(item);
    if (!valued) return;
    valued.numHits++;
    valued.priority = this.#level + valued.tokens * (1 + valued.numHits);
  }

  remove(item: number): boolean {
    return this.#items.delete(item);
  }

  pin(item: number): void {
    this.#pins.set(item, (this.#pins.get(item) ?? 0) + 1);
  }

  unpin(item: number): void {
    const count = this.#pins.get(item) ?? 0;
    if (count > 1) this.#pins.set(item, count - 1);
    else this.#pins.delete(item);
  }

  isPinned(item: number): boolean {
    return this.#pins.has(item);
  }

  victim(isSpared?: (item: number) => boolean): number | undefined {
    let [best, bestPriority] = [undefined as number | undefined, Infinity];
    for (const item of this.#items) {
      if (this.#pins.has(item)) continue;
      // A spared one comes after all others.
      const priority = (this.#valued.get(item)?.priority ?? 0) + (isSpared?.(item) ? Number.MAX_SAFE_INTEGER : 0);
      if (priority < bestPriority) [best, bestPriority] = [item, priority];
    }
    if (best !== undefined) this.#level = Math.max(this.#level, this.#valued.get(best)?.priority ?? 0);
    return best;
  }

  *inOrder(): Generator<number> {
    const priorityOf = (item: number): number => this.#valued.get(item)?.priority ?? 0;
    yield* [...this.#items].sort((a, b) => priorityOf(a) - priorityOf(b));
  }
}
