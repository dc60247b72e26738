import { Condition } from './condition.ts';
import { asFailure } from './failure.ts';

/**
 * Unbounded queue of values that one side pushes and one reader takes, in order. The pushing side keeps it bounded by watching `size`,
 * the number of values not yet read.
 */
export class AsyncQueue<T> implements AsyncIterableIterator<T> {
  readonly #items: T[] = [];
  #end: { readonly error: Error | undefined } | undefined;
  readonly #changed = new Condition();
  readonly #onRead: (item: T) => void;

  /** `onRead` is called with each value after it was read. */
  constructor(onRead: (item: T) => void = () => undefined) {
    this.#onRead = onRead;
  }

  get size(): number {
    return this.#items.length;
  }

  push(item: T): void {
    if (this.#end) return;
    this.#items.push(item);
    this.#changed.notify();
  }

  /**
   * Ends the queue: the reader still gets the waiting values, then its next read returns done, or throws `error`. Only the first end
   * counts.
   */
  end(error?: unknown): void {
    this.#end ??= { error: error === undefined || error instanceof Error ? error : asFailure(error) };
    this.#changed.notify();
  }

  /** Drops the waiting values and ends the queue: the reader's next read throws `error`, unless the queue had ended before. */
  fail(error: unknown): void {
    this.#items.length = 0;
    this.end(error);
  }

  /**
   * Resolves with the next value, or as done once the queue has ended. Only one read may be pending. @throws the error of end() or
   * fail().
   */
  async next(): Promise<IteratorResult<T, undefined>> {
    for (;;) {
      const item = this.#items.shift();
      if (item !== undefined) {
        this.#onRead(item);
        return { done: false, value: item };
      }
      if (this.#end?.error) throw this.#end.error;
      if (this.#end) return { done: true, value: undefined };
      await this.#changed.changed();
    }
  }

  /** Ends the queue when the reader stops reading; values that are waiting or pushed later are dropped. */
  return(): Promise<IteratorResult<T, undefined>> {
    this.end();
    this.#items.length = 0;
    return Promise.resolve({ done: true, value: undefined });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}
