/**
 * Weights of a model in one safetensors file, or in several with an index of which file has which tensor; read a slice at a time.
 * Quantised matrices are in quantised_tensors.ts.
 */
import { existsSync, readFileSync, statSync } from 'node:fs';
import { basename, join } from 'node:path';
import { z } from 'zod';
import { messageOf } from '../base/failure.ts';
import { FusedExperts } from './fused_experts.ts';
import { dividedShards, textName } from './left_out.ts';
import { ModelError } from './model_folder.ts';
import type { Quantization } from './quantization.ts';
import { QuantisedTensors } from './quantised_tensors.ts';
import {
  rowsOfSlice,
  type ModelIntegers,
  type ModelMatrix,
  type ModelRows,
  type ModelWeights,
  type RowRange,
} from './weights.ts';
import { RowReader } from './row_reader.ts';
import { rowBytesOf, SafetensorsFile, type TensorInfo } from './safetensors.ts';
import { stackedExperts } from './stacked_experts.ts';

const MAX_INDEX_BYTES = 100_000_000;
/** Most files of one model; models of a trillion parameters have some hundreds. */
const MAX_FILES = 2_000;
/** Devices' names for the float types of safetensors files. */
const stored = { F32: 'f32', F16: 'f16', BF16: 'bf16' } as const;

const indexSchema = z.looseObject({ weight_map: z.record(z.string(), z.string()) });

/** Weights of a model in one or several safetensors files, read a slice at a time. */
export class Checkpoint implements ModelWeights {
  readonly path: string;
  readonly shapes: ReadonlyMap<string, readonly number[]>;
  readonly #tensors: ReadonlyMap<string, TensorInfo>;
  readonly #quantization: Quantization | undefined;
  readonly #files: readonly SafetensorsFile[];
  readonly #fileOf: ReadonlyMap<string, SafetensorsFile>;
  readonly #reader = new RowReader();
  readonly #quantised: QuantisedTensors;
  readonly #experts: FusedExperts;
  readonly #stacked: ReturnType<typeof stackedExperts>;

