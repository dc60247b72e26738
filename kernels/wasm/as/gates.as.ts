/** Gated activations: gates and ups of a row, from one product, become one row. Threads split rows, or columns when rows are few. */
import { exp4 } from './simd.as';

const SILU: i32 = 0;
const GELU: i32 = 1;
const CLAMPED: i32 = 2;
const NONE: i32 = 3;

/**
 * Parameters of the gate kernels: gates, ups and out [rows][inner] f32; gates and ups often lie side by side in the rows of one buffer.
 * Strides are bytes. Only `clamped_swiglu` reads `alpha` and `limit`.
 */
// @ts-ignore: decorator
@unmanaged
export class GateParams {
  gates: usize;
  gateStride: usize;
  ups: usize;
  upStride: usize;
  out: usize;
  outStride: usize;
  inner: u32;
  alpha: f32;
  limit: f32;
}

/** out[r, i] = silu(gates[r, i]) * ups[r, i] for i in [first, last); silu(v) = v / (1 + e^-v). `first` is a multiple of 4. */
export function silu_mul(params: GateParams, start: u32, end: u32, first: u32, last: u32): void {
  gated_mul(SILU, params, start, end, first, last);
}

/**
 * out[r, i] = gelu(gates[r, i]) * ups[r, i], with the ranges of {@link silu_mul}; gelu(v) = v · (1 + tanh(z)) / 2 = v /
 * (1 + e^-2z), z = sqrt(2 / π) · (v + 0.044715 v³).
 */
export function gelu_mul(params: GateParams, start: u32, end: u32, first: u32, last: u32): void {
  gated_mul(GELU, params, start, end, first, last);
}

/**
 * out[r, i] = (u + 1) · g / (1 + e^(-alpha · g)), with the ranges of {@link silu_mul}: g = gates[r, i], at most `limit`, and u = ups[r, i],
 * between -limit and limit.
 */
export function clamped_swiglu(params: GateParams, start: u32, end: u32, first: u32, last: u32): void {
  gated_mul(CLAMPED, params, start, end, first, last);
}

/** out[r, i] = gates[r, i] * ups[r, i], with the ranges of {@link silu_mul}. */
export function mul(params: GateParams, start: u32, end: u32, first: u32, last: u32): void {
  gated_mul(NONE, params, start, end, first, last);
}

/** `kind` is a constant. */
// @ts-ignore: decorator
@inline
function gated_mul(kind: i32, params: GateParams, start: u32, end: u32, first: u32, last: u32): void {
  const width = ((last - first) as usize) << 2;
  const alpha = f32x4.splat(params.alpha);
  const limit = f32x4.splat(params.limit);
  const skipped = (first as usize) << 2;
  for (let row = start; row < end; row++) {
    const gate: usize = params.gates + (row as usize) * params.gateStride + skipped;
    const up: usize = params.ups + (row as usize) * params.upStride + skipped;
    const to: usize = params.out + (row as usize) * params.outStride + skipped;
    let i: usize = 0;
    for (; i + 16 <= width; i += 16) {
      v128.store(to + i, gated(kind, v128.load(gate + i), v128.load(up + i), alpha, limit));
    }
    for (; i < width; i += 4) {
      const y = gated(kind, v128.load32_splat(gate + i), v128.load32_splat(up + i), alpha, limit);
      store<f32>(to + i, f32x4.extract_lane(y, 0));
    }
  }
}

// @ts-ignore: decorator
@inline
function gated(kind: i32, gate: v128, up: v128, alpha: v128, limit: v128): v128 {
  if (kind == NONE) return f32x4.mul(gate, up);
  if (kind != CLAMPED) return f32x4.mul(activated(kind, gate), up);
  const g = f32x4.pmin(gate, limit);
  const u = f32x4.pmin(f32x4.pmax(up, f32x4.neg(limit)), limit);
  const sigmoid = f32x4.add(f32x4.splat(1.0), exp4(f32x4.neg(f32x4.mul(alpha, g))));
  return f32x4.mul(f32x4.add(u, f32x4.splat(1.0)), f32x4.div(g, sigmoid));
}

// @ts-ignore: decorator
@inline
function activated(kind: i32, v: v128): v128 {
  let minus = f32x4.neg(v);
  if (kind == GELU) {
    const cubed = f32x4.mul(f32x4.mul(v, v), v);
    minus = f32x4.mul(f32x4.splat(-1.5957691216057308), f32x4.add(v, f32x4.mul(f32x4.splat(0.044715), cubed)));
  }
  return f32x4.div(v, f32x4.add(f32x4.splat(1.0), exp4(minus)));
}

/** Parameters of {@link sigmoid_mul}: x [rows][width] f32; gate [rows][width] f32, or one value per row. Strides are bytes. */
// @ts-ignore: decorator
@unmanaged
export class SigmoidMulParams {
  x: usize;
  xStride: usize;
  gate: usize;
  gateStride: usize;
  width: u32;
  isPerRow: u32;
}

/** x[r, i] = x[r, i] / (1 + e^-gate[r, i]) for i in [first, last), in place; `first` is a multiple of 4. */
export function sigmoid_mul(params: SigmoidMulParams, start: u32, end: u32, first: u32, last: u32): void {
  const width = ((last - first) as usize) << 2;
  const skipped = (first as usize) << 2;
  for (let row = start; row < end; row++) {
    const x: usize = params.x + (row as usize) * params.xStride + skipped;
    const gate: usize = params.gate + (row as usize) * params.gateStride;
    if (params.isPerRow) {
      const share = sigmoid_of(v128.load32_splat(gate));
      let i: usize = 0;
      for (; i + 16 <= width; i += 16) v128.store(x + i, f32x4.mul(v128.load(x + i), share));
      for (; i < width; i += 4) store<f32>(x + i, load<f32>(x + i) * f32x4.extract_lane(share, 0));
      continue;
    }
    const own = gate + skipped;
    let i: usize = 0;
    for (; i + 16 <= width; i += 16) v128.store(x + i, f32x4.mul(v128.load(x + i), sigmoid_of(v128.load(own + i))));
    for (; i < width; i += 4)
      store<f32>(x + i, load<f32>(x + i) * f32x4.extract_lane(sigmoid_of(v128.load32_splat(own + i)), 0));
  }
}

/** x / (1 + e^-x) of each lane. */
// @ts-ignore: decorator
@inline
export function silu4(x: v128): v128 {
  return activated(SILU, x);
}

// @ts-ignore: decorator
@inline
function sigmoid_of(x: v128): v128 {
  return f32x4.div(f32x4.splat(1.0), f32x4.add(f32x4.splat(1.0), exp4(f32x4.neg(x))));
}
