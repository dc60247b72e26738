/**
 * A safetensors file: [u64 header length][JSON header][tensor bytes], little-endian, read a slice at a time.
 *
 * The header is checked against the file's length on opening, so a truncated download is refused before anything listens.
 */
import { createHash } from 'node:crypto';
import { open, type FileHandle } from 'node:fs/promises';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { messageOf } from '../base/failure.ts';
import { ModelError } from './model_folder.ts';

const bytesOf = { F32: 4, F16: 2, BF16: 2 } as const;
type Dtype = keyof typeof bytesOf;
/** As devices name them. */
const stored = { F32: 'f32', F16: 'f16', BF16: 'bf16' } as const;
type Stored = (typeof stored)[Dtype];

/** A slice has at most this many values (4 MiB as f32), so loading holds no second copy. */
const SLICE_VALUES = 1 << 20;
/** The format's own bound on the header. */
const MAX_HEADER_BYTES = 100_000_000;

const headerSchema = z.record(
  z.string(),
  z.looseObject({
    dtype: z.string().optional(),
    shape: z.array(z.int().nonnegative()).optional(),
    data_offsets: z.tuple([z.int().nonnegative(), z.int().nonnegative()]).optional(),
  }),
);

export interface TensorInfo {
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  /** Byte range in the file. */
  readonly start: number;
  readonly end: number;
}

export class SafetensorsFile {
  readonly path: string;
  readonly tensors: ReadonlyMap<string, TensorInfo>;
  readonly #file: FileHandle;
  /** SHA-256 of each tensor's bytes, filled while it is read. */
  readonly #hashes = new Map<string, string>();

  private constructor(path: string, file: FileHandle, tensors: ReadonlyMap<string, TensorInfo>) {
    this.path = path;
    this.#file = file;
    this.tensors = tensors;
  }

  /** @throws ModelError when the file is missing, truncated or not safetensors. */
  static async open(folder: string): Promise<SafetensorsFile> {
    const path = join(folder, 'model.safetensors');
    if (!existsSync(path)) {
      const isSharded = existsSync(`${path}.index.json`);
      throw new ModelError(
        isSharded
          ? `${folder} holds sharded weights (model.safetensors.index.json); this version reads one model.safetensors`
          : `${path} is missing: --model names a folder with config.json and model.safetensors`,
      );
    }
    const file = await open(path, 'r');
    try {
      return new SafetensorsFile(path, file, await readHeader(path, file));
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  /** Rows in order, as they are stored; the bytes are reused by the next slice. Hashes what it reads. */
  async *slices(name: string): AsyncGenerator<{ rowStart: number; format: Stored; data: Uint8Array }> {
    const info = this.tensors.get(name);
    if (!info) throw new ModelError(`${this.path} has no tensor ${name}`);
    const [numRows = 1, inner] = [info.shape[0], info.shape.slice(1).reduce((a, b) => a * b, 1)];
    const rowBytes = inner * bytesOf[info.dtype];
    const rowsPerSlice = Math.max(1, Math.floor(SLICE_VALUES / inner));
    const hash = createHash('sha256');
    const bytes = Buffer.alloc(Math.min(rowsPerSlice, numRows) * rowBytes);
    for (let rowStart = 0; rowStart < numRows; rowStart += rowsPerSlice) {
      const count = Math.min(rowsPerSlice, numRows - rowStart);
      const slice = bytes.subarray(0, count * rowBytes);
      await readFully(this.#file, slice, info.start + rowStart * rowBytes, this.path);
      hash.update(slice);
      yield { rowStart, format: stored[info.dtype], data: slice };
    }
    this.#hashes.set(name, hash.digest('hex'));
  }

  /** SHA-256 over `seed` and the names, types, shapes and bytes of every tensor read so far: the model's fingerprint. */
  fingerprint(seed: string): string {
    const hash = createHash('sha256').update(seed);
    for (const name of [...this.#hashes.keys()].sort()) {
      const info = this.tensors.get(name);
      hash.update(`\n${name} ${info?.dtype} ${info?.shape.join('x')} ${this.#hashes.get(name)}`);
    }
    return hash.digest('hex');
  }

  async close(): Promise<void> {
    await this.#file.close();
  }
}

async function readHeader(path: string, file: FileHandle): Promise<ReadonlyMap<string, TensorInfo>> {
  const { size } = await file.stat();
  const refuse = (what: string): never => {
    throw new ModelError(`${path} ${what}: download it again`);
  };
  if (size < 8) refuse(`is truncated (${size} bytes)`);
  const prefix = Buffer.alloc(8);
  await readFully(file, prefix, 0, path);
  const headerBytes = Number(prefix.readBigUInt64LE());
  if (headerBytes > MAX_HEADER_BYTES) refuse('is not a safetensors file');
  if (8 + headerBytes > size) refuse(`is truncated: its header ends at ${8 + headerBytes}, the file at ${size}`);
  const text = Buffer.alloc(headerBytes);
  await readFully(file, text, 8, path);
  let header: z.infer<typeof headerSchema>;
  try {
    header = headerSchema.parse(JSON.parse(text.toString('utf8')));
  } catch (cause) {
    throw new ModelError(`${path} is not a safetensors file: ${messageOf(cause)}`, { cause });
  }
  const tensors = new Map<string, TensorInfo>();
  for (const [name, { dtype, shape, data_offsets: offsets }] of Object.entries(header)) {
    if (name === '__metadata__') continue;
    if (!dtype || !shape || !offsets)
      throw new ModelError(`${path}: tensor ${name} lacks dtype, shape or data_offsets`);
    // Other types may be present for tensors nobody reads; the reader refuses them when asked.
    if (!Object.hasOwn(bytesOf, dtype)) continue;
    const info: TensorInfo = {
      dtype: dtype as Dtype,
      shape,
      start: 8 + headerBytes + offsets[0],
      end: 8 + headerBytes + offsets[1],
    };
    const wantBytes = shape.reduce((a, b) => a * b, 1) * bytesOf[info.dtype];
    if (info.end - info.start !== wantBytes)
      refuse(`is damaged: tensor ${name} spans ${info.end - info.start} bytes, its shape needs ${wantBytes}`);
    if (info.end > size) refuse(`is truncated: tensor ${name} ends at ${info.end}, the file at ${size}`);
    tensors.set(name, info);
  }
  return tensors;
}

async function readFully(file: FileHandle, into: Buffer, position: number, path: string): Promise<void> {
  for (let done = 0; done < into.length;) {
    const { bytesRead } = await file.read(into, done, into.length - done, position + done);
    if (bytesRead === 0)
      throw new ModelError(`${path} ended at ${position + done} while it was read: download it again`);
    done += bytesRead;
  }
}
