/**
 * Rows of a quantised matrix: as integers where devices can hold them value for value (int4 in groups of whole 32s that follow one another:
 * symmetric ones are int4, the others uint4 with their zero points), else in f32.
 * Layouts are those of AutoGPTQ, AutoAWQ and compressed-tensors; `[rows][inner]` is a matrix's outputs and inputs.
 */
import { halfValue } from './half_value.ts';
import { IntegerRows } from './integer_rows.ts';
import type { ModelRows } from './weights.ts';

/** Inputs that share a scale in the devices' int4. */
const GROUP = 32;

type QuantisedRows = Omit<ModelRows, 'rowStart'>;

/** Of a whole matrix. */
export interface QuantisedMatrix {
  /** Rows [first, first + count). */
  rows(first: number, count: number): QuantisedRows;
}

/** int4 with scales and zeros by group of inputs. */
interface Int4 {
  readonly outputs: number;
  readonly inner: number;
  /** f16 [groups][outputs] */
  readonly scales: Uint16Array;
  /** The integer of output `o` at eight inputs from 8·`octet` on, input by input in its nibbles. */
  readonly octet: (octet: number, output: number) => number;
  readonly zero: (group: number, output: number) => number;
  /** The group of each input. */
  readonly groupOf: (input: number) => number;
  /** Inputs of a group where they follow one another, else 0. */
  readonly groupSize: number;
}

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

/** @throws Error in words for tensors that do not belong together. */
export function gptqMatrix(
  { qweight, qzeros, scales, groupOf: given }: GptqTensors,
  outputs: number,
  inner: number,
  zeroOffset: number,
): QuantisedMatrix {
  const numGroups = scales.length / outputs;
  const groupSize = inner / numGroups;
  const isInOrder = !given || given.every((group, input) => group === Math.floor(input / groupSize));
  if (given?.some((group) => group >= numGroups)) throw new Error(`g_idx names a group beyond its ${numGroups}`);
  return int4Matrix({
    ...{ outputs, inner, scales },
    octet: (octet, output) => qweight[octet * outputs + output]!,
    // A nibble holds the zero less one, whatever that is.
    zero: (group, output) => {
      const word = qzeros[group * (outputs / 8) + (output >> 3)]!;
      return (((word >>> (4 * (output & 7))) & 15) + zeroOffset) & 15;
    },
    groupOf: given ? (input) => given[input]! : (input) => Math.floor(input / groupSize),
    groupSize: isInOrder ? groupSize : 0,
  });
}

export interface AwqTensors {
  /** [inner][outputs / 8] */
  readonly qweight: Uint32Array;
  /** [groups][outputs / 8] */
  readonly qzeros: Uint32Array;
  /** f16 [groups][outputs] */
  readonly scales: Uint16Array;
}

/** The nibble of each of eight outputs. */
const AWQ_NIBBLE = [0, 4, 1, 5, 2, 6, 3, 7] as const;

export function awqMatrix({ qweight, qzeros, scales }: AwqTensors, outputs: number, inner: number): QuantisedMatrix {
  const words = outputs / 8;
  const groupSize = inner / (scales.length / outputs);
  const at = (values: Uint32Array, row: number, output: number): number =>
    (values[row * words + (output >> 3)]! >>> (4 * AWQ_NIBBLE[output & 7]!)) & 15;
  return int4Matrix({
    ...{ outputs, inner, scales, groupSize },
    octet: (octet, output) => {
      let word = 0;
      for (let i = 0; i < 8; i++) word |= at(qweight, 8 * octet + i, output) << (4 * i);
      return word;
    },
    zero: (group, output) => at(qzeros, group, output),
    groupOf: (input) => Math.floor(input / groupSize),
  });
}

function int4Matrix(matrix: Int4): QuantisedMatrix {
  const kind = kindOf(matrix);
  return {
    rows: (first, count) => (kind === 'f32' ? floatRows(matrix, first, count) : nibbleRows(kind, matrix, first, count)),
  };
}

function kindOf({ outputs, inner, scales, zero, groupSize }: Int4): 'int4' | 'uint4' | 'f32' {
  if (groupSize === 0 || groupSize % GROUP !== 0 || inner % GROUP !== 0) return 'f32';
  const numGroups = scales.length / outputs;
  for (let group = 0; group < numGroups; group++)
    for (let output = 0; output < outputs; output++) if (zero(group, output) !== 8) return 'uint4';
  return 'int4';
}

/** Nibbles in order to the devices': low ones are inputs [8j, 8j + 4), high ones [8j + 4, 8j + 8). */
function nibbleRows(
  kind: 'int4' | 'uint4',
  { outputs, inner, scales, octet, zero, groupSize }: Int4,
  first: number,
  count: number,
): QuantisedRows {
  const out = new IntegerRows(kind, count, inner);
  const [words, groups] = [inner / 8, inner / GROUP];
  for (let row = 0; row < count; row++) {
    const output = first + row;
    for (let j = 0; j < words; j++) {
      const word = octet(j, output);
      out.words[row * words + j] = spread(word & 0xffff) | (spread(word >>> 16) << 4);
    }
    for (let group = 0; group < groups; group++) {
      const stored = Math.floor((group * GROUP) / groupSize);
      const scale = scales[stored * outputs + output]!;
      if (kind === 'int4') out.setScale(row * groups + group, scale);
      else out.setScaleAndZero(row * groups + group, scale, WHOLE_HALVES[zero(stored, output)]!);
    }
  }
  return out.rows();
}

/** 0 to 15 in f16. */
const WHOLE_HALVES = Uint16Array.from({ length: 16 }, (_, value) => {
  if (value === 0) return 0;
  const exponent = Math.floor(Math.log2(value));
  return ((exponent + 15) << 10) | ((value << (10 - exponent)) & 0x3ff);
});

/** Four nibbles to the low nibbles of four bytes. */
function spread(nibbles: number): number {
  const pairs = (nibbles | (nibbles << 8)) & 0x00ff00ff;
  return (pairs | (pairs << 4)) & 0x0f0f0f0f;
}

function floatRows(
  { outputs, inner, scales, octet, zero, groupOf }: Int4,
  first: number,
  count: number,
): QuantisedRows {
  const values = new Float32Array(count * inner);
  const numGroups = scales.length / outputs;
  const [factors, zeros] = [new Float32Array(numGroups), new Int32Array(numGroups)];
  for (let row = 0; row < count; row++) {
    const output = first + row;
    for (let group = 0; group < numGroups; group++) {
      factors[group] = halfValue(scales[group * outputs + output]!);
      zeros[group] = zero(group, output);
    }
    for (let input = 0, word = 0; input < inner; input++) {
      if ((input & 7) === 0) word = octet(input >> 3, output);
      const group = groupOf(input);
      values[row * inner + input] = factors[group]! * (((word >>> (4 * (input & 7))) & 15) - zeros[group]!);
    }
  }
  return { format: 'f32', data: new Uint8Array(values.buffer) };
}

/** e4m3 bytes [outputs][inner], and a scale of every `tile[0]` outputs and `tile[1]` inputs: [outputs / tile[0]][inner / tile[1]]. */
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

/** Every e4m3fn: no infinities, one NaN of each sign. */
const E4M3 = Float32Array.from({ length: 256 }, (_, byte) => {
  const sign = byte & 128 ? -1 : 1;
  const [exponent, mantissa] = [(byte >> 3) & 15, byte & 7];
  if (exponent === 15 && mantissa === 7) return NaN;
  return sign * (exponent === 0 ? mantissa * 2 ** -9 : (1 + mantissa / 8) * 2 ** (exponent - 7));
});
