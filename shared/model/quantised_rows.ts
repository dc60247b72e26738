/**
 * Reads rows of a quantised matrix. Where devices can hold the values exactly (int4 in consecutive groups of a multiple of 32 inputs)
 * the rows keep their file's layout, [inputs][rows]; otherwise they become f32. Symmetric matrices become int4, the others uint4 with
 * zero points. Layouts are those of AutoGPTQ, AutoAWQ and compressed-tensors; `[rows][inner]` are a matrix's outputs and inputs.
 */
import { halfValue } from './half_value.ts';
import type { ModelRows } from './weights.ts';

/** Inputs that share a scale in the devices' int4. */
const GROUP = 32;
/** The zero of symmetric integers. */
const MIDDLE = 8;

type QuantisedRows = Omit<ModelRows, 'rowStart'>;

/** A whole quantised matrix, read by rows. */
export interface QuantisedMatrix {
  /** Returns rows [first, first + count); the next call overwrites them. */
  rows(first: number, count: number): QuantisedRows;
}

/** int4 with scales and zeros by group of inputs. */
interface Int4 {
  readonly outputs: number;
  readonly inner: number;
  /** f16 [groups][outputs] */
  readonly scales: Uint16Array;
  readonly format: 'gptq' | 'awq';
  /** Words of the matrix, laid out as in kernels/weights/stored_columns.ts. */
  readonly words: Uint32Array;
  readonly integer: (input: number, output: number) => number;
  /** f16 [groups][outputs]; undefined: all are 8. */
  readonly zeros: Uint16Array | undefined;
  /** The group of each input. */
  readonly groupOf: (input: number) => number;
  /** Inputs of a group, from {@link plainGroups}; undefined where devices cannot hold the matrix by such groups. */
  readonly groupSize: number | undefined;
}

/** Tensors of one matrix in a GPTQ checkpoint. */
export interface GptqTensors {
  /** [inner / 8][outputs] */
  readonly qweight: Uint32Array;
  /** [groups][outputs / 8] */
  readonly qzeros: Uint32Array;
  /** f16 [groups][outputs] */
  readonly scales: Uint16Array;
  /** [inner]; a matrix without act order may have none. */
  readonly groupOf: Uint32Array | undefined;
}

/**
 * Returns the matrix [outputs][inner] that tensors of a GPTQ checkpoint hold. `zeroOffset` is added to the stored zero points. @throws
 * Error when g_idx names a group that does not exist
 */
export function gptqMatrix(
  { qweight, qzeros, scales, groupOf: given }: GptqTensors,
  outputs: number,
  inner: number,
  zeroOffset: number,
): QuantisedMatrix {
  const numGroups = scales.length / outputs;
  const groupSize = inner / numGroups;
  if (given?.some((group) => group >= numGroups)) throw new Error(`g_idx names a group beyond its ${numGroups}`);
  return int4Matrix({
    outputs,
    inner,
    scales,
    format: 'gptq',
    words: qweight,
    integer: (input, output) => (qweight[(input >> 3) * outputs + output]! >>> (4 * (input & 7))) & 15,
    // GPTQ stores each zero point minus 1 (modulo 16), GPTQ v2 the zero point itself.
    zeros: zeroHalves('gptq', qzeros, zeroOffset),
    groupOf: given ? (input) => given[input]! : (input) => Math.floor(input / groupSize),
    groupSize: plainGroups(inner, numGroups, given),
  });
}

/** Tensors of one matrix in an AWQ checkpoint. */
export interface AwqTensors {
  /** [inner][outputs / 8] */
  readonly qweight: Uint32Array;
  /** [groups][outputs / 8] */
  readonly qzeros: Uint32Array;
  /** f16 [groups][outputs] */
  readonly scales: Uint16Array;
}

/** Index of the nibble that holds each of eight consecutive outputs in an AWQ word. */
const AWQ_NIBBLE = [0, 4, 1, 5, 2, 6, 3, 7] as const;
const IN_ORDER = [0, 1, 2, 3, 4, 5, 6, 7] as const;

