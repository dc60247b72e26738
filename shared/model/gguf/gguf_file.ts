/**
 * Opens GGUF files: the header and tensors of one file, or of all files that a model is split into.
 *
 * The format is described in ggml's docs/gguf.md. The library parses the header; this module checks it against the file's length,
 * so that a truncated download is refused before the process listens.
 */
import { existsSync } from 'node:fs';
import { open, type FileHandle } from 'node:fs/promises';
import { gguf } from '@huggingface/gguf';
import { messageOf } from '../../base/failure.ts';
import { ModelError } from '../model_folder.ts';
import { readFully } from '../read_fully.ts';
import { ggufParts } from './split_name.ts';
import { readStrings } from './gguf_strings.ts';
import { blockTypes, type BlockType } from './gguf_blocks.ts';
import { overlapping, type TensorRange } from '../tensor_ranges.ts';

/** The largest mixtures have some tens of thousands in all their files. */
const MAX_TENSORS = 200_000;
const MAX_KEYS = 10_000;
const START_BYTES = 24;

/** A tensor of a GGUF file, and its place in the file. */
export interface GgufTensor {
  readonly type: BlockType;
  /** Dimensions, outermost first; values of the last one are contiguous. */
  readonly shape: readonly number[];
  /** Bytes of a row: all values of the last dimension. */
  readonly rowBytes: number;
  readonly start: number;
  readonly file: FileHandle;
  readonly path: string;
}

type Metadata = Readonly<Record<string, unknown>>;

/** Open GGUF files of one model: the metadata of the first file, and the tensors of all. */
export class GgufFiles {
  /** Path of the first file. */
  readonly path: string;
  readonly metadata: Metadata;
  /** Tensors whose type can be read, by name. Others are missing here, and fail when they are needed. */
  readonly tensors: ReadonlyMap<string, GgufTensor>;
  /** Types, by ggml's number, of the tensors that cannot be read. */
  readonly unread: ReadonlyMap<string, number>;
  readonly #files: readonly FileHandle[];

  private constructor(
    path: string,
    metadata: Metadata,
    tensors: ReadonlyMap<string, GgufTensor>,
    unread: ReadonlyMap<string, number>,
    files: readonly FileHandle[],
  ) {
    this.path = path;
    this.metadata = metadata;
    this.tensors = tensors;
    this.unread = unread;
    this.#files = files;
  }

  /**
   * Opens the file `path`, or the split model whose first file it is. @throws ModelError when a file is missing, truncated or not
   * GGUF.
   */
  static async open(path: string): Promise<GgufFiles> {
    const files: FileHandle[] = [];
    const tensors = new Map<string, GgufTensor>();
    const unread = new Map<string, number>();
    let metadata: Metadata = {};
    try {
      for (const [i, part] of partsOf(path).entries()) {
        const read = await openOne(part, files);
        if (i === 0) metadata = read.metadata;
        for (const [name, type] of read.unread) unread.set(name, type);
        for (const [name, tensor] of read.tensors) {
          if (tensors.has(name)) throw new ModelError(`${part} has tensor ${name}, which a file before it has too`);
          tensors.set(name, tensor);
        }
      }
    } catch (error) {
      await Promise.all(files.map((file) => file.close()));
      throw error;
    }
    return new GgufFiles(path, metadata, tensors, unread, files);
  }

