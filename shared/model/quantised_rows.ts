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
  /** Rows [first, first + count), until others are asked for. */
  rows(first: number, count: number): QuantisedRows;
}

/** int4 with scales and zeros by group of inputs. */
interface Int4 {
  readonly outputs: number;
  readonly inner: number;
  /** f16 [groups][outputs] */
  readonly scales: Uint16Array;
  /** Puts the integers of rows [first, first + count) into [count][inner / 8], as the devices' words. */
  readonly fill: (words: Uint32Array, first: number, count: number) => void;
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
    fill: (words, first, count) => {
      for (let octet = 0; octet < inner / 8; octet++) {
        const at = octet * outputs + first;
        for (let row = 0, to = octet; row < count; row++, to += inner / 8) {
          const word = qweight[at + row]!;
          words[to] = spread(word & 0xffff) | (spread(word >>> 16) << 4);
        }
      }
    },
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
  const width = outputs / 8;
  const groupSize = inner / (scales.length / outputs);
  return int4Matrix({
    ...{ outputs, inner, scales, groupSize },
    fill: (words, first, count) => {
      const eight = new Uint32Array(8);
      const last = first + count;
      for (let octet = 0; octet < inner / 8; octet++) {
        for (let start = first - (first % 8); start < last; start += 8) {
          transposed(qweight, 8 * octet * width + start / 8, width, eight);
          const stop = Math.min(8, last - start);
          for (let i = Math.max(0, first - start); i < stop; i++)
            words[(start + i - first) * (inner / 8) + octet] = eight[i]!;
        }
      }
    },
    zero: (group, output) => (qzeros[group * width + (output >> 3)]! >>> (4 * AWQ_NIBBLE[output & 7]!)) & 15,
    groupOf: (input) => Math.floor(input / groupSize),
  });
}

/**
 * Eight words, an input each with eight outputs in AWQ's order, become eight of an output each with eight inputs in the devices': nibbles
 * change places with those of the word next to it, then pairs with pairs two words on, then halves with halves four words on.
 */
function transposed(from: Uint32Array, at: number, width: number, to: Uint32Array): void {
  // Inputs in the devices' order, which is 0, 4, 1, 5, 2, 6, 3, 7 in the nibbles of a word.
  let [a, b, c, d] = [from[at]!, from[at + 4 * width]!, from[at + width]!, from[at + 5 * width]!];
  let [e, f, g, h] = [from[at + 2 * width]!, from[at + 6 * width]!, from[at + 3 * width]!, from[at + 7 * width]!];
  let t = ((a >>> 4) ^ b) & 0x0f0f0f0f;
  [a, b] = [a ^ (t << 4), b ^ t];
  t = ((c >>> 4) ^ d) & 0x0f0f0f0f;
  [c, d] = [c ^ (t << 4), d ^ t];
  t = ((e >>> 4) ^ f) & 0x0f0f0f0f;
  [e, f] = [e ^ (t << 4), f ^ t];
  t = ((g >>> 4) ^ h) & 0x0f0f0f0f;
  [g, h] = [g ^ (t << 4), h ^ t];
  t = ((a >>> 8) ^ c) & 0x00ff00ff;
  [a, c] = [a ^ (t << 8), c ^ t];
  t = ((b >>> 8) ^ d) & 0x00ff00ff;
  [b, d] = [b ^ (t << 8), d ^ t];
  t = ((e >>> 8) ^ g) & 0x00ff00ff;
  [e, g] = [e ^ (t << 8), g ^ t];
  t = ((f >>> 8) ^ h) & 0x00ff00ff;
  [f, h] = [f ^ (t << 8), h ^ t];
  // Outputs in AWQ's order: word 0 of the result is output 0, word 1 is output 2, and so on.
  t = ((a >>> 16) ^ e) & 0xffff;
  [to[0], to[1]] = [a ^ (t << 16), e ^ t];
  t = ((b >>> 16) ^ f) & 0xffff;
  [to[2], to[3]] = [b ^ (t << 16), f ^ t];
  t = ((c >>> 16) ^ g) & 0xffff;
  [to[4], to[5]] = [c ^ (t << 16), g ^ t];
  t = ((d >>> 16) ^ h) & 0xffff;
  [to[6], to[7]] = [d ^ (t << 16), h ^ t];
}