  private constructor(path: string, { files, fileOf }: Opened, quantization: Quantization | undefined) {
    this.path = path;
    this.#files = files;
    this.#quantization = quantization;
    const entries = files.flatMap((file) =>
      [...file.tensors].flatMap(([name, info]) =>
        fileOf.get(name) === file ? [{ name: textName(name), info, file }] : [],
      ),
    );
    this.#fileOf = new Map(entries.map(({ name, file }) => [name, file]));
    this.#tensors = new Map(entries.map(({ name, info }) => [name, info]));
    const of = { path, tensors: this.#tensors, fileOf: this.#fileOf, reader: this.#reader };
    this.#quantised = new QuantisedTensors({ ...of, quantization });
    this.#experts = new FusedExperts(of);
    this.#stacked = stackedExperts(this.#tensors);
    const { stored, shapes } = this.#experts;
    const own = [...shapesOf(this.#tensors, quantization)].filter(([name]) => !stored.has(name));
    const single = [...this.#stacked].map(([name, { shape }]) => [name, shape] as const);
    this.shapes = new Map([...own, ...shapes, ...single]);
  }

  /** @throws ModelError when a file is missing, truncated, not safetensors, or not what the index says. */
  static async open(folder: string, quantization?: Quantization): Promise<Checkpoint> {
    const path = join(folder, 'model.safetensors');
    if (existsSync(path)) {
      const file = await SafetensorsFile.open(path);
      const fileOf = new Map([...file.tensors.keys()].map((name) => [name, file]));
      return new Checkpoint(path, { files: [file], fileOf }, quantization);
    }
    const index = `${path}.index.json`;
    if (!existsSync(index)) {
      throw new ModelError(
        `${path} is missing, and so is model.safetensors.index.json: --model names a folder with config.json and one of them`,
      );
    }
    return new Checkpoint(index, await openShards(folder, index), quantization);
  }

  integersOf(tensor: string): ModelIntegers | undefined {
    const quantization = this.#quantization;
    const info = this.#tensors.get(tensor);
    if (info || this.#stacked.has(tensor) || !this.shapes.has(tensor)) return undefined;
    if (this.#experts.has(tensor)) return this.#experts.isMxfp4(tensor) ? 'mxfp4' : undefined;
    if (quantization?.method === 'awq') return 'uint4';
    if (quantization?.method !== 'gptq' || quantization.isActOrder) return undefined;
    return quantization.isSymmetric ? 'int4' : 'uint4';
  }

  storedAs(tensor: string): string {
    const dtype = this.#tensors.get(this.#stacked.get(tensor)?.tensor ?? tensor)?.dtype;
    if (dtype !== undefined) return dtype;
    if (this.#experts.has(tensor)) return this.#experts.storedAs(tensor);
    return this.#quantization?.method ?? 'nothing';
  }

  storedBytes(rows: RowRange): number {
    const { tensor, outputs } = this.#stored(rows);
    if (this.#experts.has(tensor)) return this.#experts.storedBytes(rows);
    const info = this.#tensors.get(tensor);
    if (info) return rowBytesOf(asMatrix(info)) * outputs;
    const whole = this.#tensors.get(tensor.replace(/weight$/, 'qweight'));
    return whole ? whole.end - whole.start : 0;
  }

  get doneBytes(): number {
    return this.#reader.doneBytes;
  }

  /** Returns the rows where they are stored: those of an expert may lie in a tensor that stacks all of a layer. */
  #stored({ tensor, outputs, firstRow = 0 }: RowRange): Required<RowRange> {
    const stacked = this.#stacked.get(tensor);
    return stacked
      ? { tensor: stacked.tensor, outputs, firstRow: stacked.firstRow + firstRow }
      : { tensor, outputs, firstRow };
  }

  async *slices(rows: RowRange): AsyncGenerator<ModelRows> {
    const { tensor, outputs, firstRow } = this.#stored(rows);
    const [info, file] = [this.#tensors.get(tensor), this.#fileOf.get(tensor)];
    const format = info && floatFormat(info);
    if (this.#experts.has(tensor)) {
      yield* this.#experts.slices({ tensor, outputs, firstRow });
      return;
    }
    if (!info || !file || !format) {
      yield* this.#quantisedSlices({ tensor, outputs, firstRow });
      return;
    }
    const whole = asMatrix(info);
    const rowBytes = rowBytesOf(whole);
    const inner = whole.shape.slice(1).reduce((a, b) => a * b, 1);
    const rowsPerSlice = rowsOfSlice(inner);
    const start = info.start + firstRow * rowBytes;
    const run = { ...file.place, start, rowBytes, numRows: outputs, rowsPerSlice };
    const slices = this.#reader.slices(run, `${tensor} ${info.dtype} ${info.shape.join('x')} ${firstRow}`);
    for await (const { rowStart, bytes } of slices) yield { rowStart, format, data: bytes };
  }

  async *#quantisedSlices({ tensor, outputs, firstRow = 0 }: RowRange): AsyncGenerator<ModelRows> {
    const [, inner = 0] = this.shapes.get(tensor) ?? [];
    if (inner === 0) throw new ModelError(`${this.path} has no tensor ${tensor}`);
    const matrix = await this.#quantised.matrix(tensor, this.shapes.get(tensor) ?? []);
    const rowsPerSlice = rowsOfSlice(inner);
    for (let rowStart = 0; rowStart < outputs; rowStart += rowsPerSlice) {
      const count = Math.min(rowsPerSlice, outputs - rowStart);
      yield { rowStart, ...matrix.rows(firstRow + rowStart, count) };
    }
  }

  async matrix({ tensor, outputs, firstRow = 0 }: RowRange): Promise<ModelMatrix | undefined> {
    const shape = this.shapes.get(tensor);
    const isSingle = this.#tensors.has(tensor) || this.#experts.has(tensor) || this.#stacked.has(tensor);
    if (!shape || isSingle || outputs % 8 !== 0 || firstRow % 8 !== 0) return undefined;
    return this.#quantised.inputRanges(tensor, shape, firstRow);
  }

  fingerprint(seed: string): string {
    return this.#reader.fingerprint(seed);
  }

  async close(): Promise<void> {
    await Promise.all(this.#files.map((file) => file.close()));
  }
}

function floatFormat({ dtype }: TensorInfo): (typeof stored)[keyof typeof stored] | undefined {
  return dtype === 'I32' || dtype === 'F8_E4M3' || dtype === 'U8' ? undefined : stored[dtype];
}

/** A tensor of three dimensions as the matrix of all its rows: the weight of a convolution, or the experts of a layer. */
function asMatrix(info: TensorInfo): TensorInfo {
  const [first = 0, second = 0, ...inner] = info.shape;
  return inner.length === 1 ? { ...info, shape: [first * second, ...inner] } : info;
}

/**
 * Returns the shape of every tensor that can be read: floats under their own names, a quantised matrix as one `.weight` although its
 * file holds several tensors. A matrix whose parts have shapes that do not fit together is left out.
 */
function shapesOf(
  tensors: ReadonlyMap<string, TensorInfo>,
  quantization: Quantization | undefined,
): Map<string, readonly number[]> {
  const shapes = new Map<string, readonly number[]>();
  for (const [name, info] of tensors) {
    const { shape } = info;
    if (floatFormat(info)) shapes.set(name, asMatrix(info).shape);
    else if (info.dtype === 'F8_E4M3' && quantization?.method === 'fp8' && shape.length === 2) shapes.set(name, shape);
    else if (name.endsWith('.qweight') && shape.length === 2) {
      const module = name.slice(0, -'.qweight'.length);
      const whole = int4Shape(module, tensors, quantization);
      if (whole) shapes.set(`${module}.weight`, whole);
    }
  }
  return shapes;
}

function int4Shape(
  module: string,
  tensors: ReadonlyMap<string, TensorInfo>,
  quantization: Quantization | undefined,
): readonly [outputs: number, inner: number] | undefined {
  const shapeOf = (name: string): readonly number[] => tensors.get(`${module}.${name}`)?.shape ?? [];
  const [rows = 0, columns = 0] = shapeOf('qweight');
  const isGptq = quantization?.method === 'gptq';
  if (!isGptq && quantization?.method !== 'awq') return undefined;
  const [outputs, inner] = isGptq ? [columns, 8 * rows] : [8 * columns, rows];
  const [groups = 0, width] = shapeOf('scales');
  const isWhole = groups > 0 && inner % groups === 0 && width === outputs && outputs % 8 === 0;
  const hasZeros = shapeOf('qzeros').join() === `${groups},${outputs / 8}`;
  const indexes = shapeOf('g_idx');
  return isWhole && hasZeros && (indexes.length === 0 || indexes.join() === `${inner}`) ? [outputs, inner] : undefined;
}

interface Opened {
  readonly files: readonly SafetensorsFile[];
  readonly fileOf: ReadonlyMap<string, SafetensorsFile>;
}

async function openShards(folder: string, index: string): Promise<Opened> {
  const weightMap = readIndex(index);
  const entries = Object.entries(weightMap);
  const { read, unread } = dividedShards(weightMap);
  // Files of left-out parts may have stayed on the hub; those that are here are opened too, so that the log can name their tensors.
  const names = [...read, ...unread.flatMap(({ file }) => (existsSync(join(folder, file)) ? [file] : []))];
  if (names.length === 0) throw new ModelError(`${index} names no file: download it again`);
  if (names.length > MAX_FILES) throw new ModelError(`${index} names ${names.length} files, which no model has`);
  for (const name of names) {
    // Refuse an index that names files outside its folder.
    if (name !== basename(name) || name === '..' || name.includes('\\') || !name.endsWith('.safetensors'))
      throw new ModelError(`${index} names ${JSON.stringify(name)}, which is no safetensors file of this folder`);
    if (!existsSync(join(folder, name)))
      throw new ModelError(`${join(folder, name)} is missing, which ${basename(index)} names: download it again`);
  }
  const files = new Map<string, SafetensorsFile>();
  try {
    for (const name of names) files.set(name, await SafetensorsFile.open(join(folder, name)));
    const fileOf = new Map<string, SafetensorsFile>();
    for (const [tensor, name] of entries) {
      const file = files.get(name);
      // A tensor of an unsupported type is treated as missing, and fails only when it is needed.
      if (file?.tensors.has(tensor)) fileOf.set(tensor, file);
    }
    return { files: [...files.values()], fileOf };
  } catch (error) {
    await Promise.all([...files.values()].map((file) => file.close()));
    throw error;
  }
}

function readIndex(path: string): Record<string, string> {
  const { size } = statSync(path);
  if (size > MAX_INDEX_BYTES) throw new ModelError(`${path} has ${size} bytes, more than any index: download it again`);
  try {
    return indexSchema.parse(JSON.parse(readFileSync(path, 'utf8'))).weight_map;
  } catch (cause) {
    throw new ModelError(`${path} is no index of safetensors files: ${messageOf(cause)}`, { cause });
  }
}
