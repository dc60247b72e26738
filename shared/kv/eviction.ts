/**
 * Order of eviction when room is short: device blocks that nobody uses, records in host memory, records on disk. A policy only names
 * the next victim; the owner of the items decides what happens to it.
 */
import type { EvictionClass } from './kv_spec.ts';

/** Keeps items in the order in which they are to be evicted, and names the next. */
export interface EvictionPolicy<T> {
  readonly size: number;
  /** Whether an item is there. */
  has(item: T): boolean;
  /** Adds an item as the one used last of its class. @throws Error when it is there already. */
  insert(item: T, evictionClass?: EvictionClass): void;
  /** The item was used just now; it stays in its class. Nothing happens when it is not there. */
  touch(item: T): void;
  /** Takes an item out. @returns whether it was there */
  remove(item: T): boolean;
  /** Excludes an item, present or not yet, from eviction until unpin() was called as often as pin(). */
  pin(item: T): void;
  /** Takes one pin back. */
  unpin(item: T): void;
  /** Whether an item has pins. */
  isPinned(item: T): boolean;
  /**
   * Returns the next item to evict, or undefined when all are pinned. Items for which `isSpared` is true come after all others. The
   * item stays until remove().
   */
  victim(isSpared?: (item: T) => boolean): T | undefined;
  /** Yields all items, pinned ones included, in the order of eviction. Items may be removed during the iteration. */
  inOrder(): Iterable<T>;
}

/**
 * Items of one class in the order of use, oldest first: the insertion order of a Set. The oldest one is found by an iterator that stays at
 * the front, because a new one would pass all places from which items were removed.
 */
class UseOrder<T> {
  readonly #items = new Set<T>();
  #iterator = this.#items.values();
  /** The item that the iterator returned last, while it is the oldest one. */
  #oldest: { readonly item: T } | undefined;

  get size(): number {
    return this.#items.size;
  }

  has(item: T): boolean {
    return this.#items.size > 0 && this.#items.has(item);
  }

  /** Adds the item as the one used last. Returns false, and changes nothing, when it is there. */
  add(item: T): boolean {
    const { size } = this.#items;
    return this.#items.add(item).size > size;
  }

  delete(item: T): boolean {
    if (this.#oldest?.item === item) this.#oldest = undefined;
    return this.#items.delete(item);
  }

  /** The item used longest ago; undefined when there is none. */
  get oldest(): { readonly item: T } | undefined {
    if (this.#oldest || this.#items.size === 0) return this.#oldest;
    let next = this.#iterator.next();
    if (next.done === true) {
      // An iterator that has reached the end once stays there.
      this.#iterator = this.#items.values();
      next = this.#iterator.next();
    }
    this.#oldest = next.done === true ? undefined : { item: next.value };
    return this.#oldest;
  }

  [Symbol.iterator](): Iterator<T> {
    return this.#items.values();
  }
}

/** Least recently used first, class 0 before class 1. */
export class LeastRecentlyUsed<T> implements EvictionPolicy<T> {
  readonly #classes: readonly [UseOrder<T>, UseOrder<T>] = [new UseOrder(), new UseOrder()];
  readonly #pins = new Map<T, number>();

  get size(): number {
    return this.#classes[0].size + this.#classes[1].size;
  }

  has(item: T): boolean {
    return this.#classes[1].has(item) || this.#classes[0].has(item);
  }

  insert(item: T, evictionClass: EvictionClass = 1): void {
    const other = this.#classes[evictionClass === 0 ? 1 : 0];
    if (other.has(item) || !this.#classes[evictionClass].add(item)) throw new Error('an item is inserted once');
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
      const { oldest } = items;
      if (oldest && !this.#pins.has(oldest.item) && !isSpared?.(oldest.item)) return oldest.item;
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
