/**
 * Layout of rows in a GGUF file: blocks of values with their scales, as in ggml's ggml-common.h. A block type whose values fit the
 * devices' integer formats exactly becomes such integers; every other one becomes f32.
 */
import { halfValue } from '../half_value.ts';
import type { ModelIntegers, ModelRows } from '../weights.ts';

/** Formats that the values of a block type end up in. */
type Kept = 'f32' | 'f16' | 'bf16' | ModelIntegers;

/** Layout of one block type of ggml, and its decoder. */
export interface BlockType {
  readonly name: string;
  /** Values of one block; `bytes` is the size of such a block. */
  readonly values: number;
  readonly bytes: number;
  /** Format that devices compute with: integers or codes where no value needs rounding, else floats. */
  readonly kept: Kept;
  /** Decodes `rows` rows of `inner` values each. */
  readonly decode: (bytes: Uint8Array, rows: number, inner: number) => Omit<ModelRows, 'rowStart'>;
}

/** Writes the values of the block at byte `at` to `out`, from index `to` on. */
type Unpack = (view: DataView, at: number, out: Float32Array, to: number) => void;

/** Block types that are supported, by ggml's type number. */
export const blockTypes: ReadonlyMap<number, BlockType> = new Map([
  [0, plain('F32', 'f32', 4)],
  [1, plain('F16', 'f16', 2)],
  [30, plain('BF16', 'bf16', 2)],
  [2, stored('Q4_0', 'q4_0', 32, 18, 'int4')],
  [8, stored('Q8_0', 'q8_0', 32, 34, 'int8')],
  [3, stored('Q4_1', 'q4_1', 32, 20, 'uint4')],
  [12, stored('Q4_K', 'q4_k', 256, 144, 'uint4')],
  [13, stored('Q5_K', 'q5_k', 256, 176, 'f32')],
  [6, { name: 'Q5_0', values: 32, bytes: 22, kept: 'int8', decode: q5_0 }],
  [7, floats('Q5_1', 32, 24, q5_1)],
  [14, floats('Q6_K', 256, 210, q6_K)],
  [10, floats('Q2_K', 256, 84, q2_K)],
  [11, floats('Q3_K', 256, 110, q3_K)],
  [20, stored('IQ4_NL', 'iq4_nl', 32, 18, 'iq4')],
  [23, stored('IQ4_XS', 'iq4_xs', 256, 136, 'iq4')],
  [39, stored('MXFP4', 'mxfp4_blocks', 32, 17, 'mxfp4')],
]);

/** Names of types that ggml has and that are not read here. */
const otherTypes: ReadonlyMap<number, string> = new Map([
  ...([
    [9, 'Q8_1'],
    [15, 'Q8_K'],
    [16, 'IQ2_XXS'],
    [17, 'IQ2_XS'],
    [18, 'IQ3_XXS'],
    [19, 'IQ1_S'],
  ] as const),
  ...([
    [21, 'IQ3_S'],
    [22, 'IQ2_S'],
    [24, 'I8'],
    [25, 'I16'],
    [26, 'I32'],
    [27, 'I64'],
    [28, 'F64'],
  ] as const),
  ...([
    [29, 'IQ1_M'],
    [34, 'TQ1_0'],
    [35, 'TQ2_0'],
    [40, 'NVFP4'],
  ] as const),
]);

/** Returns a message: the tensor's type, by ggml's number, is not read, and these types are. */
export function unreadType(tensor: string, type: number): string {
  const known = otherTypes.get(type);
  const name = known === undefined ? `a type of number ${type}` : `${known} (type ${type})`;
  const read = [...blockTypes.values()].map((one) => one.name).join(', ');
  return `tensor ${tensor} is stored in ${name}, which is not read here; these types are: ${read}. Take a file of this model in another quantisation`;
}

function plain(name: string, format: 'f32' | 'f16' | 'bf16', bytes: number): BlockType {
  return { name, values: 1, bytes, kept: format, decode: (data) => ({ format, data }) };
}

/** Returns a block type whose bytes go to devices unchanged; devices compute with them or decode them. */
function stored(name: string, format: ModelRows['format'], values: number, bytes: number, kept: Kept): BlockType {
  return { name, values, bytes, kept, decode: (data) => ({ format, data }) };
}

function floats(name: string, values: number, bytes: number, unpack: Unpack): BlockType {
  return {
    name,
    values,
    bytes,
    kept: 'f32',
    decode: (data, rows, inner) => {
      const out = new Float32Array(rows * inner);
      const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
      for (let at = 0, to = 0; to < out.length; at += bytes, to += values) unpack(view, at, out, to);
      return { format: 'f32', data: new Uint8Array(out.buffer) };
    },
  };
}

