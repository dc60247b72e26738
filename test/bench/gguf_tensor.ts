/** One tensor of a GGUF file that the benchmarks write. */

/** A tensor of the file and the tensors of the model that it is made of. */
export interface Tensor {
  readonly name: string;
  /** One, or one of each expert. */
  readonly sources: readonly string[];
  /** Rows of each source tensor. */
  readonly outputs: number;
  readonly inner: number;
  /** Heads whose rows are interleaved; 0: none. */
  readonly heads: number;
  readonly isFloat: boolean;
  /** Returns the value that the file has in place of one of the model's. Values are the same when it is absent. */
  readonly convert?: (value: number) => number;
}
