/**
 * A safetensors file: [u64 header length][JSON header][tensor bytes], little-endian.
 *
 * The header is checked against the file's length on opening, so a truncated download is refused before anything listens.
 */
import { open, type FileHandle } from 'node:fs/promises';
import { z } from 'zod';
import { messageOf } from '../base/failure.ts';
import { ModelError } from './model_folder.ts';
import { readFully } from './read_fully.ts';
import { overlapping, type TensorRange } from './tensor_ranges.ts';

const bytesOf = { F32: 4, F16: 2, BF16: 2, I32: 4, F8_E4M3: 1, U8: 1 } as const;
type Dtype = keyof typeof bytesOf;

/** Most bytes of the JSON header, a limit of the format itself. */
const MAX_HEADER_BYTES = 100_000_000;
/** Most tensors of one file; the largest mixtures of experts have some tens of thousands in all files. */
const MAX_TENSORS = 200_000;

const objectSchema = z.record(z.string(), z.unknown());

const headerSchema = z.record(
  z.string(),
  z.looseObject({
    dtype: z.string().optional(),
    shape: z.array(z.int().nonnegative()).optional(),
    data_offsets: z.tuple([z.int().nonnegative(), z.int().nonnegative()]).optional(),
  }),
);

/** Type and shape of a tensor, and its bytes [start, end) of the file. */
export interface TensorInfo {
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  /** Byte range in the file. */
  readonly start: number;
  readonly end: number;
}

/** Bytes of one row: all dimensions but the first. */
export function rowBytesOf({ dtype, shape }: TensorInfo): number {
  return shape.slice(1).reduce((a, b) => a * b, 1) * bytesOf[dtype];
}

/** An open safetensors file. */
export class SafetensorsFile {
  readonly path: string;
  /** Tensors whose type can be read, by name. Others are missing here, and fail when they are needed. */
  readonly tensors: ReadonlyMap<string, TensorInfo>;
  readonly #file: FileHandle;

  private constructor(path: string, file: FileHandle, tensors: ReadonlyMap<string, TensorInfo>) {
    this.path = path;
    this.#file = file;
    this.tensors = tensors;
  }

  /** @throws ModelError when the file is missing, truncated or not safetensors. */
  static async open(path: string): Promise<SafetensorsFile> {
    const file = await open(path, 'r').catch((cause: unknown) => {
      throw new ModelError(`cannot read ${path}: ${messageOf(cause)}`, { cause });
    });
    try {
      return new SafetensorsFile(path, file, await readHeader(path, file));
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  /** Fills `into` with the bytes of the file from `position` on. @throws ModelError when the file ends before. */
  async read(into: Buffer, position: number): Promise<void> {
    await readFully(this.#file, into, position, this.path);
  }

  get place(): { readonly file: FileHandle; readonly path: string } {
    return { file: this.#file, path: this.path };
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
    // The metadata is text that the file's author chose, in keys of any name, so the schema does not apply to them.
    const entries = Object.entries(objectSchema.parse(JSON.parse(text.toString('utf8'))));
    header = headerSchema.parse(Object.fromEntries(entries.filter(([name]) => name !== '__metadata__')));
  } catch (cause) {
    throw new ModelError(`${path} is not a safetensors file: ${messageOf(cause)}`, { cause });
  }
  const entries = Object.entries(header);
  if (entries.length > MAX_TENSORS) refuse(`names ${entries.length} tensors, which no model has`);
  const tensors = new Map<string, TensorInfo>();
  const ranges: TensorRange[] = [];
  for (const [name, { dtype, shape, data_offsets: offsets }] of entries) {
    if (!dtype || !shape || !offsets)
      throw new ModelError(`${path}: tensor ${name} lacks dtype, shape or data_offsets`);
    const [start, end] = [8 + headerBytes + offsets[0], 8 + headerBytes + offsets[1]];
    if (end > size) refuse(`is truncated: tensor ${name} ends at ${end}, the file at ${size}`);
    if (end < start) refuse(`is damaged: tensor ${name} ends before it begins`);
    ranges.push({ name, start, end });
    // Tensors of unsupported types may be present as long as no code reads them; they count as missing.
    if (!Object.hasOwn(bytesOf, dtype)) continue;
    const info: TensorInfo = { dtype: dtype as Dtype, shape, start, end };
    const wantBytes = shape.reduce((a, b) => a * b, 1) * bytesOf[info.dtype];
    if (end - start !== wantBytes)
      refuse(`is damaged: tensor ${name} spans ${end - start} bytes, its shape needs ${wantBytes}`);
    tensors.set(name, info);
  }
  const both = overlapping(ranges);
  if (both) refuse(`is damaged: tensors ${both.join(' and ')} overlap`);
  return tensors;
}
