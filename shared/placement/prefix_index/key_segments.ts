/**
 * Segments: parts of block chains whose blocks all have the same set of holders, each with a number. Bounded (P1): beyond MAX_SEGMENTS
 * the oldest are forgotten.
 */
const MAX_SEGMENTS = 1 << 18;

/** Numbers of the segments that are still valid, each with the end of its blocks. */
export class KeySegments {
  /**
   * Ring of the last MAX_SEGMENTS segments: `#numbers` has the segment's number, 0 once it has ended, and `#ends` the index after its
   * last block.
   */
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

  /** Ends a segment, because the holders of one of its blocks have changed. */
  end(segment: number): void {
    const at = segment & (MAX_SEGMENTS - 1);
    if (this.#numbers[at] === segment) this.#numbers[at] = 0;
  }

  /** Returns the index after the segment's last block; 0 when the segment has ended or is forgotten. */
  endOf(segment: number): number {
    const at = segment & (MAX_SEGMENTS - 1);
    return this.#numbers[at] === segment ? this.#ends[at]! : 0;
  }
}
