/** Values that are replaced while a process runs, such as a certificate that is renewed in its files. */

/** A value with a present state. Whoever needs it asks each time; whoever keeps something made from it listens. */
export class Current<T> {
  #value: T;
  readonly #listeners = new Set<(value: T) => void>();

  constructor(value: T) {
    this.#value = value;
  }

  /** Returns `value` where it is a Current, else one that has it. */
  static of<T>(value: T | Current<T>): Current<T> {
    return value instanceof Current ? value : new Current(value);
  }

  get value(): T {
    return this.#value;
  }

  /** Puts `value` in place of the present one, and tells the listeners. @throws what a listener throws, when all have been told */
  replace(value: T): void {
    this.#value = value;
    const errors: unknown[] = [];
    for (const listener of [...this.#listeners]) {
      try {
        listener(value);
      } catch (error) {
        errors.push(error);
      }
    }
    if (errors.length > 0) throw errors[0];
  }

  /** Calls `listener` with each later value. @returns a function that ends it. */
  onReplace(listener: (value: T) => void): () => void {
    this.#listeners.add(listener);
    return () => {
      this.#listeners.delete(listener);
    };
  }
}
