/**
 * From callbacks to a loop: items put in one by one, taken out in order.
 *
 * Bounded by its producer (P1): a decode stream sends at most one message per token of the context.
 */
export class Mailbox<T> {
  readonly #items: T[] = [];
  #end: { readonly error: Error | undefined } | undefined;
  #wake: () => void = () => undefined;

  put(item: T): void {
    if (this.#end) return;
    this.#items.push(item);
    this.#wake();
  }

  end(): void {
    this.#end ??= { error: undefined };
    this.#wake();
  }

  /** What was put before is still taken out first. */
  fail(error: Error): void {
    this.#end ??= { error };
    this.#wake();
  }

  async *items(): AsyncGenerator<T> {
    for (;;) {
      const item = this.#items.shift();
      if (item !== undefined) yield item;
      else if (this.#end?.error) throw this.#end.error;
      else if (this.#end) return;
      else {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
      }
    }
  }
}
