/**
 * Kernels that compute each row by itself: rms_norm, qk_norm, rope_store, soft_cap, gather. Threads split rows.
 *
 * Strides are bytes; row strides are multiples of 32, so vector tails may run into the padding of a row. Pure functions on raw
 * pointers, as in linear_float.as.ts. `params` has the values that are known at load; the arguments after it vary per step and
 * thread.
 */
import { cap_scores, multiply, sum4, to_f16 } from './simd.as';

/** Parameters of {@link rms_norm}: x and out [rows][width] f32, weight [width] f32; strides are bytes. */
// @ts-ignore: decorator
@unmanaged
export class RmsNormParams {
  x: usize;
  xStride: usize;
  weight: usize;
  out: usize;
  outStride: usize;
  width: u32;
  epsilon: f32;
  isAccumulating: u32;
  /** One f32 that the whole output is multiplied by; 0: none. */
  scalar: usize;
}

/** out[r, :] (+)= weight * x[r, :] / sqrt(mean(x[r, :]²) + epsilon), then out[r, :] *= scalar. */
export function rms_norm(params: RmsNormParams, start: u32, end: u32): void {
  const isAccumulating = params.isAccumulating;
  const scalar = params.scalar ? load<f32>(params.scalar) : (1.0 as f32);
  const widthBytes = (params.width as usize) << 2;
  for (let row = start; row < end; row++) {
    const from: usize = params.x + (row as usize) * params.xStride;
    const to: usize = params.out + (row as usize) * params.outStride;
    normalise(1, from, to, params.weight, params.width, params.epsilon, isAccumulating);
    if (params.scalar) multiply(to, to, widthBytes, scalar);
  }
}

/**
 * Computes one row of {@link rms_norm}. The squares are always added in the same order: four lanes, then the tail. `isWeighted` is a
 * compile-time constant; 0: every weight is 1.
 */
// @ts-ignore: decorator
@inline
export function normalise(isWeighted: i32, from: usize, to: usize, weight: usize, width: u32, epsilon: f32, isAccumulating: u32): void {
  const vectorEnd = ((width & ~3) as usize) << 2;
  const rowEnd = (width as usize) << 2;
  let squares = f32x4.splat(0);
  let i: usize = 0;
  for (; i < vectorEnd; i += 16) {
    const v = v128.load(from + i);
    squares = f32x4.add(squares, f32x4.mul(v, v));
  }
  let sum = sum4(squares);
  for (; i < rowEnd; i += 4) {
    const v = load<f32>(from + i);
    sum += v * v;
  }
  const scale: f32 = (1.0 as f32) / sqrt<f32>(sum / (width as f32) + epsilon);
  const scale4 = f32x4.splat(scale);
  for (i = 0; i < vectorEnd; i += 16) {
    let v = f32x4.mul(v128.load(from + i), scale4);
    if (isWeighted) v = f32x4.mul(v128.load(weight + i), v);
    v128.store(to + i, isAccumulating ? f32x4.add(v128.load(to + i), v) : v);
  }
  for (; i < rowEnd; i += 4) {
    let v = load<f32>(from + i) * scale;
    if (isWeighted) v = load<f32>(weight + i) * v;
    store<f32>(to + i, isAccumulating ? load<f32>(to + i) + v : v);
  }
}

/**
 * Parameters of {@link qk_norm}. The spans to normalise lie side by side from the start of a row: `qSpans` of `qWidth` values, then
 * `kSpans` of `kWidth`, then `vSpans` of `kWidth`, which have no weight.
 */
// @ts-ignore: decorator
@unmanaged
export class QkNormParams {
  qkv: usize;
  stride: usize;
  /** [qWidth], then [kWidth] f32 */
  weight: usize;
  qSpans: u32;
  qWidth: u32;
  kSpans: u32;
  kWidth: u32;
  vSpans: u32;
  epsilon: f32;
}

/** Normalises every span of q, k and v in place like {@link rms_norm}, for rows [start, end). */
export function qk_norm(params: QkNormParams, start: u32, end: u32): void {
  const qBytes = (params.qWidth as usize) << 2;
  const kBytes = (params.kWidth as usize) << 2;
  for (let row = start; row < end; row++) {
    let at = params.qkv + (row as usize) * params.stride;
    for (let span: u32 = 0; span < params.qSpans; span++) {
      normalise(1, at, at, params.weight, params.qWidth, params.epsilon, 0);
      at += qBytes;
    }
    for (let span: u32 = 0; span < params.kSpans; span++) {
      normalise(1, at, at, params.weight + qBytes, params.kWidth, params.epsilon, 0);
      at += kBytes;
    }
    for (let span: u32 = 0; span < params.vSpans; span++) {
      normalise(0, at, at, 0, params.kWidth, params.epsilon, 0);
      at += kBytes;
    }
  }
}

/**
 *   positions, slots [rows] u32; slot = block · block_size + offset
 *   kv               plane K of this layer in block 0; plane V lies valueOffset after it (0: one plane for both); blocks are blockBytes apart
 */
