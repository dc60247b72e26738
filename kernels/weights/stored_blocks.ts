/** Blocks of GGUF files that devices take as they are: values with their scales next to them, as ggml's ggml-common.h lays them out. */

/**
 *   q8_0  32 values: d f16, 32 i8; value = d · q
 *   q4_0  32 values: d f16, 16 bytes whose low nibbles are the first 16; value = d · (q - 8)
 *   q4_1  32 values: d f16, m f16, then as q4_0; value = d · q + m
 *   q4_k  256 values: d f16, dmin f16, scales and minima of each 32 in six bits (12 bytes), 128 bytes of nibbles, of each 32 bytes the low
 *         ones before the high ones; value = d · scale · q - dmin · min
 *   mxfp4_blocks, iq4_nl, iq4_xs  codes of a table, see stored_codes.ts
 *   q5_k  as q4_k with the fifth bits before the nibbles: bit j of byte i is that of value i in the j-th 32
 */
export type BlockFormat = 'q8_0' | 'q4_0' | 'q4_1' | 'q4_k' | 'q5_k' | 'mxfp4_blocks' | 'iq4_nl' | 'iq4_xs';

const BLOCKS: Readonly<Record<BlockFormat, { readonly values: number; readonly bytes: number }>> = {
  q8_0: { values: 32, bytes: 34 },
  q4_0: { values: 32, bytes: 18 },
  q4_1: { values: 32, bytes: 20 },
  q4_k: { values: 256, bytes: 144 },
  q5_k: { values: 256, bytes: 176 },
  mxfp4_blocks: { values: 32, bytes: 17 },
  iq4_nl: { values: 32, bytes: 18 },
  iq4_xs: { values: 256, bytes: 136 },
};

/** Whether the format is one of GGUF's block formats. */
export function isBlocks(format: string): format is BlockFormat {
  return Object.hasOwn(BLOCKS, format);
}

/** Returns the bytes of a row of `inner` values; `inner` is a multiple of the format's block size. */
export function blockRowBytes(format: BlockFormat, inner: number): number {
  return (inner / BLOCKS[format].values) * BLOCKS[format].bytes;
}

/** Returns a DataView of the same bytes, not a copy. */
export function viewOf({ buffer, byteOffset, byteLength }: Uint8Array): DataView {
  return new DataView(buffer, byteOffset, byteLength);
}

const LOW_NIBBLES = 0x0f0f0f0f;

/**
 * Unpacks the 32 nibbles of q4_0 or q4_1 that start at `at` into the order of kernels/weights/weight_format.ts: four words from
 * out[to] on.
 */
export function nibblesOfBlock(view: DataView, at: number, out: Uint32Array, to: number): void {
  const [a, b] = [view.getUint32(at, true), view.getUint32(at + 4, true)];
  const [c, d] = [view.getUint32(at + 8, true), view.getUint32(at + 12, true)];
  out[to] = (a & LOW_NIBBLES) | ((b & LOW_NIBBLES) << 4);
  out[to + 1] = (c & LOW_NIBBLES) | ((d & LOW_NIBBLES) << 4);
  out[to + 2] = ((a >>> 4) & LOW_NIBBLES) | (b & ~LOW_NIBBLES);
  out[to + 3] = ((c >>> 4) & LOW_NIBBLES) | (d & ~LOW_NIBBLES);
}

/** Unpacks the j-th 32 nibbles of the q4_k block at `at`, in the order of {@link nibblesOfBlock}: four words from out[to] on. */
export function nibblesOfSuper(view: DataView, at: number, j: number, out: Uint32Array, to: number): void {
  const from = at + 16 + 32 * (j >> 1);
  for (let word = 0; word < 4; word++) {
    const [a, b] = [view.getUint32(from + 8 * word, true), view.getUint32(from + 8 * word + 4, true)];
    out[to + word] =
      j & 1 ? ((a >>> 4) & LOW_NIBBLES) | (b & ~LOW_NIBBLES) : (a & LOW_NIBBLES) | ((b & LOW_NIBBLES) << 4);
  }
}

/** Returns the six-bit scale and minimum of the j-th 32 values in the q4_k or q5_k block at `at`. */
export function sixBits(view: DataView, at: number, j: number): { readonly scale: number; readonly min: number } {
  const byte = (i: number): number => view.getUint8(at + 4 + i);
  if (j < 4) return { scale: byte(j) & 63, min: byte(j + 4) & 63 };
  return {
    scale: (byte(j + 4) & 15) | ((byte(j - 4) >> 6) << 4),
    min: (byte(j + 4) >> 4) | ((byte(j) >> 6) << 4),
  };
}

/** Decodes whole blocks of a format with minima into `out`, f32. `halfValue` returns the value of an f16. */
export function blockValues(
  format: 'q4_1' | 'q4_k' | 'q5_k',
  data: Uint8Array,
  out: Float32Array,
  halfValue: (half: number) => number,
): void {
  const { values, bytes } = BLOCKS[format];
  const view = viewOf(data);
  const unpack = format === 'q4_1' ? q4_1 : superBlock;
  for (let at = 0, to = 0; at < data.length; at += bytes, to += values) {
    const [d, low] = [halfValue(view.getUint16(at, true)), halfValue(view.getUint16(at + 2, true))];
    unpack({ view, at, d, low, highBits: format === 'q5_k' ? at + 16 : undefined }, out, to);
  }
}

interface Block {
  readonly view: DataView;
  readonly at: number;
  readonly d: number;
  /** Value of the block's m (q4_1) or dmin (q4_k, q5_k). */
  readonly low: number;
  /** Byte offset of the fifth bits in `view`; undefined for formats without. */
  readonly highBits: number | undefined;
}

function q4_1({ view, at, d, low }: Block, out: Float32Array, to: number): void {
  for (let i = 0; i < 16; i++) {
    const nibbles = view.getUint8(at + 4 + i);
    out[to + i] = d * (nibbles & 15) + low;
    out[to + i + 16] = d * (nibbles >> 4) + low;
  }
}

function superBlock({ view, at, d, low, highBits }: Block, out: Float32Array, to: number): void {
  const nibbles = at + (highBits === undefined ? 16 : 48);
  for (let j = 0; j < 8; j++) {
    const bits = sixBits(view, at, j);
    const [scale, min] = [Math.fround(d * bits.scale), Math.fround(low * bits.min)];
    const [from, shift] = [nibbles + 32 * (j >> 1), 4 * (j & 1)];
    for (let i = 0; i < 32; i++) {
      const high = highBits === undefined ? 0 : ((view.getUint8(highBits + i) >> j) & 1) << 4;
      out[to + 32 * j + i] = scale * (((view.getUint8(from + i) >> shift) & 15) | high) - min;
    }
  }
}
