/** Rows of a model's tensors, whatever files they lie in. */

/** Rows of a tensor, in order from `firstRow` on. */
export interface RowRange {
  readonly tensor: string;
  readonly outputs: number;
  readonly firstRow?: number;
}

/** uint4 have a zero beside each scale. */
export type ModelIntegers = 'int8' | 'int4' | 'uint4';

/** As devices take them; see kernels/weights/stored_rows.ts. */
export interface ModelRows {
  /** Of the rows that were asked for. */
  readonly rowStart: number;
  readonly format: 'f32' | 'f16' | 'bf16' | ModelIntegers | 'q8_0' | 'q4_0' | 'q4_1' | 'q4_k' | 'q5_k' | 'gptq' | 'awq';
  readonly data: Uint8Array;
  /** Of int8, int4, uint4, gptq and awq. */
  readonly scales?: Uint8Array;
  /** Of gptq and awq. */
  readonly zeros?: Uint8Array;
}

/** A matrix whose file has all rows of some inputs together; see kernels/weights/stored_columns.ts. */
export interface ModelMatrix {
  readonly format: 'gptq' | 'awq';
  readonly width: number;
  readonly first: number;
  readonly inputsPerScale: number;
  readonly scales: Uint16Array;
  readonly zeros: Uint16Array | undefined;
  /** The bytes are reused by the next one. Hashes what it reads. @throws ModelError */
  inputRanges(): AsyncIterable<{ readonly inputStart: number; readonly data: Uint8Array }>;
}

/** A slice has at most this many values (4 MiB as f32), so loading holds no second copy; and devices take eight rows together. */
const SLICE_VALUES = 1 << 20;
const ROWS_TOGETHER = 8;

/** Rows of a slice, of `inner` values each: a multiple of eight where that many fit, and of `multiple`, which is kept. */
export function rowsOfSlice(inner: number, multiple = 1): number {
  const unit = multiple % ROWS_TOGETHER === 0 ? multiple : multiple * ROWS_TOGETHER;
  const units = Math.floor(SLICE_VALUES / inner / unit);
  return units > 0 ? units * unit : Math.max(1, Math.floor(SLICE_VALUES / inner / multiple)) * multiple;
}

export interface ModelWeights {
  /** Of the file, or the index, for messages. */
  readonly path: string;
  /** Of every tensor that rows can be read of, whatever they are stored as; named as Hugging Face's models name them. */
  readonly shapes: ReadonlyMap<string, readonly number[]>;
  /** Integers that rows of the tensor are given in, none of them rounded again; undefined: they are floats, or become some. */
  integersOf(tensor: string): ModelIntegers | undefined;
  /** What the tensor is stored as, in the words of its file's format. */
  storedAs(tensor: string): string;
  /** Of the rows in their files, about: with what is read once for several. */
  storedBytes(rows: RowRange): number;
  /** Of what was asked for so far. */
  readonly doneBytes: number;
  /** As they are stored; the bytes are reused by the next slice of the same call. Hashes what it reads. @throws ModelError */
  slices(rows: RowRange): AsyncGenerator<ModelRows>;
  /** The same by input ranges of inputs, where they lie so; undefined: they do not. @throws ModelError */
  matrix?(rows: RowRange): Promise<ModelMatrix | undefined>;
  /** SHA-256 over `seed` and the names, types, shapes and hashes of every tensor read so far. */
  fingerprint(seed: string): string;
  close(): Promise<void>;
}
