/**
 * Calls that wait for a thread, shared fairly among those for whom they are made (fair_shares.ts): next is the oldest call of the one that has had
 * the least of the thread's time by its weight. Calls for one alone come in their order.
 *
 * Calls without a share are of the process itself, and first: what a thread is to remember of an answer is there before the next turn is read.
 */
import { FairShares } from './fair_shares.ts';

/** For whom a call is made, and the weight of its share of the thread's time; 1 by default. */
export interface CallShare {
  readonly key: string;
  readonly weight?: number | undefined;
}

/** The request that a call is made for: until when it is wanted, and its share. */
export interface CallFor {
  readonly signal: AbortSignal;
  readonly share?: CallShare | undefined;
}

/** A call that runs, and for whom; undefined for the process itself. */
export interface RunningCall<T> {
  readonly id: number;
  readonly call: T;
  readonly key: string | undefined;
}

/** Calls that wait, as many as their maker lets in, and the shares of those that run. */
export class CallQueue<T> {
  readonly #own = new Map<number, T>();
  /** Calls by id for each key that has some, the oldest first. */
  readonly #calls = new Map<string, Map<number, T>>();
  readonly #shares = new FairShares();
  #numShared = 0;

  get size(): number {
    return this.#own.size + this.#numShared;
  }

  /** Adds a call at the end of those of its share. */
  add(id: number, call: T, share?: CallShare): void {
    if (!share) {
      this.#own.set(id, call);
      return;
    }
    const { key, weight } = share;
    this.#shares.wait(key, weight);
    const calls = this.#calls.get(key) ?? new Map<number, T>();
    this.#calls.set(key, calls.set(id, call));
    this.#numShared++;
  }

  /** Removes a call that waits. @returns false for one that does not */
  remove(id: number, share?: CallShare): boolean {
    if (!share) return this.#own.delete(id);
    const isThere = this.#delete(id, share.key);
    if (isThere) this.#shares.end(share.key, true);
    return isThere;
  }

  /** Takes the call that is next, which runs from now on until {@link ended}; undefined where none waits. */
  next(): RunningCall<T> | undefined {
    for (const [id, call] of this.#own) {
      this.#own.delete(id);
      return { id, call, key: undefined };
    }
    let key: string | undefined;
    for (const one of this.#calls.keys())
      if (key === undefined || this.#shares.virtualMs(one) < this.#shares.virtualMs(key)) key = one;
    const [first] = this.#calls.get(key ?? '') ?? [];
    if (key === undefined || !first) return undefined;
    const [id, call] = first;
    this.#delete(id, key);
    this.#shares.serve(key);
    return { id, call, key };
  }

  /** A call for this key has run, and took so many ms. */
  ended(key: string | undefined, ms: number): void {
    if (key === undefined) return;
    this.#shares.charge(key, ms);
    this.#shares.end(key, false);
  }

  /** Takes all calls out. */
  clear(): readonly T[] {
    const all = [...this.#own.values(), ...[...this.#calls.values()].flatMap((calls) => [...calls.values()])];
    this.#own.clear();
    this.#calls.clear();
    this.#numShared = 0;
    return all;
  }

  #delete(id: number, key: string): boolean {
    const calls = this.#calls.get(key);
    if (!calls?.delete(id)) return false;
    if (calls.size === 0) this.#calls.delete(key);
    this.#numShared--;
    return true;
  }
}