  async close(): Promise<void> {
    await Promise.all(this.#files.map((file) => file.close()));
  }
}

/** Returns the paths of all files of a model. @throws ModelError when `path` is not the first of them, or one is missing. */
function partsOf(path: string): string[] {
  let parts: string[];
  try {
    parts = ggufParts(path);
  } catch (cause) {
    throw new ModelError(messageOf(cause), { cause });
  }
  const missing = parts.length > 1 ? parts.find((name) => !existsSync(name)) : undefined;
  if (missing !== undefined)
    throw new ModelError(`${missing} is missing, one of ${parts.length} files: download it again`);
  return parts;
}

interface One {
  readonly metadata: Metadata;
  readonly tensors: ReadonlyMap<string, GgufTensor>;
  readonly unread: ReadonlyMap<string, number>;
}

/** Opens one file and reads its header; adds the handle to `files`, whose owner closes it. */
async function openOne(path: string, files: FileHandle[]): Promise<One> {
  const file = await open(path, 'r').catch((cause: unknown) => {
    throw new ModelError(`cannot read ${path}: ${messageOf(cause)}`, { cause });
  });
  files.push(file);
  const { size } = await file.stat();
  await checkStart(path, file, size);
  let header: Awaited<ReturnType<typeof gguf>>;
  try {
    header = await gguf(path, { allowLocalFile: true });
  } catch (cause) {
    throw new ModelError(`${path} is not a GGUF file that can be read: ${messageOf(cause)}`, { cause });
  }
  const { tensorInfos, tensorDataOffset, tensorInfoByteRange } = header;
  const metadata: Record<string, unknown> = { ...header.metadata };
  const refuse = (what: string): never => {
    throw new ModelError(`${path} ${what}: download it again`);
  };
  if (Number(tensorDataOffset) > size)
    refuse(`is truncated: its header ends at ${tensorDataOffset}, the file at ${size}`);
  const tensors = new Map<string, GgufTensor>();
  const unread = new Map<string, number>();
  const ranges: TensorRange[] = [];
  for (const { name, shape: dimensions, dtype, offset } of tensorInfos) {
    // Tensors of unsupported types may be present as long as no code reads them; they count as missing.
    const type = blockTypes.get(dtype);
    if (!type) {
      unread.set(name, dtype);
      continue;
    }
    const shape = dimensions.map(Number).reverse();
    const inner = shape.at(-1) ?? 1;
    if (inner % type.values !== 0)
      refuse(`is damaged: rows of ${inner} values of tensor ${name} are no whole blocks of ${type.values}`);
    const rowBytes = (inner / type.values) * type.bytes;
    const start = Number(tensorDataOffset) + Number(offset);
    const end = start + shape.slice(0, -1).reduce((a, b) => a * b, rowBytes);
    if (!(end <= size)) refuse(`is truncated: tensor ${name} ends at ${end}, the file at ${size}`);
    if (tensors.has(name)) refuse(`is damaged: there are two tensors ${name}`);
    ranges.push({ name, start, end });
    tensors.set(name, { type, shape, rowBytes, start, file, path });
  }
  const both = overlapping(ranges);
  if (both) refuse(`is damaged: tensors ${both.join(' and ')} overlap`);
  const tokens: unknown = metadata[TOKENS];
  if (Array.isArray(tokens) && hasLostMarks(tokens)) {
    try {
      metadata[TOKENS] = await readStrings(file, path, tensorInfoByteRange[0], TOKENS);
      // Merges of a vocabulary that is not byte-level begin with the same tokens.
      if (metadata['tokenizer.ggml.model'] === 'gemma4')
        metadata[MERGES] = await readStrings(file, path, tensorInfoByteRange[0], MERGES);
    } catch (cause) {
      throw new ModelError(`${path} is not a GGUF file that can be read: ${messageOf(cause)}`, { cause });
    }
  }
  return { metadata, tensors, unread };
}

const TOKENS = 'tokenizer.ggml.tokens';
const MERGES = 'tokenizer.ggml.merges';

/** Whether the library has stripped byte order marks from tokens: then some texts are equal, or empty. */
function hasLostMarks(tokens: readonly unknown[]): boolean {
  return new Set(tokens).size < tokens.length || tokens.includes('');
}

/** Checks magic, version and counts before the library parses the header: absurd counts would keep it busy for long. */
async function checkStart(path: string, file: FileHandle, size: number): Promise<void> {
  if (size < START_BYTES) throw new ModelError(`${path} is truncated (${size} bytes): download it again`);
  const start = Buffer.alloc(START_BYTES);
  await readFully(file, start, 0, path);
  const version = start.readUInt32LE(4);
  if (start.toString('latin1', 0, 4) !== 'GGUF') throw new ModelError(`${path} is not a GGUF file: download it again`);
  if (version !== 2 && version !== 3)
    throw new ModelError(`${path} is GGUF of version ${version}: 2 and 3, little-endian, are read`);
  const [numTensors, numKeys] = [start.readBigUInt64LE(8), start.readBigUInt64LE(16)];
  if (numTensors > MAX_TENSORS) throw new ModelError(`${path} names ${numTensors} tensors, which no model has`);
  if (numKeys > MAX_KEYS) throw new ModelError(`${path} has ${numKeys} keys, which no model has`);
}
