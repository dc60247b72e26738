/** Weights in GGUF files, with the names and the row order of Hugging Face's models. */
import { ModelError } from '../model_folder.ts';
import { RowReader } from '../row_reader.ts';
import { rowsOfSlice, type ModelIntegers, type ModelRows, type ModelWeights, type RowRange } from '../weights.ts';
import { unreadType } from './gguf_blocks.ts';
import type { TensorLocation } from './gguf_families.ts';
import type { GgufFiles, GgufTensor } from './gguf_file.ts';

/** Numbers of heads of q and k, whose rows may be interleaved. */
export interface HeadCounts {
  readonly q: number;
  readonly k: number;
}

interface LocatedTensor {
  readonly tensor: GgufTensor;
  /** Shape [outputs, inputs], or [outputs] of a vector; the dimension of experts is left out. */
  readonly shape: readonly number[];
  readonly firstRow: number;
  /** Bytes of a row, or of a value of a vector: the file has a vector as one row, a program reads a row per value. */
  readonly rowBytes: number;
  /** Number of rows per head, whose order the file permutes; 1: no permutation. */
  readonly rowsOfHead: number;
  readonly offset: number;
  readonly isNegativeExponential: boolean;
}

/** Weights of a model in GGUF files. */
export class GgufWeights implements ModelWeights {
  readonly path: string;
  readonly shapes: ReadonlyMap<string, readonly number[]>;
  readonly #files: GgufFiles;
  readonly #tensors: ReadonlyMap<string, LocatedTensor>;
  readonly #reader = new RowReader();
  /** Why tensors that the file has cannot be read. */
  readonly #unread = new Map<string, string>();

  constructor(files: GgufFiles, locations: ReadonlyMap<string, TensorLocation>, heads: HeadCounts) {
    this.path = files.path;
    this.#files = files;
    const located = new Map<string, LocatedTensor>();
    for (const [module, location] of locations) {
      for (const what of location.isWhole ? [''] : ['.weight', '.bias']) {
        const { name, fused } = location;
        const found =
          locate(files.tensors.get(`${name}${what}`), location, heads) ??
          (fused && locate(files.tensors.get(`${fused.name}${what}`), location, heads, fused.half));
        const own = location.isBare ? module : `${module}${what}`;
        if (found) located.set(own, found);
        else this.#note(own, [`${name}${what}`, ...(fused ? [`${fused.name}${what}`] : [])]);
      }
    }
    this.#tensors = located;
    this.shapes = new Map([...located].map(([name, { shape }]) => [name, shape]));
  }

  #note(tensor: string, names: readonly string[]): void {
    for (const name of names) {
      const type = this.#files.unread.get(name);
      if (type !== undefined) this.#unread.set(tensor, unreadType(name, type));
    }
  }

  whyMissing(tensor: string): string {
    return (
      this.#unread.get(tensor) ?? `there is no tensor ${tensor}, which a model of this kind has: download it again`
    );
  }

  integersOf(tensor: string): ModelIntegers | undefined {
    const kept = this.#tensors.get(tensor)?.tensor.type.kept;
    return kept === 'f32' || kept === 'f16' || kept === 'bf16' ? undefined : kept;
  }

  storedAs(tensor: string): string {
    return this.#tensors.get(tensor)?.tensor.type.name ?? 'nothing';
  }

  storedBytes({ tensor, outputs }: RowRange): number {
    const located = this.#tensors.get(tensor);
    if (!located) return 0;
    return located.rowBytes * outputs;
  }

  get doneBytes(): number {
    return this.#reader.doneBytes;
  }

  async *slices({ tensor: name, outputs, firstRow = 0 }: RowRange): AsyncGenerator<ModelRows> {
    const located = this.#tensors.get(name);
    if (!located) throw new ModelError(`${this.path} has no tensor ${name}`);
    const { tensor, shape, rowBytes, rowsOfHead, offset, isNegativeExponential } = located;
    const isVector = shape.length === 1;
    const inner = shape[1] ?? 1;
    if (firstRow % rowsOfHead !== 0 || outputs % rowsOfHead !== 0)
      throw new ModelError(`${this.path}: rows of ${name} are asked for in parts of heads`);
    const { file, path } = tensor;
    const start = tensor.start + (located.firstRow + firstRow) * rowBytes;
    const run = { file, path, start, rowBytes, numRows: outputs, rowsPerSlice: rowsOfSlice(inner, rowsOfHead) };
    const slices = this.#reader.slices(run, `${name} ${tensor.type.name} ${shape.join('x')} ${firstRow}`);
    for await (const { rowStart, bytes } of slices) {
      const ordered = rowsOfHead === 1 ? bytes : inOrder(bytes, rowBytes, rowsOfHead);
      const count = bytes.length / rowBytes;
      const rows = isVector ? tensor.type.decode(ordered, 1, count) : tensor.type.decode(ordered, count, inner);
      if (offset !== 0) yield { rowStart, ...changed(rows, (value) => value - offset) };
      else if (isNegativeExponential) yield { rowStart, ...changed(rows, (value) => Math.log(-value)) };
      else yield { rowStart, ...rows };
    }
  }

  fingerprint(seed: string): string {
    return this.#reader.fingerprint(seed);
  }

  async close(): Promise<void> {
    await this.#files.close();
  }
}