function int4Matrix(matrix: Int4): QuantisedMatrix {
  const kind = kindOf(matrix);
  if (kind === 'f32') return { rows: (first, count) => floatRows(matrix, first, count) };
  let held: { readonly count: number; readonly rows: IntegerRows } | undefined;
  return {
    rows: (first, count) => {
      if (held?.count !== count) held = { count, rows: new IntegerRows(kind, count, matrix.inner) };
      fillIntegers(held.rows, kind, matrix, first, count);
      return held.rows.rows();
    },
  };
}

function kindOf({ outputs, inner, scales, zero, groupSize }: Int4): 'int4' | 'uint4' | 'f32' {
  if (groupSize === 0 || groupSize % GROUP !== 0 || inner % GROUP !== 0) return 'f32';
  const numGroups = scales.length / outputs;
  for (let group = 0; group < numGroups; group++)
    for (let output = 0; output < outputs; output++) if (zero(group, output) !== 8) return 'uint4';
  return 'int4';
}

function fillIntegers(out: IntegerRows, kind: 'int4' | 'uint4', matrix: Int4, first: number, count: number): void {
  const { outputs, inner, scales, zero, groupSize } = matrix;
  const groups = inner / GROUP;
  matrix.fill(out.words, first, count);
  for (let group = 0; group < groups; group++) {
    const stored = Math.floor((group * GROUP) / groupSize);
    for (let row = 0; row < count; row++) {
      const scale = scales[stored * outputs + first + row]!;
      if (kind === 'int4') out.setScale(row, group, scale);
      else out.setScaleAndZero(row, group, scale, WHOLE_HALVES[zero(stored, first + row)]!);
    }
  }
}

/** 0 to 15 in f16. */
const WHOLE_HALVES = Uint16Array.from({ length: 16 }, (_, value) => {
  if (value === 0) return 0;
  const exponent = Math.floor(Math.log2(value));
  return ((exponent + 15) << 10) | ((value << (10 - exponent)) & 0x3ff);
});

/** Four nibbles to the low nibbles of four bytes: of a device's word these are inputs [8j, 8j + 4), the high ones [8j + 4, 8j + 8). */
function spread(nibbles: number): number {
  const pairs = (nibbles | (nibbles << 8)) & 0x00ff00ff;
  return (pairs | (pairs << 4)) & 0x0f0f0f0f;
}

function floatRows(matrix: Int4, first: number, count: number): QuantisedRows {
  const { outputs, inner, scales, zero, groupOf } = matrix;
  const values = new Float32Array(count * inner);
  const numGroups = scales.length / outputs;
  const [factors, zeros] = [new Float32Array(numGroups * count), new Float32Array(numGroups * count)];
  for (let group = 0; group < numGroups; group++) {
    for (let row = 0; row < count; row++) {
      factors[group * count + row] = halfValue(scales[group * outputs + first + row]!);
      zeros[group * count + row] = zero(group, first + row);
    }
  }
  const groups = Uint32Array.from({ length: inner }, (_, input) => groupOf(input) * count);
  const perRow = inner / 8;
  const words = new Uint32Array(count * perRow);
  matrix.fill(words, first, count);
  for (let row = 0; row < count; row++) {
    for (let input = 0; input < inner; input++) {
      const group = groups[input]! + row;
      // Inputs i and i + 4 of an octet are in a byte's low and high nibble.
      const i = input & 7;
      const integer = (words[row * perRow + (input >> 3)]! >>> (i < 4 ? 8 * i : 8 * i - 28)) & 15;
      values[row * inner + input] = factors[group]! * (integer - zeros[group]!);
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
