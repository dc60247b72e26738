import { halfValue } from './half_value.ts';
import type { ModelRows } from './weights.ts';

/** Inputs that share a scale. */
const GROUP = 32;
/** The smallest f16 that no GPU flushes to zero, without its sign. */
const MIN_NORMAL = 0x0400;

/** Rows of integers as devices multiply them, made group by group; see kernels/weight_format.ts. Their inputs are whole groups. */
export class IntegerRows {
  /** [rows][inner] values, eight or four in a word. */
  readonly words: Uint32Array<ArrayBuffer>;
  readonly #format: 'int8' | 'int4';
  readonly #scales: Uint16Array<ArrayBuffer>;
  readonly #groups: number;
  readonly #perRow: number;
  readonly #wordsPerGroup: number;

  constructor(format: 'int8' | 'int4', rows: number, inner: number) {
    this.#format = format;
    this.#wordsPerGroup = format === 'int8' ? 8 : 4;
    this.#groups = inner / GROUP;
    this.#perRow = Math.ceil(this.#groups / 2) * 2;
    this.words = new Uint32Array(rows * this.#groups * this.#wordsPerGroup);
    this.#scales = new Uint16Array(rows * this.#perRow);
  }

  /**
   * Of a group whose integers are there, counted over all rows. One that a GPU would flush becomes the smallest that it does not, and the
   * integers follow; one that is no number is 0.
   */
  setScale(group: number, half: number): void {
    const at = Math.floor(group / this.#groups) * this.#perRow + (group % this.#groups);
    const exponent = half & 0x7c00;
    if (exponent !== 0 && exponent !== 0x7c00) {
      this.#scales[at] = half;
      return;
    }
    if (exponent === 0 && (half & 0x3ff) !== 0) {
      this.#rescale(group, halfValue(half & 0x7fff) / halfValue(MIN_NORMAL));
      this.#scales[at] = (half & 0x8000) | MIN_NORMAL;
    }
  }

  #rescale(group: number, factor: number): void {
    const first = group * this.#wordsPerGroup;
    const bytes = new Int8Array(this.words.buffer, 4 * first, 4 * this.#wordsPerGroup);
    if (this.#format === 'int8') {
      bytes.forEach((q, i) => (bytes[i] = Math.floor(q * factor + 0.5)));
      return;
    }
    const scaled = (nibble: number): number => Math.floor((nibble - 8) * factor + 0.5) + 8;
    bytes.forEach((both, i) => (bytes[i] = scaled(both & 15) | (scaled((both >> 4) & 15) << 4)));
  }

  rows(): Omit<ModelRows, 'rowStart'> {
    return {
      format: this.#format,
      data: new Uint8Array(this.words.buffer),
      scales: new Uint8Array(this.#scales.buffer),
    };
  }
}
