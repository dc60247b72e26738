/** A map that keeps what was used last, bounded by the number of its entries and by their size together (P1). */
export class Recent<K, V> {
  readonly #maxEntries: number;
  readonly #maxSize: number;
  /** Entries, least recently used first. */
  readonly #entries = new Map<K, { readonly value: V; readonly size: number }>();
  #size = 0;

  constructor(maxEntries: number, maxSize: number) {
    this.#maxEntries = maxEntries;
    this.#maxSize = maxSize;
  }

  has(key: K): boolean {
    return this.#entries.has(key);
  }

  /** Returns the value of a key, which is then the most recently used. */
  get(key: K): V | undefined {
    const entry = this.#entries.get(key);
    if (!entry) return undefined;
    this.#entries.delete(key);
    this.#entries.set(key, entry);
    return entry.value;
  }

  /** Sets the value of a key, and returns the keys that made room. Of several entries the newest is kept, however large it is. */
  set(key: K, value: V, size: number): K[] {
    this.delete(key);
    this.#entries.set(key, { value, size });
    this.#size += size;
    const removed: K[] = [];
    for (const old of this.#entries.keys()) {
      const isWithin = this.#entries.size <= this.#maxEntries && this.#size <= this.#maxSize;
      if (isWithin || this.#entries.size === 1) break;
      this.delete(old);
      removed.push(old);
    }
    return removed;
  }

  /** Removes a key; does nothing when it is not there. */
  delete(key: K): void {
    this.#size -= this.#entries.get(key)?.size ?? 0;
    this.#entries.delete(key);
  }
}
