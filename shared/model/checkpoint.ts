/** A model's weights: one safetensors file, or several with an index that says which tensor lies where; read a slice at a time. */
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { basename, join } from 'node:path';
import { z } from 'zod';
import { messageOf } from '../base/failure.ts';
import { ModelError } from './model_folder.ts';
import { rowBytesOf, SafetensorsFile, type TensorInfo } from './safetensors.ts';

/** A slice has at most this many values (4 MiB as f32), so loading holds no second copy. */
const SLICE_VALUES = 1 << 20;
const MAX_INDEX_BYTES = 100_000_000;
/** Models of a trillion parameters come in some hundreds. */
const MAX_FILES = 2_000;
/** As devices name them. */
const stored = { F32: 'f32', F16: 'f16', BF16: 'bf16' } as const;

const indexSchema = z.looseObject({ weight_map: z.record(z.string(), z.string()) });

/** Rows of a tensor, in order from `firstRow` on. */
interface Rows {
  readonly tensor: string;
  readonly outputs: number;
  readonly firstRow?: number;
}

interface StoredSlice {
  /** Of the rows that were asked for. */
  readonly rowStart: number;
  readonly format: (typeof stored)[keyof typeof stored];
  readonly data: Uint8Array;
}

export class Checkpoint {
  /** The file, or the index. */
  readonly path: string;
  readonly tensors: ReadonlyMap<string, TensorInfo>;
  readonly #files: readonly SafetensorsFile[];
  readonly #fileOf: ReadonlyMap<string, SafetensorsFile>;
  /** SHA-256 of the bytes of the rows that were read, by their tensor's name and the first of them. */
  readonly #hashes = new Map<string, string>();

  private constructor(path: string, files: readonly SafetensorsFile[], fileOf: ReadonlyMap<string, SafetensorsFile>) {
    this.path = path;
    this.#files = files;
    this.#fileOf = fileOf;
    this.tensors = new Map(files.flatMap((file) => [...file.tensors].filter(([name]) => fileOf.get(name) === file)));
  }

  /** @throws ModelError when a file is missing, truncated, not safetensors, or not what the index says. */
  static async open(folder: string): Promise<Checkpoint> {
    const path = join(folder, 'model.safetensors');
    if (existsSync(path)) {
      const file = await SafetensorsFile.open(path);
      return new Checkpoint(path, [file], new Map([...file.tensors.keys()].map((name) => [name, file])));
    }
    const index = `${path}.index.json`;
    if (!existsSync(index)) {
      throw new ModelError(
        `${path} is missing, and so is model.safetensors.index.json: --model names a folder with config.json and one of them`,
      );
    }
    return openShards(folder, index, (files, fileOf) => new Checkpoint(index, files, fileOf));
  }

  /** As they are stored; the bytes are reused by the next slice. Hashes what it reads. @throws ModelError */
  async *slices({ tensor, outputs, firstRow = 0 }: Rows): AsyncGenerator<StoredSlice> {
    const [info, file] = [this.tensors.get(tensor), this.#fileOf.get(tensor)];
    if (!info || !file) throw new ModelError(`${this.path} has no tensor ${tensor}`);
    const rowBytes = rowBytesOf(info);
    const inner = info.shape.slice(1).reduce((a, b) => a * b, 1);
    const rowsPerSlice = Math.max(1, Math.floor(SLICE_VALUES / inner));
    const hash = createHash('sha256');
    const bytes = Buffer.alloc(Math.min(rowsPerSlice, outputs) * rowBytes);
    for (let rowStart = 0; rowStart < outputs; rowStart += rowsPerSlice) {
      const count = Math.min(rowsPerSlice, outputs - rowStart);
      const slice = bytes.subarray(0, count * rowBytes);
      await file.read(slice, info.start + (firstRow + rowStart) * rowBytes);
      hash.update(slice);
      yield { rowStart, format: stored[info.dtype], data: slice };
    }
    this.#hashes.set(`${tensor} ${info.dtype} ${info.shape.join('x')} ${firstRow}`, hash.digest('hex'));
  }

  /**
   * SHA-256 over `seed` and the names, types, shapes and bytes of every tensor read so far: the model's fingerprint, however many files it
   * lies in.
   */
  fingerprint(seed: string): string {
    const hash = createHash('sha256').update(seed);
    for (const rows of [...this.#hashes.keys()].sort()) hash.update(`\n${rows} ${this.#hashes.get(rows)}`);
    return hash.digest('hex');
  }

  async close(): Promise<void> {
    await Promise.all(this.#files.map((file) => file.close()));
  }
}

async function openShards(
  folder: string,
  index: string,
  make: (files: readonly SafetensorsFile[], fileOf: ReadonlyMap<string, SafetensorsFile>) => Checkpoint,
): Promise<Checkpoint> {
  const entries = Object.entries(readIndex(index));
  const names = [...new Set(entries.map(([, name]) => name))];
  if (names.length === 0) throw new ModelError(`${index} names no file: download it again`);
  if (names.length > MAX_FILES) throw new ModelError(`${index} names ${names.length} files, which no model has`);
  for (const name of names) {
    // An index may not point out of its folder.
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
      // One in a type that is not read is missing when somebody asks for it.
      if (file?.tensors.has(tensor)) fileOf.set(tensor, file);
    }
    return make([...files.values()], fileOf);
  } catch (error) {
    await Promise.all([...files.values()].map((file) => file.close()));
    throw error;
  }
}

function readIndex(path: string): Record<string, string> {
  const { size } = statSync(path);
  if (size > MAX_INDEX_BYTES) throw new ModelError(`${path} has ${size} bytes, which no index has`);
  try {
    return indexSchema.parse(JSON.parse(readFileSync(path, 'utf8'))).weight_map;
  } catch (cause) {
    throw new ModelError(`${path} is no index of safetensors files: ${messageOf(cause)}`, { cause });
  }
}
