/**
 * Order of eviction when room is short: device blocks that nobody uses, records in host memory, records on disk. A policy only names
 * the next victim; the owner of the items decides what happens to it.
 */
import type { EvictionClass } from './kv_spec.ts';

/** Keeps items in the order in which they are to be evicted, and names the next. */
export interface EvictionPolicy<T> {
  readonly size: number;
  has(item: T): boolean;
  /** Adds an item as the one used last of its class. @throws Error when it is there already. */
  insert(item: T, evictionClass?: EvictionClass): void;
  /** The item was used just now; it stays in its class. Nothing happens when it is not there. */
  touch(item: T): void;
  /** Takes an item out. @returns whether it was there */
  remove(item: T): boolean;
  /** Excludes an item, present or not yet, from eviction until unpin() was called as often as pin(). */
  pin(item: T): void;
  unpin(item: T): void;
  isPinned(item: T): boolean;
  /**
   * Returns the next item to evict, or undefined when all are pinned. Items for which `isSpared` is true come after all others. The
   * item stays until remove().
   */
  victim(isSpared?: (item: T) => boolean): T | undefined;
  /** Yields all items, pinned ones included, in the order of eviction. Items may be removed during the iteration. */
  inOrder(): Iterable<T>;
}

/** Least recently used first, class 0 before class 1. */
export class LeastRecentlyUsed<T> implements EvictionPolicy<T> {
  /** Items of class 0 and of class 1; insertion order is the order of use, oldest first. */
  readonly #classes: readonly [Set<T>, Set<T>] = [new Set(), new Set()];
  readonly #pins = new Map<T, number>();

  get size(): number {
    return this.#classes[0].size + this.#classes[1].size;
  }

  has(item: T): boolean {
    return this.#classes[1].has(item) || this.#classes[0].has(item);
  }

  insert(item: T, evictionClass: EvictionClass = 1): void {
    if (this.has(item)) throw new Error('an item is inserted once');
    this.#classes[evictionClass].add(item);
  }

  touch(item: T): void {
    for (const items of this.#classes) if (items.delete(item)) items.add(item);
  }

  remove(item: T): boolean {
    return this.#classes[1].delete(item) || this.#classes[0].delete(item);
  }

  pin(item: T): void {
    this.#pins.set(item, (this.#pins.get(item) ?? 0) + 1);
  }

  unpin(item: T): void {
    const count = this.#pins.get(item) ?? 0;
    if (count > 1) this.#pins.set(item, count - 1);
    else this.#pins.delete(item);
  }

  isPinned(item: T): boolean {
    return this.#pins.has(item);
  }

  victim(isSpared?: (item: T) => boolean): T | undefined {
    let spared: { readonly item: T } | undefined;
    for (const items of this.#classes) {
      for (const item of items) {
        if (this.#pins.has(item)) continue;
        if (!isSpared?.(item)) return item;
        spared ??= { item };
      }
    }
    return spared?.item;
  }

  *inOrder(): Generator<T> {
    for (const items of this.#classes) yield* items;
  }
}
