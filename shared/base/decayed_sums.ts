/** Normal equations of a least-squares fit, whose observations lose weight with every later one. */

/** Weighted sums over observations: products of their columns, products of their columns and results, and weights. */
export class DecayedSums {
  /** Products of two columns, of which only the upper half is kept up to date. [size, size] */
  readonly #products: Float64Array;
  /** Products of a column and the result. [size] */
  readonly #results: Float64Array;
  #weight = 0;
  #count = 0;

  constructor(size: number) {
    this.#products = new Float64Array(size * size);
    this.#results = new Float64Array(size);
  }

  /** Adds an observation: the values `x` of its columns, its result `y`, and its weight. All earlier ones keep the share `keep` of theirs. */
  add(x: Float64Array, y: number, weight: number, keep: number): void {
    const products = this.#products;
    const results = this.#results;
    const size = x.length;
    for (let i = 0; i < size; i++) {
      const weighted = weight * x[i]!;
      for (let j = i; j < size; j++) products[i * size + j] = keep * products[i * size + j]! + weighted * x[j]!;
      results[i] = keep * results[i]! + weighted * y;
    }
    this.#weight = keep * this.#weight + weight;
    this.#count = keep * this.#count + 1;
  }

  /** Mean weight of an observation; 1 before the first. */
  get meanWeight(): number {
    return this.#count > 0 ? this.#weight / this.#count : 1;
  }

  /**
   * Returns the normal equations of a fit that is also drawn towards `prior`: `ridge` is the weight of each column's distance from it,
   * as of an observation in which the column is 1.
   */
  equations(prior: Float64Array, ridge: Float64Array): { readonly a: Float64Array; readonly b: Float64Array } {
    const size = prior.length;
    const a = this.#products.slice();
    for (let i = 0; i < size; i++) for (let j = 0; j < i; j++) a[i * size + j] = a[j * size + i]!;
    for (let i = 0; i < size; i++) a[i * size + i] = a[i * size + i]! + ridge[i]!;
    return { a, b: this.#results.map((value, i) => value + ridge[i]! * prior[i]!) };
  }
}
