/**
 * Experts of checkpoints such as gpt-oss's, whose tensors hold those of a whole layer: read under the names of single experts
 * (`EXPERTS.N.gate_proj.weight` and the like, [outputs, inputs]), which other mixtures have.
 *
 *   gate_up_proj        [experts][inputs][outputs] floats, so that an expert is stored transposed; gates and ups alternate
 *   gate_up_proj_bias   [experts][outputs]
 *   gate_up_proj_blocks [experts][outputs][inputs / 32][16] u8, and gate_up_proj_scales [experts][outputs][inputs / 32] u8: MXFP4, not
 *                       transposed; the rows of gates and ups alternate
 *   down_proj           likewise, without alternating outputs
 *
 * An expert is loaded whole, for its gates, and stays for its ups: half of what is read would be skipped otherwise.
 */
import assert from 'node:assert/strict';
import { ModelError } from './model_folder.ts';
import type { RowReader } from './row_reader.ts';
import { rowBytesOf, type SafetensorsFile, type TensorInfo } from './safetensors.ts';
import { rowsOfSlice, type ModelRows, type RowRange } from './weights.ts';

/** Every `step`-th output of one expert, from `first` on. */
interface ExpertTensor {
  /** Name of the tensor that holds the expert; that of the blocks where the matrix is in MXFP4. */
  readonly stored: string;
  readonly expert: number;
  readonly first: number;
  readonly step: number;
  /** [outputs, inputs], or [outputs] of a bias. */
  readonly shape: readonly number[];
  readonly kind: 'transposed' | 'mxfp4' | 'bias';
}

const FLOATS = { F32: 'f32', F16: 'f16', BF16: 'bf16' } as const;
/** Bytes that are hashed together. */
const HASHED_BYTES = 1 << 20;
/** Values of an MXFP4 block. */
const BLOCK = 32;

/** Tensors of a checkpoint, by name, and the files that hold them. */
interface FusedExpertsOptions {
  /** For messages. */
  readonly path: string;
  readonly tensors: ReadonlyMap<string, TensorInfo>;
  readonly fileOf: ReadonlyMap<string, SafetensorsFile>;
  readonly reader: RowReader;
}

/** Bytes of one expert: its values, and in MXFP4 its scales. */
interface LoadedExpert {
  readonly data: Uint8Array;
  readonly scales: Uint8Array | undefined;
}

/** The single experts that a checkpoint's fused tensors hold. */
export class FusedExperts {
  /** Shapes of the experts' tensors by name, without those whose parts do not fit together. */
  readonly shapes: ReadonlyMap<string, readonly number[]>;
  /** Names of the tensors that hold the experts of a layer; their rows are not read by these names. */
  readonly stored: ReadonlySet<string>;
  readonly #from: FusedExpertsOptions;
  readonly #experts: ReadonlyMap<string, ExpertTensor>;
  /** The expert that was loaded last. */
  #last: { readonly key: string; readonly loaded: Promise<LoadedExpert> } | undefined;

