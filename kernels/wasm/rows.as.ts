/**
 * Kernels that treat every row by itself: rms_norm, rope_store, silu_mul, gather. Threads split rows.
 *
 * Strides are bytes; row strides are multiples of 32, so vector tails may run into a row's own padding. Pure functions on
 * raw pointers, as in linear_float.as.ts.
 */
import { exp4, sum4, to_f16 } from './simd.as';

/** out[r, :] = weight * x[r, :] / sqrt(mean(x[r, :]²) + epsilon). The sum runs in four lanes, then a tail, in one order. */
export function rms_norm(
  x: usize,
  xStride: usize,
  weight: usize,
  out: usize,
  outStride: usize,
  hidden: u32,
  epsilon: f32,
  start: u32,
  end: u32,
): void {
  const vectorEnd = (hidden & ~3) as usize << 2;
  const rowEnd = (hidden as usize) << 2;
  for (let row = start; row < end; row++) {
    const from: usize = x + (row as usize) * xStride;
    const to: usize = out + (row as usize) * outStride;
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
    const scale: f32 = (1.0 as f32) / sqrt<f32>(sum / (hidden as f32) + epsilon);
    const scale4 = f32x4.splat(scale);
    for (i = 0; i < vectorEnd; i += 16) {
      v128.store(to + i, f32x4.mul(v128.load(weight + i), f32x4.mul(v128.load(from + i), scale4)));
    }
    for (; i < rowEnd; i += 4) store<f32>(to + i, load<f32>(weight + i) * (load<f32>(from + i) * scale));
  }
}

/**
 * Rotates q and k of a row in place by the angle of its position (i pairs with i + head_dim/2, as Hugging Face does), then
 * stores k and v, rounded to the KV dtype, at the row's slot.
 *
 *   positions, slots [rows] u32; slot = block · block_size + offset
 *   kv               plane K of this layer in block 0; plane V lies planeBytes after it; blocks are blockBytes apart
 */
export function rope_store(
  qkv: usize,
  stride: usize,
  positions: usize,
  slots: usize,
  cos: usize,
  sin: usize,
  heads: u32,
  kvHeads: u32,
  headDim: u32,
  kv: usize,
  planeBytes: usize,
  blockBytes: usize,
  blockSize: u32,
  isF16: u32,
  start: u32,
  end: u32,
): void {
  const half = headDim >> 1;
  const kvWidth = kvHeads * headDim;
  for (let row = start; row < end; row++) {
    const base: usize = qkv + (row as usize) * stride;
    const position = load<u32>(positions + ((row as usize) << 2));
    const angle: usize = ((position * half) as usize) << 2;
    for (let head: u32 = 0; head < heads + kvHeads; head++) {
      const at: usize = base + (((head * headDim) as usize) << 2);
      rotate(at, at + ((half as usize) << 2), cos + angle, sin + angle, half);
    }
    const slot = load<u32>(slots + ((row as usize) << 2));
    const block = slot / blockSize;
    const offset = slot - block * blockSize;
    const kFrom: usize = base + (((heads * headDim) as usize) << 2);
    const vFrom: usize = kFrom + ((kvWidth as usize) << 2);
    const shift: usize = isF16 ? 1 : 2;
    const kTo: usize = kv + (block as usize) * blockBytes + (((offset * kvWidth) as usize) << shift);
    round_store(kFrom, kTo, kvWidth, isF16);
    round_store(vFrom, kTo + planeBytes, kvWidth, isF16);
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

// @ts-ignore: decorator
@inline
function round_store(from: usize, to: usize, width: u32, isF16: u32): void {
  if (isF16) {
    for (let i: u32 = 0; i < width; i++) store<u16>(to + ((i as usize) << 1), to_f16(load<f32>(from + ((i as usize) << 2))));
  } else {
    memory.copy(to, from, (width as usize) << 2);
  }
}

/** out[r, i] = silu(gate_up[r, i]) * gate_up[r, i + upBytes / 4] for i below `columns`; silu(v) = v / (1 + e^-v). */
export function silu_mul(
  gateUp: usize,
  stride: usize,
  upBytes: usize,
  out: usize,
  outStride: usize,
  columns: u32,
  start: u32,
  end: u32,
): void {
  const width = (columns as usize) << 2;
  const one = f32x4.splat(1.0);
  for (let row = start; row < end; row++) {
    const gate: usize = gateUp + (row as usize) * stride;
    const up: usize = gate + upBytes;
    const to: usize = out + (row as usize) * outStride;
    let i: usize = 0;
    for (; i + 16 <= width; i += 16) {
      const g = v128.load(gate + i);
      v128.store(to + i, f32x4.mul(f32x4.div(g, f32x4.add(one, exp4(f32x4.neg(g)))), v128.load(up + i)));
    }
    for (; i < width; i += 4) {
      const g = v128.load32_splat(gate + i);
      const y = f32x4.mul(f32x4.div(g, f32x4.add(one, exp4(f32x4.neg(g)))), v128.load32_splat(up + i));
      store<f32>(to + i, f32x4.extract_lane(y, 0));
    }
  }
}

/** out[s, :] = x[sampleRows[s], :]; `bytes` is the row stride of both. */
export function gather(x: usize, sampleRows: usize, out: usize, bytes: usize, start: u32, end: u32): void {
  for (let sample = start; sample < end; sample++) {
    const row = load<u32>(sampleRows + ((sample as usize) << 2));
    memory.copy(out + (sample as usize) * bytes, x + (row as usize) * bytes, bytes);
  }
}
