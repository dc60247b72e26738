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

  /** Of a row's group; f16. */
  setScale(row: number, group: number, half: number): void {
    this.#scales[row * this.#perRow + group] = half;
  }

  /** Of uint4: f16 both. */
  setScaleAndZero(row: number, group: number, half: number, zero: number): void {
    const at = row * this.#perRow + 2 * group;
    this.#scales[at] = half;
    this.#scales[at + 1] = zero;
  }

  rows(): Omit<ModelRows, 'rowStart'> {
    return {
      format: this.#format,
      data: new Uint8Array(this.words.buffer),
      scales: new Uint8Array(this.#scales.buffer),
    };
  }
}
