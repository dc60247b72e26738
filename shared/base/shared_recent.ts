/**
 * A map of what several users used last, bounded by the number of its entries and by their size together (P1). The user that takes the most of
 * it makes room, by the entry that it has not used for longest, so that one that adds much displaces its own entries and no other's:
 *
 *   user a: a1 a2 a3 a4 common        a5 comes: a1 makes room
 *   user b: b1 common                 `common` is there for as long as one of them keeps it
 */

/** Users of one entry that are counted (P1): an entry that so many keep is kept without further ones. */
const MAX_USERS = 8;

interface Entry<V> {
  readonly value: V;
  readonly size: number;
  readonly users: Set<string>;
}

/** Keys that one user has used, the one least recently used first, and the size of their entries. */
interface Use {
  readonly keys: Set<string>;
  size: number;
}

/** Entries by key, and who uses them. */
export class SharedRecent<V> {
  readonly #maxEntries: number;
  readonly #maxSize: number;
  readonly #entries = new Map<string, Entry<V>>();
  /** Users that have entries, the one that has used none for longest first. */
  readonly #uses = new Map<string, Use>();
  #size = 0;

  constructor(maxEntries: number, maxSize: number) {
    this.#maxEntries = maxEntries;
    this.#maxSize = maxSize;
  }

  /** Returns the value of a key, which this user has then used last. */
  get(key: string, user: string): V | undefined {
    const entry = this.#entries.get(key);
    if (entry) this.#use(key, entry, user);
    return entry?.value;
  }

  /** Sets the value of a key for a user and for those that use it already. An entry that is alone is kept, however large it is. */
  set(key: string, value: V, size: number, user: string): void {
    const users = [...(this.#entries.get(key)?.users ?? [])];
    for (const one of users) this.#leave(key, one);
    const entry: Entry<V> = { value, size, users: new Set() };
    this.#entries.set(key, entry);
    this.#size += size;
    for (const one of [...users, user]) this.#use(key, entry, one);
    while (this.#entries.size > 1 && (this.#entries.size > this.#maxEntries || this.#size > this.#maxSize))
      this.#makeRoom();
  }

  #use(key: string, entry: Entry<V>, user: string): void {
    const use = this.#uses.get(user) ?? { keys: new Set(), size: 0 };
    if (!use.keys.delete(key)) {
      if (entry.users.size >= MAX_USERS) return;
      entry.users.add(user);
      use.size += entry.size;
    }
    use.keys.add(key);
    this.#uses.delete(user);
    this.#uses.set(user, use);
  }

  /** The user with the largest part of what may be kept loses the entry that it has not used for longest. */
  #makeRoom(): void {
    let most = -1;
    let found: string | undefined;
    for (const [user, { keys, size }] of this.#uses) {
      const part = Math.max(keys.size / this.#maxEntries, size / this.#maxSize);
      if (part <= most) continue;
      most = part;
      found = user;
    }
    const [oldest] = (found === undefined ? undefined : this.#uses.get(found)?.keys) ?? [];
    if (found !== undefined && oldest !== undefined) this.#leave(oldest, found);
  }

  /** A user does not keep an entry any more; the entry of the last one goes. */
  #leave(key: string, user: string): void {
    const [entry, use] = [this.#entries.get(key), this.#uses.get(user)];
    if (!entry || !use?.keys.delete(key)) return;
    use.size -= entry.size;
    if (use.keys.size === 0) this.#uses.delete(user);
    entry.users.delete(user);
    if (entry.users.size > 0) return;
    this.#entries.delete(key);
    this.#size -= entry.size;
  }
}
