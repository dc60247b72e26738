/**
 * Parts of chains whose blocks all have one set of holders, by a number that is given once. Bounded (P1): the oldest are forgotten.
 */
const MAX_SEGMENTS = 1 << 18;

/** Numbers of the segments that are still valid, each with the end of its blocks. */
export class KeySegments {
  /** At a number's place: the number, 0 when it has ended, and the index of the block behind the last one. */
  readonly #numbers = new Int32Array(MAX_SEGMENTS);
  readonly #ends = new Int32Array(MAX_SEGMENTS);
  #next = 0;

  get bytes(): number {
    return this.#numbers.byteLength + this.#ends.byteLength;
  }

  /** Starts a segment whose blocks lie before index `end` of their chain. Returns its number, which is never 0. */
  begin(end: number): number {
    this.#next = (this.#next + 1) | 0 || 1;
    const at = this.#next & (MAX_SEGMENTS - 1);
    this.#numbers[at] = this.#next;
    this.#ends[at] = end;
    return this.#next;
  }

  /** One of its blocks is not as the others any more. */
  end(segment: number): void {
    const at = segment & (MAX_SEGMENTS - 1);
    if (this.#numbers[at] === segment) this.#numbers[at] = 0;
  }

  /** 0 when it has ended. */
  endOf(segment: number): number {
    const at = segment & (MAX_SEGMENTS - 1);
    return this.#numbers[at] === segment ? this.#ends[at]! : 0;
  }
}
