/** Interfaces to the rows of a model's tensors, independent of the file format. */

/** Rows of a tensor, in order from `firstRow` on. */
export interface RowRange {
  readonly tensor: string;
  readonly outputs: number;
  readonly firstRow?: number;
}

/** Formats of quantised weights: integers, of which uint4 have a zero point next to each scale, and codes of a table. */
export type ModelIntegers = 'int8' | 'int4' | 'uint4' | 'mxfp4' | 'iq4';
/** Blocks of GGUF files that devices take as they are; see kernels/weights/stored_blocks.ts. */
type ModelBlocks = 'q8_0' | 'q4_0' | 'q4_1' | 'q4_k' | 'q5_k' | 'mxfp4_blocks' | 'iq4_nl' | 'iq4_xs';

/** Rows of a tensor in a format that devices accept; see kernels/weights/stored_rows.ts. */
export interface ModelRows {
  /** Index of the first row, counted from the first row of the request. */
  readonly rowStart: number;
  readonly format: 'f32' | 'f16' | 'bf16' | ModelIntegers | ModelBlocks | 'gptq' | 'awq' | 'mxfp4_pairs';
  readonly data: Uint8Array;
  /** Scales for integers, codes, gptq, awq and mxfp4_pairs; absent for formats that have them in the data, and for floats. */
  readonly scales?: Uint8Array;
  /** Zero points for gptq and awq; absent for other formats, and where all are 8. */
  readonly zeros?: Uint8Array;
}

/**
 * A matrix whose file stores all rows of some inputs together (GPTQ, AWQ); see StoredMatrix in kernels/weights/stored_columns.ts for
 * the fields.
 */
export interface ModelMatrix {
  readonly format: 'gptq' | 'awq';
  readonly width: number;
  readonly first: number;
  readonly inputsPerScale: number;
  readonly scales: Uint16Array;
  readonly zeros: Uint16Array | undefined;
  /** Yields the matrix in ranges of inputs and hashes them; the next range overwrites the bytes. @throws ModelError */
  inputRanges(): AsyncIterable<{ readonly inputStart: number; readonly data: Uint8Array }>;
}

/**
 * Most values of a slice (4 MiB as f32), so that loading never holds a second copy of a tensor. ROWS_TOGETHER: devices load eight rows
 * together.
 */
const SLICE_VALUES = 1 << 20;
const ROWS_TOGETHER = 8;

/**
 * Returns how many rows of `inner` values a slice has: always a multiple of `multiple`, and of eight where that many fit into
 * SLICE_VALUES.
 */
export function rowsOfSlice(inner: number, multiple = 1): number {
  const unit = multiple % ROWS_TOGETHER === 0 ? multiple : multiple * ROWS_TOGETHER;
  const units = Math.floor(SLICE_VALUES / inner / unit);
  return units > 0 ? units * unit : Math.max(1, Math.floor(SLICE_VALUES / inner / multiple)) * multiple;
}

/** Tensors of a model, whatever files they lie in, as rows for devices. */
export interface ModelWeights {
  /** Path of the file, or of the index, for messages. */
  readonly path: string;
  /** Shapes of all tensors whose rows can be read, whatever they are stored as, by Hugging Face's names. */
  readonly shapes: ReadonlyMap<string, readonly number[]>;
  /** Returns why a tensor is missing, for formats of files that can tell. */
  whyMissing?(tensor: string): string;
  /**
   * Returns the integer format in which the tensor's rows are yielded, without a second rounding; undefined when they are floats or
   * become floats.
   */
  integersOf(tensor: string): ModelIntegers | undefined;
  /** Returns the type that the file stores the tensor in, by its own format's name, for instance BF16, Q4_K or gptq. */
  storedAs(tensor: string): string;
  /** Returns about how many bytes the rows occupy in their files; bytes that are read once for several rows count in full. */
  storedBytes(rows: RowRange): number;
  /** Bytes read so far. */
  readonly doneBytes: number;
  /**
   * Yields the rows in slices, in their stored format where devices accept it. The next slice of the same call overwrites the bytes.
   * All bytes read go into the fingerprint. @throws ModelError
   */
  slices(rows: RowRange): AsyncGenerator<ModelRows>;
  /** Returns the rows in ranges of inputs, where their file holds all rows of some inputs together; else undefined. @throws ModelError */
  matrix?(rows: RowRange): Promise<ModelMatrix | undefined>;
  /** SHA-256 over `seed` and the names, types, shapes and hashes of every tensor read so far. */
  fingerprint(seed: string): string;
  /** Closes the files. */
  close(): Promise<void>;
}