/**
 * Returns the place of a tensor's rows, or undefined when there is no tensor or its shape does not fit the location. `half`: the part of
 * its outputs that is meant.
 */
function locate(
  tensor: GgufTensor | undefined,
  { expert, heads, isStacked = false, offset = 0, isNegativeExponential = false, isRow = false }: TensorLocation,
  counts: HeadCounts,
  half?: 0 | 1,
): LocatedTensor | undefined {
  if (!tensor) return undefined;
  const own = isStacked ? asMatrix(tensor.shape) : tensor.shape.slice(expert === undefined ? 0 : 1);
  if (own.length < 1 || own.length > 2) return undefined;
  const stored = isRow && own.length === 1 ? [1, ...own] : own;
  const [all = 0, ...inner] = stored;
  const outputs = half === undefined ? all : all / 2;
  if (!Number.isInteger(outputs)) return undefined;
  if (expert !== undefined && expert >= (tensor.shape[0] ?? 0)) return undefined;
  // Refuse a quantised vector: its blocks could not be cut by rows. Norms are floats anyway.
  if (stored.length === 1 && tensor.type.values > 1) return undefined;
  const rowsOfHead = heads ? outputs / counts[heads] : 1;
  if (!Number.isInteger(rowsOfHead) || (heads && rowsOfHead % 2 !== 0)) return undefined;
  return {
    tensor,
    shape: [outputs, ...inner],
    rowsOfHead,
    offset,
    isNegativeExponential,
    firstRow: (expert ?? 0) * all + (half ?? 0) * outputs,
    rowBytes: stored.length === 1 ? tensor.rowBytes / all : tensor.rowBytes,
  };
}

/** Returns the shape of matrices as one of all their rows; any other shape unchanged. */
function asMatrix(shape: readonly number[]): readonly number[] {
  const [count = 0, rows = 0, ...inner] = shape;
  return inner.length === 1 ? [count * rows, ...inner] : shape;
}

/** Returns the rows of each head in Hugging Face's order 0, 1, ..., half, half + 1, ...; the file has 0, half, 1, half + 1, ... */
function inOrder(rows: Buffer<ArrayBuffer>, rowBytes: number, rowsOfHead: number): Buffer {
  const out = Buffer.alloc(rows.length);
  const half = rowsOfHead / 2;
  for (let row = 0; row * rowBytes < rows.length; row++) {
    const [head, at] = [Math.floor(row / rowsOfHead) * rowsOfHead, row % rowsOfHead];
    const from = head + (at < half ? 2 * at : 2 * (at - half) + 1);
    rows.copy(out, row * rowBytes, from * rowBytes, (from + 1) * rowBytes);
  }
  return out;
}

/** Returns rows of a vector with every value changed. @throws ModelError for rows that are not in f32. */
function changed(rows: Omit<ModelRows, 'rowStart'>, change: (value: number) => number): Omit<ModelRows, 'rowStart'> {
  if (rows.format !== 'f32') throw new ModelError(`norms in ${rows.format} are not supported`);
  const values = new Float32Array(Uint8Array.from(rows.data).buffer).map(change);
  return { format: 'f32', data: new Uint8Array(values.buffer) };
}
