/**
 * Order of eviction of recurrent states: the one that is worth least goes first. All states of a model have one size, so the worth of a
 * state is the tokens that it saves from being computed again, times how often it was hit, and what was evicted before it: each eviction
 * raises the worth of what is inserted or hit afterwards (GreedyDual-Size-Frequency), so a state that was hit
 * often does not stay for ever.
 */
import type { EvictionPolicy } from '../kv/eviction.ts';

interface Valued {
  /** Tokens that would be computed without it, and how often it was used. */
  tokens: number;
  numHits: number;
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

  /** The slot holds another state now, which saves `tokens` tokens. */
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
