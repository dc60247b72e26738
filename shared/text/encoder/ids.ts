/** A growable array of token ids. */
export class Ids {
  #ids = new Uint32Array(1_024);
  length = 0;

  add(id: number): void {
    this.#grow(1);
    this.#ids[this.length++] = id;
  }

  addAll(ids: Uint32Array | readonly number[]): void {
    this.#grow(ids.length);
    if (ids.length < 8) for (let i = 0; i < ids.length; i++) this.#ids[this.length + i] = ids[i]!;
    else this.#ids.set(ids, this.length);
    this.length += ids.length;
  }

  /** Keeps only the first of adjacent ids that equal `id`, from index `start` on. */
  fuse(id: number, start: number): void {
    let to = start;
    for (let at = start; at < this.length; at++)
      if (at === start || this.#ids[at] !== id || this.#ids[at - 1] !== id) this.#ids[to++] = this.#ids[at]!;
    this.length = to;
  }

  since(start: number): Uint32Array {
    return this.#ids.slice(start, this.length);
  }

  taken(): Uint32Array {
    return this.#ids.slice(0, this.length);
  }

  #grow(count: number): void {
    if (this.length + count <= this.#ids.length) return;
    const more = new Uint32Array(2 * (this.length + count));
    more.set(this.#ids);
    this.#ids = more;
  }
}
