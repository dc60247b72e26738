import { Condition } from './condition.ts';
import { asFailure } from './failure.ts';

/** Values that one side pushes and another reads, in order. Whoever pushes keeps it bounded: `size` says what waits. */
export class AsyncQueue<T> implements AsyncIterableIterator<T> {
  readonly #items: T[] = [];
  #end: { readonly error: Error | undefined } | undefined;
  readonly #changed = new Condition();
  readonly #onRead: (item: T) => void;

  /** `onRead` is told after each value that was read. */
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

  /** The reader ends when it has read what is there; with an error, by throwing it then. Only the first end counts. */
  end(error?: unknown): void {
    this.#end ??= { error: error === undefined || error instanceof Error ? error : asFailure(error) };
    this.#changed.notify();
  }

  /** Drops the waiting values and ends the queue: the reader's next read throws `error`, unless the queue had ended before. */
  fail(error: unknown): void {
    this.#items.length = 0;
    this.end(error);
  }

  /** One reader at a time. */
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

  /** The reader leaves: what comes now is dropped. */
  return(): Promise<IteratorResult<T, undefined>> {
    this.end();
    this.#items.length = 0;
    return Promise.resolve({ done: true, value: undefined });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}
