/**
 * Quantised matrices of a checkpoint, each stored in several tensors. Devices that accept the file's layout get ranges of inputs;
 * others get rows, for which the whole matrix is loaded, because its file stores it by inputs.
 */
import { messageOf } from '../base/failure.ts';
import { halfBits, halfValue } from './half_value.ts';
import { ModelError } from './model_folder.ts';
import type { Quantization } from './quantization.ts';
import {
  awqMatrix,
  type AwqTensors,
  fp8Matrix,
  gptqMatrix,
  plainGroups,
  zeroHalves,
  type QuantisedMatrix,
} from './quantised_rows.ts';
import type { RowReader, RowRange } from './row_reader.ts';
import { rowBytesOf, type SafetensorsFile, type TensorInfo } from './safetensors.ts';
import type { ModelMatrix } from './weights.ts';

/** Approximate bytes that are read and hashed together. A change alters fingerprints. */
const INPUT_RANGE_BYTES = 512 << 10;

/** Tensors of a checkpoint, by name, and the files that hold them. */
export interface QuantisedTensorsOptions {
  /** For messages. */
  readonly path: string;
  readonly quantization: Quantization | undefined;
  readonly tensors: ReadonlyMap<string, TensorInfo>;
  readonly fileOf: ReadonlyMap<string, SafetensorsFile>;
  readonly reader: RowReader;
}

/** Reads quantised matrices under the name and shape that they would have unquantised (`MODULE.weight`, [outputs, inputs]). */
export class QuantisedTensors {
  readonly #path: string;
  readonly #quantization: Quantization | undefined;
  readonly #tensors: ReadonlyMap<string, TensorInfo>;
  readonly #fileOf: ReadonlyMap<string, SafetensorsFile>;
  readonly #reader: RowReader;

  constructor({ path, quantization, tensors, fileOf, reader }: QuantisedTensorsOptions) {
    this.#path = path;
    this.#quantization = quantization;
    this.#tensors = tensors;
    this.#fileOf = fileOf;
    this.#reader = reader;
  }