// @ts-ignore: decorator
@unmanaged
export class RopeStoreParams {
  qkv: usize;
  stride: usize;
  positions: usize;
  slots: usize;
  cos: usize;
  sin: usize;
  heads: u32;
  /** KV heads that are stored, and how many of them are keys: all, or none where attention computes keys from values. */
  kvHeads: u32;
  keyHeads: u32;
  headDim: u32;
  rotaryDim: u32;
  pairDistance: u32;
  /** [positions] f32; 0: q has no factor */
  queryFactors: usize;
  kv: usize;
  valueOffset: usize;
  keyTokenBytes: usize;
  valueTokenBytes: usize;
  blockBytes: usize;
  blockSize: u32;
  isF16: u32;
}

/**
 * Rotates rotary_dim values of each head of q and k in place by the angle of the row's position (i pairs with i + pairDistance), and
 * multiplies q by the position's factor. Then stores k and v, rounded to the KV dtype, at the row's slot: v alone where there are no
 * key heads.
 */
export function rope_store(params: RopeStoreParams, start: u32, end: u32): void {
  const heads = params.heads;
  const kvHeads = params.kvHeads;
  const headDim = params.headDim;
  const blockSize = params.blockSize;
  const isF16 = params.isF16;
  const half = params.rotaryDim >> 1;
  const apart = (params.pairDistance as usize) << 2;
  const queryFactors = params.queryFactors;
  const kvWidth = kvHeads * headDim;
  for (let row = start; row < end; row++) {
    const base: usize = params.qkv + (row as usize) * params.stride;
    const position = load<u32>(params.positions + ((row as usize) << 2));
    const angle: usize = ((position * half) as usize) << 2;
    for (let head: u32 = 0; head < heads + params.keyHeads; head++) {
      const at: usize = base + (((head * headDim) as usize) << 2);
      rotate(at, at + apart, params.cos + angle, params.sin + angle, half);
    }
    if (queryFactors) {
      const factor = load<f32>(queryFactors + ((position as usize) << 2));
      multiply(base, base, ((heads * headDim) as usize) << 2, factor);
    }
    if (kvHeads == 0) continue;
    const slot = load<u32>(params.slots + ((row as usize) << 2));
    const block = slot / blockSize;
    const offset = slot - block * blockSize;
    const kFrom: usize = base + (((heads * headDim) as usize) << 2);
    const vFrom: usize = kFrom + ((kvWidth as usize) << 2);
    const blockAt: usize = params.kv + (block as usize) * params.blockBytes;
    round_store(kFrom, blockAt + (offset as usize) * params.keyTokenBytes, kvWidth, isF16);
    if (params.valueOffset == 0) continue;
    round_store(vFrom, blockAt + params.valueOffset + (offset as usize) * params.valueTokenBytes, kvWidth, isF16);
  }
}

// @ts-ignore: decorator
@inline
function rotate(lowAt: usize, highAt: usize, cos: usize, sin: usize, half: u32): void {
  const end = (half as usize) << 2;
  let i: usize = 0;
  for (; i + 16 <= end; i += 16) {
    const low = v128.load(lowAt + i);
    const high = v128.load(highAt + i);
    const c = v128.load(cos + i);
    const s = v128.load(sin + i);
    v128.store(lowAt + i, f32x4.sub(f32x4.mul(low, c), f32x4.mul(high, s)));
    v128.store(highAt + i, f32x4.add(f32x4.mul(high, c), f32x4.mul(low, s)));
  }
  for (; i < end; i += 4) {
    const low = load<f32>(lowAt + i);
    const high = load<f32>(highAt + i);
    const c = load<f32>(cos + i);
    const s = load<f32>(sin + i);
    store<f32>(lowAt + i, low * c - high * s);
    store<f32>(highAt + i, high * c + low * s);
  }
}

/** Stores `width` values, rounded to f16 or as they are. */
// @ts-ignore: decorator
@inline
export function round_store(from: usize, to: usize, width: u32, isF16: u32): void {
  if (isF16) {
    for (let i: u32 = 0; i < width; i++) store<u16>(to + ((i as usize) << 1), to_f16(load<f32>(from + ((i as usize) << 2))));
  } else {
    memory.copy(to, from, (width as usize) << 2);
  }
}

/** Parameters of {@link soft_cap}: x [rows][width] f32, `stride` bytes apart. */
// @ts-ignore: decorator
@unmanaged
export class SoftCapParams {
  x: usize;
  stride: usize;
  width: u32;
  cap: f32;
}

/**
 * x[r, i] = cap · tanh(x[r, i] / cap) for i in [first, last), which are multiples of 4 except at the end of a row: there the padding
 * is computed too.
 */
export function soft_cap(params: SoftCapParams, start: u32, end: u32, first: u32, last: u32): void {
  for (let row = start; row < end; row++) {
    const at = params.x + (row as usize) * params.stride;
    cap_scores(at + ((first as usize) << 2), at + ((last as usize) << 2), 1.0 / params.cap, params.cap);
  }
}

/** Parameters of {@link gather}: sampleRows [samples] u32, the row of each sample. */
// @ts-ignore: decorator
@unmanaged
export class GatherParams {
  x: usize;
  sampleRows: usize;
  out: usize;
  /** The row stride of both. */
  rowBytes: usize;
}

/** out[s, :] = x[sampleRows[s], :]. */
export function gather(params: GatherParams, start: u32, end: u32): void {
  const bytes = params.rowBytes;
  for (let sample = start; sample < end; sample++) {
    const row = load<u32>(params.sampleRows + ((sample as usize) << 2));
    memory.copy(params.out + (sample as usize) * bytes, params.x + (row as usize) * bytes, bytes);
  }
}