/** Returns the matrix [outputs][inner] that tensors of an AWQ checkpoint hold. AWQ's groups are consecutive inputs. */
export function awqMatrix({ qweight, qzeros, scales }: AwqTensors, outputs: number, inner: number): QuantisedMatrix {
  const width = outputs / 8;
  const numGroups = scales.length / outputs;
  const groupSize = inner / numGroups;
  return int4Matrix({
    outputs,
    inner,
    scales,
    groupSize: plainGroups(inner, numGroups, undefined),
    format: 'awq',
    words: qweight,
    integer: (input, output) => (qweight[input * width + (output >> 3)]! >>> (4 * AWQ_NIBBLE[output & 7]!)) & 15,
    zeros: zeroHalves('awq', qzeros, 0),
    groupOf: (input) => Math.floor(input / groupSize),
  });
}

function int4Matrix(matrix: Int4): QuantisedMatrix {
  if (matrix.groupSize === undefined) return { rows: (first, count) => floatRows(matrix, first, count) };
  const columns = new Columns(matrix);
  return {
    // Files hold rows in multiples of eight; other requests, which are rare, are answered in f32.
    rows: (first, count) =>
      first % 8 === 0 && count % 8 === 0 ? columns.acquire(first, count) : floatRows(matrix, first, count),
  };
}

/** Number of words from which TypedArray.set is faster than a loop. */
const LONG = 64;

/**
 * Copies the words of rows [start, start + count), multiples of eight, into `out`; the file interleaves them with other rows.
 * `perWord` is the number of rows in a word.
 */
function columnsOf({ words, outputs }: Int4, perWord: number, start: number, count: number, out: Uint32Array): void {
  const [width, some, first] = [outputs / perWord, count / perWord, start / perWord];
  for (let from = first, to = 0; from < words.length; from += width, to += some) {
    if (some >= LONG) out.set(words.subarray(from, from + some), to);
    else for (let i = 0; i < some; i++) out[to + i] = words[from + i]!;
  }
}

/** Unpacks zero points, eight per word, adds `zeroOffset` modulo 16, and returns them as f16; undefined when all are 8. */
export function zeroHalves(
  format: Int4['format'],
  qzeros: Uint32Array,
  zeroOffset: number,
): Uint16Array<ArrayBuffer> | undefined {
  const zeros = new Uint16Array(8 * qzeros.length);
  const nibbles = format === 'awq' ? AWQ_NIBBLE : IN_ORDER;
  let isSymmetric = true;
  for (let word = 0, at = 0; word < qzeros.length; word++) {
    const eight = qzeros[word]!;
    for (let i = 0; i < 8; i++, at++) {
      const value = ((eight >>> (4 * nibbles[i]!)) + zeroOffset) & 15;
      isSymmetric &&= value === MIDDLE;
      zeros[at] = WHOLE_HALVES[value]!;
    }
  }
  return isSymmetric ? undefined : zeros;
}

/** Returns the number of inputs per group where devices can use the groups: consecutive inputs, multiples of 32. Undefined otherwise. */
export function plainGroups(inner: number, numGroups: number, groupOf: Uint32Array | undefined): number | undefined {
  const groupSize = inner / numGroups;
  if (groupSize % GROUP !== 0 || inner % GROUP !== 0) return undefined;
  for (let input = 0; groupOf && input < groupOf.length; input++)
    if (groupOf[input] !== Math.floor(input / groupSize)) return undefined;
  return groupSize;
}

/** Copies rows of a matrix out of its file's layout, into memory that the next copy overwrites. */
class Columns {
  readonly #matrix: Int4;
  #words = new Uint32Array(0);

  constructor(matrix: Int4) {
    this.#matrix = matrix;
  }