  /**
   * Returns the matrix from row `first` on (a multiple of eight) as ranges of inputs; undefined where its layout does not allow that.
   * @throws ModelError
   */
  async inputRanges(
    tensor: string,
    [width = 0, inner = 0]: readonly number[],
    first: number,
  ): Promise<ModelMatrix | undefined> {
    const quantization = this.#quantization;
    const isInt4 = quantization?.method === 'gptq' || quantization?.method === 'awq';
    const module = tensor.slice(0, -'.weight'.length);
    if (!isInt4 || !this.#tensors.has(`${module}.qweight`)) return undefined;
    const indexes = quantization.method === 'gptq' && this.#tensors.has(`${module}.g_idx`);
    const reads = [
      this.#words(`${module}.qzeros`),
      this.#halves(`${module}.scales`),
      indexes ? this.#words(`${module}.g_idx`) : Promise.resolve(undefined),
    ] as const;
    // All reads end first: when a file is closed while it is read, its descriptor may be another file’s by then.
    await Promise.allSettled(reads);
    const [qzeros, scales, groupOf] = await Promise.all(reads);
    const inputsPerScale = plainGroups(inner, scales.length / width, groupOf);
    if (inputsPerScale === undefined) return undefined;
    const { method } = quantization;
    const inputsPerRow = method === 'gptq' ? 8 : 1;
    const { run, label } = this.#runOf(`${module}.qweight`, 'I32');
    const reader = this.#reader;
    return {
      format: method,
      width,
      first,
      inputsPerScale,
      scales,
      zeros: zeroHalves(method, qzeros, method === 'gptq' ? quantization.zeroOffset : 0),
      async *inputRanges() {
        for await (const { rowStart, bytes } of reader.slices(run, label))
          yield { inputStart: rowStart * inputsPerRow, data: bytes };
      },
    };
  }

  async #words(tensor: string): Promise<Uint32Array<ArrayBuffer>> {
    return new Uint32Array((await this.#whole(tensor, 'I32')).buffer);
  }

  /** The values of a tensor as f16, which scales of integers are on devices. @throws ModelError for one that no f16 holds. */
  async #halves(tensor: string): Promise<Uint16Array<ArrayBuffer>> {
    const info = this.#tensors.get(tensor);
    if (info?.dtype !== 'F32' && info?.dtype !== 'BF16')
      return new Uint16Array((await this.#whole(tensor, 'F16')).buffer);
    const values = floatsOf(await this.#whole(tensor, info.dtype), info);
    const halves = Uint16Array.from(values, halfBits);
    const lost = halves.findIndex((half) => (half & 0x7c00) === 0x7c00);
    if (lost >= 0)
      throw new ModelError(
        `${this.#path}: ${tensor} has ${values[lost]}, which no f16 holds: scales of quantised weights must fit in f16`,
      );
    return halves;
  }

  /** Loads a whole quantised matrix. @throws ModelError when one of its tensors is missing, or the tensors do not fit together. */
  async matrix(tensor: string, [outputs = 0, inner = 0]: readonly number[]): Promise<QuantisedMatrix> {
    const quantization = this.#quantization;
    const module = tensor.slice(0, -'.weight'.length);
    const integers = async (): Promise<AwqTensors> => ({
      qweight: await this.#words(`${module}.qweight`),
      qzeros: await this.#words(`${module}.qzeros`),
      scales: await this.#halves(`${module}.scales`),
    });
    try {
      switch (quantization?.method) {
        case 'gptq': {
          const groupOf = this.#tensors.has(`${module}.g_idx`) ? await this.#words(`${module}.g_idx`) : undefined;
          return gptqMatrix({ ...(await integers()), groupOf }, outputs, inner, quantization.zeroOffset);
        }
        case 'awq':
          return awqMatrix(await integers(), outputs, inner);
        case 'fp8': {
          const bytes = await this.#whole(tensor, 'F8_E4M3');
          const { values, tile } = await this.#fp8Scales(module, outputs, inner, quantization.tile);
          return fp8Matrix(bytes, values, outputs, inner, tile);
        }
        case 'mxfp4':
        case undefined:
          throw new ModelError(`${this.#path} has no tensor ${tensor}`);
      }
    } catch (cause) {
      if (cause instanceof ModelError) throw cause;
      throw new ModelError(`${this.#path}: ${module}: ${messageOf(cause)}`, { cause });
    }
  }

  /** Returns the scales of an fp8 matrix (per tile, per output, or one for all) as f32, and the tile that each scale covers. */
  async #fp8Scales(
    module: string,
    outputs: number,
    inner: number,
    tile: readonly [number, number] | null,
  ): Promise<{ readonly values: Float32Array; readonly tile: readonly [number, number] }> {
    const name = `${module}.${tile ? 'weight_scale_inv' : 'weight_scale'}`;
    const info = this.#tensors.get(name);
    if (!info) throw new ModelError(`${this.#path} has no tensor ${name}, which ${module}.weight in fp8 calls for`);
    const values = floatsOf(await this.#whole(name, info.dtype), info);
    if (tile) return { values, tile };
    return { values, tile: values.length === 1 ? [outputs, inner] : [1, inner] };
  }

  /** Returns all bytes of a tensor in memory of their own. @throws ModelError when the tensor is missing or of another type. */
  async #whole(tensor: string, dtype: TensorInfo['dtype']): Promise<Uint8Array<ArrayBuffer>> {
    const { run, label } = this.#runOf(tensor, dtype);
    return this.#reader.whole(run, label);
  }

  /**
   * Returns the byte range of a stored tensor, as rows to read, with the label for its hash. @throws ModelError when the tensor is
   * missing or of another type.
   */
  #runOf(tensor: string, dtype: TensorInfo['dtype']): { readonly run: RowRange; readonly label: string } {
    const [info, file] = [this.#tensors.get(tensor), this.#fileOf.get(tensor)];
    if (!info || !file) throw new ModelError(`${this.#path} has no tensor ${tensor}`);
    if (info.dtype !== dtype) throw new ModelError(`${this.#path}: ${tensor} is in ${info.dtype}, not ${dtype}`);
    const { start, end, shape } = info;
    const rowBytes = rowBytesOf(info);
    // A slice holds a multiple of 32 inputs.
    const unit = this.#quantization?.method === 'gptq' ? 4 : 32;
    const rowsPerSlice = Math.max(1, Math.floor(INPUT_RANGE_BYTES / rowBytes / unit)) * unit;
    return {
      run: { ...file.place, start, rowBytes, numRows: rowBytes > 0 ? (end - start) / rowBytes : 0, rowsPerSlice },
      label: `${tensor} ${dtype} ${shape.join('x')} 0`,
    };
  }
}

/** Returns a float tensor's values as f32; used for scales, which are few. */
function floatsOf(bytes: Uint8Array<ArrayBuffer>, { dtype }: TensorInfo): Float32Array {
  if (dtype === 'F32') return new Float32Array(bytes.buffer);
  if (dtype === 'F16') return Float32Array.from(new Uint16Array(bytes.buffer), halfValue);
  if (dtype !== 'BF16') throw new Error(`scales in ${dtype}`);
  return new Float32Array(Uint32Array.from(new Uint16Array(bytes.buffer), (half) => half << 16).buffer);
}