/** Decodes Q5_0: value = d · (q - 16). The fifth bits of q are stored apart. Five bits fit into int8. */
function q5_0(data: Uint8Array, rows: number, inner: number): Omit<ModelRows, 'rowStart'> {
  const bytes = new Int8Array(rows * inner);
  const groups = inner / 32;
  // The integer formats of kernels/weights/weight_format.ts have an even number of scales for each row.
  const perRow = Math.ceil(groups / 2) * 2;
  const scales = new Uint16Array(rows * perRow);
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  for (let block = 0, at = 0, to = 0; at < data.length; block++, at += 22, to += 32) {
    const high = view.getUint32(at + 2, true);
    for (let j = 0; j < 16; j++) {
      const nibbles = view.getUint8(at + 6 + j);
      bytes[to + j] = ((nibbles & 15) | (((high >>> j) & 1) << 4)) - 16;
      bytes[to + j + 16] = ((nibbles >> 4) | (((high >>> (j + 16)) & 1) << 4)) - 16;
    }
    scales[Math.floor(block / groups) * perRow + (block % groups)] = view.getUint16(at, true);
  }
  return { format: 'int8', data: new Uint8Array(bytes.buffer), scales: new Uint8Array(scales.buffer) };
}

/** Decodes Q5_1: value = d · q + m. The fifth bits of q are stored apart. */
function q5_1(view: DataView, at: number, out: Float32Array, to: number): void {
  const [d, m, high] = [halfAt(view, at), halfAt(view, at + 2), view.getUint32(at + 4, true)];
  for (let j = 0; j < 16; j++) {
    const nibbles = view.getUint8(at + 8 + j);
    out[to + j] = d * ((nibbles & 15) | (((high >>> j) & 1) << 4)) + m;
    out[to + j + 16] = d * ((nibbles >> 4) | (((high >>> (j + 16)) & 1) << 4)) + m;
  }
}

/** Decodes Q6_K: value = d · scale · (q - 32), with an 8-bit scale per 16 values. The upper two bits of q are stored apart. */
function q6_K(view: DataView, at: number, out: Float32Array, to: number): void {
  const d = halfAt(view, at + 208);
  for (let half = 0; half < 2; half++) {
    const [low, high, scale] = [at + 64 * half, at + 128 + 32 * half, at + 192 + 8 * half];
    for (let i = 0; i < 32; i++) {
      const [a, b, h] = [view.getUint8(low + i), view.getUint8(low + 32 + i), view.getUint8(high + i)];
      const s = scale + (i >> 4);
      const first = to + 128 * half + i;
      out[first] = d * view.getInt8(s) * (((a & 15) | ((h & 3) << 4)) - 32);
      out[first + 32] = d * view.getInt8(s + 2) * (((b & 15) | (((h >> 2) & 3) << 4)) - 32);
      out[first + 64] = d * view.getInt8(s + 4) * (((a >> 4) | (((h >> 4) & 3) << 4)) - 32);
      out[first + 96] = d * view.getInt8(s + 6) * (((b >> 4) | ((h >> 6) << 4)) - 32);
    }
  }
}

/** Decodes Q2_K: value = d · scale · q - dmin · min, with four bits of scale and of min per 16 values. */
function q2_K(view: DataView, at: number, out: Float32Array, to: number): void {
  const [d, low] = [halfAt(view, at + 80), halfAt(view, at + 82)];
  for (let sixteen = 0; sixteen < 16; sixteen++) {
    const bits = view.getUint8(at + sixteen);
    const [scale, min] = [Math.fround(d * (bits & 15)), Math.fround(low * (bits >> 4))];
    const { from, shift } = twoBits(sixteen);
    for (let i = 0; i < 16; i++)
      out[to + 16 * sixteen + i] = Math.fround(scale * ((view.getUint8(at + 16 + from + i) >> shift) & 3)) - min;
  }
}

/** Decodes Q3_K: value = d · (scale - 32) · (q - 4), with six bits of scale per 16 values. The third bits of q are stored apart. */
function q3_K(view: DataView, at: number, out: Float32Array, to: number): void {
  const d = halfAt(view, at + 108);
  for (let sixteen = 0; sixteen < 16; sixteen++) {
    const low = view.getUint8(at + 96 + (sixteen & 7)) >> (sixteen < 8 ? 0 : 4);
    const high = view.getUint8(at + 104 + (sixteen & 3)) >> (2 * (sixteen >> 2));
    const scale = Math.fround(d * (((low & 15) | ((high & 3) << 4)) - 32));
    const { from, shift } = twoBits(sixteen);
    for (let i = 0; i < 16; i++) {
      const third = (view.getUint8(at + 16 * (sixteen & 1) + i) >> (sixteen >> 1)) & 1;
      const q = ((view.getUint8(at + 32 + from + i) >> shift) & 3) | (third << 2);
      out[to + 16 * sixteen + i] = scale * (q - 4);
    }
  }
}

/** Where 16 values of Q2_K or Q3_K have their lower two bits: the offset of their bytes, and the shift within each. */
function twoBits(sixteen: number): { readonly from: number; readonly shift: number } {
  return { from: 32 * (sixteen >> 3) + 16 * (sixteen & 1), shift: 2 * ((sixteen >> 1) & 3) };
}

function halfAt(view: DataView, at: number): number {
  return halfValue(view.getUint16(at, true));
}