  acquire(start: number, count: number): QuantisedRows {
    const { format, scales, zeros, inner } = this.#matrix;
    const numWords = (count * inner) / 8;
    if (this.#words.length < numWords) this.#words = new Uint32Array(numWords);
    columnsOf(this.#matrix, format === 'awq' ? 8 : 1, start, count, this.#words);
    return {
      format,
      data: new Uint8Array(this.#words.buffer, 0, 4 * numWords),
      scales: this.#some(scales, start, count),
      ...(zeros ? { zeros: this.#some(zeros, start, count) } : {}),
    };
  }

  #some(halves: Uint16Array, start: number, count: number): Uint8Array {
    const { outputs } = this.#matrix;
    const numGroups = halves.length / outputs;
    const out = new Uint16Array(numGroups * count);
    for (let group = 0; group < numGroups; group++)
      out.set(halves.subarray(group * outputs + start, group * outputs + start + count), group * count);
    return new Uint8Array(out.buffer);
  }
}

/** 0 to 15 in f16. */
const WHOLE_HALVES = Uint16Array.from({ length: 16 }, (_, value) => {
  if (value === 0) return 0;
  const exponent = Math.floor(Math.log2(value));
  return ((exponent + 15) << 10) | ((value << (10 - exponent)) & 0x3ff);
});

function floatRows(matrix: Int4, first: number, count: number): QuantisedRows {
  const { outputs, inner, scales, integer, zeros: halves, groupOf } = matrix;
  const values = new Float32Array(count * inner);
  const numGroups = scales.length / outputs;
  const [factors, zeros] = [new Float32Array(numGroups * count), new Float32Array(numGroups * count)];
  for (let group = 0; group < numGroups; group++) {
    for (let row = 0; row < count; row++) {
      factors[group * count + row] = halfValue(scales[group * outputs + first + row]!);
      zeros[group * count + row] = halves ? halfValue(halves[group * outputs + first + row]!) : MIDDLE;
    }
  }
  // The loop goes by inputs because the file interleaves the rows.
  for (let input = 0; input < inner; input++) {
    const group = groupOf(input) * count;
    for (let row = 0; row < count; row++)
      values[row * inner + input] = factors[group + row]! * (integer(input, first + row) - zeros[group + row]!);
  }
  return { format: 'f32', data: new Uint8Array(values.buffer) };
}

/**
 * Returns a matrix of e4m3 bytes [outputs][inner] with one scale per tile of tile[0] outputs and tile[1] inputs: scales are [outputs /
 * tile[0]][inner / tile[1]], rounded up. @throws Error for another number of scales
 */
export function fp8Matrix(
  bytes: Uint8Array,
  scales: Float32Array,
  outputs: number,
  inner: number,
  [tileOutputs, tileInputs]: readonly [number, number],
): QuantisedMatrix {
  const perRow = Math.ceil(inner / tileInputs);
  const wanted = Math.ceil(outputs / tileOutputs) * perRow;
  if (scales.length !== wanted)
    throw new Error(`${scales.length} scales of [${outputs}, ${inner}], which needs ${wanted}`);
  return {
    rows: (first, count) => {
      const values = new Float32Array(count * inner);
      for (let row = 0; row < count; row++) {
        const [output, scaleRow] = [first + row, Math.floor((first + row) / tileOutputs) * perRow];
        for (let input = 0; input < inner; input++) {
          const scale = scales[scaleRow + Math.floor(input / tileInputs)]!;
          values[row * inner + input] = E4M3[bytes[output * inner + input]!]! * scale;
        }
      }
      return { format: 'f32', data: new Uint8Array(values.buffer) };
    },
  };
}

/** Values of all 256 e4m3fn bytes: no infinities, one NaN of each sign. */
const E4M3 = Float32Array.from({ length: 256 }, (_, byte) => {
  const sign = byte & 128 ? -1 : 1;
  const [exponent, mantissa] = [(byte >> 3) & 15, byte & 7];
  if (exponent === 15 && mantissa === 7) return NaN;
  return sign * (exponent === 0 ? mantissa * 2 ** -9 : (1 + mantissa / 8) * 2 ** (exponent - 7));
});
