/** Rows of a model's tensors, whatever files they lie in. */

/** Rows of a tensor, in order from `firstRow` on. */
export interface RowRange {
  readonly tensor: string;
  readonly outputs: number;
  readonly firstRow?: number;
}

/** As devices take them; see kernels/stored_rows.ts. */
export interface ModelRows {
  /** Of the rows that were asked for. */
  readonly rowStart: number;
  readonly format: 'f32' | 'f16' | 'bf16' | 'int8' | 'int4';
  readonly data: Uint8Array;
  /** Of int8 and int4. */
  readonly scales?: Uint8Array;
}

export interface ModelWeights {
  /** Of the file, or the index, for messages. */
  readonly path: string;
  /** Of every tensor that rows can be read of, whatever they are stored as; named as Hugging Face's models name them. */
  readonly shapes: ReadonlyMap<string, readonly number[]>;
  /** Integers that rows of the tensor are given in, without a rounding; undefined: they are floats, or become some. */
  integersOf(tensor: string): 'int8' | 'int4' | undefined;
  /** What the tensor is stored as, in the words of its file's format. */
  storedAs(tensor: string): string;
  /** As they are stored; the bytes are reused by the next slice. Hashes what it reads. @throws ModelError */
  slices(rows: RowRange): AsyncGenerator<ModelRows>;
  /** SHA-256 over `seed` and the names, types, shapes and bytes of every tensor read so far. */
  fingerprint(seed: string): string;
  close(): Promise<void>;
}
