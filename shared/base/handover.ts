/**
 * Hands values to their taker one after the other: at once and without a promise while the taker keeps up.
 *
 *   push ──► take ──undefined──► the next value may come
 *              ├──promise──────► the values after it wait until it resolves
 *              └──'enough'─────► ended: the values after it are dropped
 */

import { asFailure } from './failure.ts';

/** A taker wants nothing more. */
export const ENOUGH = 'enough';
/** Answer of a taker: undefined, the next value may come; {@link ENOUGH}, none may; a promise, the next one waits for it. */
export type Taken = typeof ENOUGH | undefined | Promise<typeof ENOUGH | undefined>;

/** The way of values to one taker. Values wait where their taker is behind; the side that pushes keeps them bounded. */
export class Handover<T extends object> {
  readonly #take: (value: T) => Taken;
  readonly #waiting: T[] = [];
  /** Whether the taker has not yet taken the last value. */
  #isBusy = false;
  #end: { readonly error: unknown } | undefined;
  #settle: () => void = () => undefined;
  /**
   * Settles when no more values are given: resolves when all were taken, or the taker has enough, also where the way has failed meanwhile;
   * rejects with the error of {@link end} or {@link fail}, or with that of the taker.
   */
  readonly ended: Promise<void>;

  constructor(take: (value: T) => Taken) {
    this.#take = take;
    this.ended = new Promise((resolve, reject) => {
      this.#settle = () => {
        const { error } = this.#end ?? {};
        if (error === undefined) resolve();
        else reject(asFailure(error));
      };
    });
    // It may be awaited later.
    this.ended.catch(() => undefined);
  }

  /** Gives a value, at once where the taker is not behind; drops it after the end. */
  push(value: T): void {
    if (this.#end) return;
    if (this.#isBusy) this.#waiting.push(value);
    else this.#give(value);
  }

  /** No value comes any more: ends, with `error` if there is one, when the taker has those that wait. Only the first end counts. */
  end(error?: unknown): void {
    this.#end ??= { error };
    this.#goOn();
  }

  /** Drops the values that wait, and ends with an error, unless it has ended before. */
  fail(error: unknown): void {
    if (!this.#end) this.#waiting.length = 0;
    this.end(error);
  }

  #give(value: T): void {
    try {
      const taken = this.#take(value);
      if (taken === ENOUGH) this.#stop(undefined);
      else if (taken) this.#wait(taken);
    } catch (error) {
      this.#stop(error);
    }
  }

  #wait(taken: Promise<typeof ENOUGH | undefined>): void {
    this.#isBusy = true;
    taken.then(
      (answer) => {
        this.#isBusy = false;
        if (answer === ENOUGH) this.#stop(undefined);
        else this.#goOn();
      },
      (error: unknown) => {
        this.#isBusy = false;
        this.#stop(error);
      },
    );
  }

  /** Gives the values that wait, as far as the taker takes them, and settles after the last one. */
  #goOn(): void {
    while (!this.#isBusy) {
      const value = this.#waiting.shift();
      if (value) this.#give(value);
      else {
        if (this.#end) this.#settle();
        return;
      }
    }
  }

  /** Ends at once: the taker has enough, or has failed. */
  #stop(error: unknown): void {
    this.#waiting.length = 0;
    this.#end = { error };
    this.#settle();
  }
}
