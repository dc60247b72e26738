/** Answers of `/v1/responses` that clients may read again, or continue. Kept in the memory of one router. */
import type { Clock } from '../../../../shared/base/clock.ts';
import { Failure } from '../../../../shared/base/failure.ts';
import type { ChatItem } from './response_input.ts';

/** Bounds of a {@link ResponseStore} (P1). */
interface StoreBounds {
  readonly maxAgeMs: number;
  readonly maxCount: number;
  /** Bytes of all answers and their conversations together, as JSON. */
  readonly maxBytes: number;
}

interface Stored {
  /** Tenant for which it is stored: others do not find it. */
  readonly owner: string;
  readonly storedMs: number;
  /** The answer as JSON. */
  readonly answer: Buffer;
  /** The conversation up to and with the answer, without instructions: a JSON list of ChatItems. */
  readonly items: Buffer;
  /** Ids of the answer's own items. */
  readonly own: readonly string[];
  /** Bytes of all of it. */
  readonly numBytes: number;
}

/** Bounds of a router's store: an hour, 1,000 answers, 64 MiB. */
const usual: StoreBounds = { maxAgeMs: 3_600_000, maxCount: 1_000, maxBytes: 64 << 20 };

/** Stored answers, by id. Where a bound is reached, the oldest of the tenant that has most of it is dropped. */
export class ResponseStore {
  readonly #clock: Clock;
  readonly #bounds: StoreBounds;
  /** In the order of their age, the oldest first. */
  readonly #stored = new Map<string, Stored>();
  /** The items of the answers as JSON, by id. */
  readonly #items = new Map<string, { readonly owner: string; readonly bytes: Buffer }>();
  /** Answers and bytes of each tenant that has some. */
  readonly #owners = new Map<string, { count: number; numBytes: number }>();
  #numBytes = 0;

  constructor(clock: Clock, bounds: StoreBounds = usual) {
    this.#clock = clock;
    this.#bounds = bounds;
  }

  /** Bytes of all stored answers. */
  get numBytes(): number {
    return this.#numBytes;
  }

  /**
   * Stores an answer, with the conversation before it and its own items. One that is larger than all bounds allow is not stored.
   */
  put(owner: string, id: string, answer: string, before: readonly ChatItem[], own: readonly ChatItem[]): void {
    const json = Buffer.from(answer);
    const items = Buffer.from(JSON.stringify([...before, ...own]));
    const named = own.flatMap((item) => (item.id === undefined ? [] : [[item.id, jsonBytes(item)] as const]));
    const numBytes = named.reduce((sum, [, { length }]) => sum + length, json.length + items.length);
    const { maxBytes, maxCount } = this.#bounds;
    if (numBytes > maxBytes) return;
    this.#dropOld();
    for (const [itemId, bytes] of named) this.#items.set(itemId, { owner, bytes });
    this.#stored.set(id, {
      owner,
      storedMs: this.#clock.nowMs(),
      answer: json,
      items,
      numBytes,
      own: named.map(([itemId]) => itemId),
    });
    this.#count(owner, 1, numBytes);
    while (this.#numBytes > maxBytes || this.#stored.size > maxCount) this.#dropOldest(this.#numBytes > maxBytes);
  }

  /** Returns an answer as JSON. @throws Failure `not_found` when it is not stored here */
  answer(owner: string, id: string): Buffer {
    return this.#find(owner, id).answer;
  }

  /** Returns the conversation up to and with an answer: a JSON list of ChatItems. @throws Failure `not_found` when it is not stored here */
  conversation(owner: string, id: string): Buffer {
    return this.#find(owner, id).items;
  }

  /** Returns an item of a stored answer as JSON. @throws Failure `not_found` when it is not stored here */
  item(owner: string, itemId: string): Buffer {
    this.#dropOld();
    const item = this.#items.get(itemId);
    if (item?.owner !== owner) throw this.#missing('item', itemId);
    return item.bytes;
  }

  /** Forgets an answer. @throws Failure `not_found` when it is not stored here */
  delete(owner: string, id: string): void {
    this.#find(owner, id);
    this.#drop(id);
  }

  #find(owner: string, id: string): Stored {
    this.#dropOld();
    const stored = this.#stored.get(id);
    if (stored?.owner !== owner) throw this.#missing('response', id);
    return stored;
  }

  #missing(what: string, id: string): Failure {
    const hours = this.#bounds.maxAgeMs / 3_600_000;
    return new Failure(
      'not_found',
      `there is no ${what} ${JSON.stringify(id.slice(0, 100))} here: it belongs to another router, had store: false, is older than ${hours} h, was deleted, or was dropped for newer ones`,
    );
  }

  #dropOld(): void {
    const sinceMs = this.#clock.nowMs() - this.#bounds.maxAgeMs;
    for (const [id, { storedMs }] of this.#stored) {
      if (storedMs > sinceMs) return;
      this.#drop(id);
    }
  }

  #drop(id: string): void {
    const stored = this.#stored.get(id);
    if (!stored) return;
    this.#stored.delete(id);
    for (const itemId of stored.own) this.#items.delete(itemId);
    this.#count(stored.owner, -1, -stored.numBytes);
  }

  /** Drops the oldest answer of the tenant that has most bytes, or most answers. */
  #dropOldest(byBytes: boolean): void {
    const sizeOf = ({ count, numBytes }: { count: number; numBytes: number }): number => (byBytes ? numBytes : count);
    const [most] = [...this.#owners].reduce((one, other) => (sizeOf(other[1]) > sizeOf(one[1]) ? other : one));
    for (const [id, { owner }] of this.#stored) {
      if (owner !== most) continue;
      this.#drop(id);
      return;
    }
  }

  #count(owner: string, count: 1 | -1, numBytes: number): void {
    this.#numBytes += numBytes;
    const before = this.#owners.get(owner) ?? { count: 0, numBytes: 0 };
    const after = { count: before.count + count, numBytes: before.numBytes + numBytes };
    if (after.count > 0) this.#owners.set(owner, after);
    else this.#owners.delete(owner);
  }
}

function jsonBytes(item: ChatItem): Buffer {
  return Buffer.from(JSON.stringify(item));
}