  constructor(from: FusedExpertsOptions) {
    this.#from = from;
    this.#experts = expertsOf(from.tensors);
    this.shapes = new Map([...this.#experts].map(([name, { shape }]) => [name, shape]));
    this.stored = new Set([...this.#experts.values()].map(({ stored }) => stored));
  }

  has(name: string): boolean {
    return this.#experts.has(name);
  }

  isMxfp4(name: string): boolean {
    return this.#experts.get(name)?.kind === 'mxfp4';
  }

  /** Returns the type of the file's tensor that holds the expert, or MXFP4. */
  storedAs(name: string): string {
    const expert = this.#experts.get(name);
    if (expert?.kind === 'mxfp4') return 'MXFP4';
    return (expert && this.#from.tensors.get(expert.stored)?.dtype) ?? 'nothing';
  }

  /** Returns the bytes of `outputs` rows in the file. */
  storedBytes({ tensor, outputs }: RowRange): number {
    const expert = this.#experts.get(tensor);
    const info = expert && this.#from.tensors.get(expert.stored);
    if (!info) return 0;
    const [, inner = 1] = expert.shape;
    return expert.kind === 'mxfp4' ? (outputs * inner * 17) / BLOCK : outputs * inner * valueBytes(info);
  }

  /** Yields rows of one expert's tensor in slices. @throws ModelError when the file cannot be read. */
  async *slices({ tensor: name, outputs, firstRow = 0 }: RowRange): AsyncGenerator<ModelRows> {
    const expert = this.#experts.get(name);
    const info = expert && this.#from.tensors.get(expert.stored);
    if (!info) throw new ModelError(`${this.#from.path} has no tensor ${name}`);
    const { data, scales } = await this.#load(expert, info);
    const { first, step, kind, shape } = expert;
    const [, inner = 1] = shape;
    const width = numOutputs(expert, info);
    const rowsPerSlice = rowsOfSlice(inner);
    for (let rowStart = 0; rowStart < outputs; rowStart += rowsPerSlice) {
      const count = Math.min(rowsPerSlice, outputs - rowStart);
      const at = first + step * (firstRow + rowStart);
      if (kind === 'mxfp4') {
        assert(scales);
        const some = { from: at, step, count };
        yield {
          rowStart,
          format: 'mxfp4_pairs',
          data: rowsOf(data, inner / 2, some),
          scales: rowsOf(scales, inner / BLOCK, some),
        };
      } else {
        yield {
          rowStart,
          format: FLOATS[info.dtype as keyof typeof FLOATS],
          data: columnsOf(data, width, inner, at, step, count),
        };
      }
    }
  }

  #load(expert: ExpertTensor, info: TensorInfo): Promise<LoadedExpert> {
    const key = `${expert.stored} ${expert.expert}`;
    if (this.#last?.key !== key) {
      const loaded = this.#read(expert, info);
      // A rejection before anybody awaits it must not count as unhandled; the await throws it.
      loaded.catch(() => undefined);
      this.#last = { key, loaded };
    }
    return this.#last.loaded;
  }

  async #read({ stored, expert, kind }: ExpertTensor, info: TensorInfo): Promise<LoadedExpert> {
    const names = kind === 'mxfp4' ? [stored, scalesOf(stored)] : [stored];
    const reads = names.map((name) => {
      const [own, file] = [name === stored ? info : this.#from.tensors.get(name), this.#from.fileOf.get(name)];
      if (!own || !file) throw new ModelError(`${this.#from.path} has no tensor ${name}`);
      const bytes = rowBytesOf(own);
      const rowBytes = bytes % HASHED_BYTES === 0 ? HASHED_BYTES : bytes;
      const run = {
        ...file.place,
        start: own.start + expert * bytes,
        rowBytes,
        numRows: bytes / rowBytes,
        rowsPerSlice: 1,
      };
      return this.#from.reader.whole(run, `${name} ${own.dtype} ${own.shape.join('x')} ${expert}`);
    });
    // All reads end first: when a file is closed while it is read, its descriptor may be another file’s by then.
    await Promise.allSettled(reads);
    const [data, scales] = await Promise.all(reads);
    assert(data);
    return { data, scales };
  }
}

function valueBytes({ dtype }: TensorInfo): number {
  return dtype === 'F32' ? 4 : 2;
}

function scalesOf(blocks: string): string {
  return blocks.replace(/_blocks$/, '_scales');
}

/** Outputs of the stored tensor of one expert: gates and ups together. */
function numOutputs({ kind }: ExpertTensor, { shape }: TensorInfo): number {
  return (kind === 'transposed' ? shape[2] : shape[1]) ?? 0;
}

/** Returns rows from, from + step, ... of bytes whose rows are `rowBytes` long; not copied where they follow one another. */
function rowsOf(
  bytes: Uint8Array,
  rowBytes: number,
  { from, step, count }: { readonly from: number; readonly step: number; readonly count: number },
): Uint8Array {
  if (step === 1) return bytes.subarray(from * rowBytes, (from + count) * rowBytes);
  const out = new Uint8Array(count * rowBytes);
  for (let row = 0; row < count; row++) {
    const start = (from + row * step) * rowBytes;
    out.set(bytes.subarray(start, start + rowBytes), row * rowBytes);
  }
  return out;
}

/** Returns `count` columns from, from + step, ... of [inner][width] values as rows [count][inner]. */
function columnsOf(
  bytes: Uint8Array,
  width: number,
  inner: number,
  from: number,
  step: number,
  count: number,
): Uint8Array {
  const values = bytes.length === 4 * inner * width ? new Uint32Array(bytes.buffer) : new Uint16Array(bytes.buffer);
  const out = bytes.length === 4 * inner * width ? new Uint32Array(count * inner) : new Uint16Array(count * inner);
  for (let input = 0; input < inner; input++) {
    let at = input * width + from;
    for (let to = input; to < out.length; to += inner, at += step) out[to] = values[at] ?? 0;
  }
  return new Uint8Array(out.buffer);
}

/** Returns the single experts' tensors of all modules that have a fused bias, by which such experts are known. */
function expertsOf(tensors: ReadonlyMap<string, TensorInfo>): Map<string, ExpertTensor> {
  const experts = new Map<string, ExpertTensor>();
  for (const name of tensors.keys()) {
    if (!name.endsWith('.experts.gate_up_proj_bias')) continue;
    const module = name.slice(0, -'.gate_up_proj_bias'.length);
    for (const [stored, parts] of [
      ['gate_up_proj', ['gate_proj', 'up_proj']],
      ['down_proj', ['down_proj']],
    ] as const) {
      const [bias, matrix] = [biasOf(tensors, `${module}.${stored}`), matrixOf(tensors, `${module}.${stored}`)];
      for (const [what, tensor] of [
        ['bias', bias],
        ['weight', matrix],
      ] as const) {
        if (!tensor) continue;
        const { numExperts, outputs, inner, ...from } = tensor;
        parts.forEach((part, first) => {
          const count = outputs / parts.length;
          const place = { ...from, first, step: parts.length, shape: inner === undefined ? [count] : [count, inner] };
          for (let expert = 0; expert < numExperts; expert++)
            experts.set(`${module}.${expert}.${part}.${what}`, { ...place, expert });
        });
      }
    }
  }
  return experts;
}

type Fused = Pick<ExpertTensor, 'stored' | 'kind'> & {
  readonly numExperts: number;
  readonly outputs: number;
  readonly inner?: number;
};

function biasOf(tensors: ReadonlyMap<string, TensorInfo>, name: string): Fused | undefined {
  const stored = `${name}_bias`;
  const { shape = [], dtype } = tensors.get(stored) ?? {};
  const [numExperts, outputs] = shape;
  if (numExperts === undefined || outputs === undefined || shape.length !== 2 || !isFloat(dtype)) return undefined;
  return { stored, kind: 'bias', numExperts, outputs };
}

function matrixOf(tensors: ReadonlyMap<string, TensorInfo>, name: string): Fused | undefined {
  const floats = tensors.get(name);
  if (floats) {
    const [numExperts, inner, outputs] = floats.shape;
    if (numExperts === undefined || inner === undefined || outputs === undefined) return undefined;
    if (floats.shape.length !== 3 || !isFloat(floats.dtype)) return undefined;
    return { stored: name, kind: 'transposed', numExperts, inner, outputs };
  }
  const stored = `${name}_blocks`;
  const [blocks, scales] = [tensors.get(stored), tensors.get(`${name}_scales`)];
  if (blocks?.dtype !== 'U8' || scales?.dtype !== 'U8') return undefined;
  const [numExperts, outputs, perRow] = scales.shape;
  if (numExperts === undefined || outputs === undefined || perRow === undefined) return undefined;
  if (scales.shape.length !== 3 || blocks.shape.join() !== [...scales.shape, BLOCK / 2].join()) return undefined;
  return { stored, kind: 'mxfp4', numExperts, outputs, inner: perRow * BLOCK };
}

function isFloat(dtype: string | undefined): boolean {
  return dtype !== undefined && Object.hasOwn(FLOATS, dtype);
}
