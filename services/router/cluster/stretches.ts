/**
 * Parts of chains whose blocks all have one set of holders, by a number that is given once. Bounded (P1): the oldest are forgotten.
 */
const MAX_STRETCHES = 1 << 18;

export class Stretches {
  /** At a number's place: the number, 0 when it has ended, and the index of the block behind the last one. */
  readonly #numbers = new Int32Array(MAX_STRETCHES);
  readonly #ends = new Int32Array(MAX_STRETCHES);
  #next = 0;

  get bytes(): number {
    return this.#numbers.byteLength + this.#ends.byteLength;
  }

  /** Its blocks come before `end` in their chain. */
  begin(end: number): number {
    this.#next = (this.#next + 1) | 0 || 1;
    const at = this.#next & (MAX_STRETCHES - 1);
    this.#numbers[at] = this.#next;
    this.#ends[at] = end;
    return this.#next;
  }

  /** One of its blocks is not as the others any more. */
  end(stretch: number): void {
    const at = stretch & (MAX_STRETCHES - 1);
    if (this.#numbers[at] === stretch) this.#numbers[at] = 0;
  }

  /** 0 when it has ended. */
  endOf(stretch: number): number {
    const at = stretch & (MAX_STRETCHES - 1);
    return this.#numbers[at] === stretch ? this.#ends[at]! : 0;
  }
}
