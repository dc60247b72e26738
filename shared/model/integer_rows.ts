import type { ModelIntegers, ModelRows } from './weights.ts';

/** Inputs that share a scale. */
const GROUP = 32;

/** Rows of integers as devices multiply them, made group by group; see kernels/weight_format.ts. Their inputs are whole groups. */
export class IntegerRows {
  /** [rows][inner] values, eight or four in a word. */
  readonly words: Uint32Array<ArrayBuffer>;
  readonly #format: ModelIntegers;
  readonly #scales: Uint16Array<ArrayBuffer>;
  readonly #groups: number;
  readonly #perRow: number;

  constructor(format: ModelIntegers, rows: number, inner: number) {
    this.#format = format;
    this.#groups = inner / GROUP;
    this.#perRow = format === 'uint4' ? 2 * this.#groups : Math.ceil(this.#groups / 2) * 2;
    this.words = new Uint32Array(rows * this.#groups * (format === 'int8' ? 8 : 4));
    this.#scales = new Uint16Array(rows * this.#perRow);
  }

  /** Of a group, counted over all rows; f16. */
  setScale(group: number, half: number): void {
    this.#scales[Math.floor(group / this.#groups) * this.#perRow + (group % this.#groups)] = half;
  }

  /** Of uint4: f16 both. */
  setScaleAndZero(group: number, half: number, zero: number): void {
    this.#scales[2 * group] = half;
    this.#scales[2 * group + 1] = zero;
  }

  rows(): Omit<ModelRows, 'rowStart'> {
    return {
      format: this.#format,
      data: new Uint8Array(this.words.buffer),
      scales: new Uint8Array(this.#scales.buffer),
    };
  }
}
