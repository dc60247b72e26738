/** Token ids of a request: its prompt and the output so far. The list only grows, and a view of it never changes. */
export class TokenList {
  #ids: Uint32Array;
  #length: number;

  constructor(prompt: Uint32Array) {
    this.#ids = prompt;
    this.#length = prompt.length;
  }

  get length(): number {
    return this.#length;
  }

  push(token: number): void {
    if (this.#length === this.#ids.length) {
      const more = new Uint32Array(this.#length + Math.max(64, this.#length >> 2));
      more.set(this.#ids);
      this.#ids = more;
    }
    this.#ids[this.#length++] = token;
  }

  /** Returns the tokens that the list has now, without a copy. */
  view(): Uint32Array {
    return this.#ids.subarray(0, this.#length);
  }

  at(index: number): number | undefined {
    return index < this.#length ? this.#ids[index] : undefined;
  }

  /** Returns the tokens [start, end), or up to the present end of the list, without a copy. */
  range(start: number, end: number): Uint32Array {
    return this.#ids.subarray(start, Math.min(end, this.#length));
  }
}
