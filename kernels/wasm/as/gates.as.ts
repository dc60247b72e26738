/** Gated activations: gates and ups of a row, from one product, become one row. Threads split rows, or columns when rows are few. */
import { exp4 } from './simd.as';

const SILU: i32 = 0;
const GELU: i32 = 1;

/** Parameters of the gate kernels: gateUp [rows][2 · inner] f32, gates then ups; out [rows][inner] f32. Strides are bytes. */
// @ts-ignore: decorator
@unmanaged
export class GateParams {
  gateUp: usize;
  gateUpStride: usize;
  out: usize;
  outStride: usize;
  inner: u32;
}

/** out[r, i] = silu(gate_up[r, i]) * gate_up[r, inner + i] for i in [first, last); silu(v) = v / (1 + e^-v). `first` is a multiple of 4. */
export function silu_mul(params: GateParams, start: u32, end: u32, first: u32, last: u32): void {
  gated_mul(SILU, params, start, end, first, last);
}

/**
 * out[r, i] = gelu(gate_up[r, i]) * gate_up[r, inner + i], with the ranges of {@link silu_mul}; gelu(v) = v · (1 + tanh(z)) / 2 = v /
 * (1 + e^-2z), z = sqrt(2 / π) · (v + 0.044715 v³).
 */
export function gelu_mul(params: GateParams, start: u32, end: u32, first: u32, last: u32): void {
  gated_mul(GELU, params, start, end, first, last);
}

/** `kind` is a constant. */
// @ts-ignore: decorator
@inline
function gated_mul(kind: i32, params: GateParams, start: u32, end: u32, first: u32, last: u32): void {
  const width = ((last - first) as usize) << 2;
  const skipped = (first as usize) << 2;
  for (let row = start; row < end; row++) {
    const gate: usize = params.gateUp + (row as usize) * params.gateUpStride + skipped;
    const up: usize = gate + ((params.inner as usize) << 2);
    const to: usize = params.out + (row as usize) * params.outStride + skipped;
    let i: usize = 0;
    for (; i + 16 <= width; i += 16) {
      v128.store(to + i, f32x4.mul(activated(kind, v128.load(gate + i)), v128.load(up + i)));
    }
    for (; i < width; i += 4) {
      const y = f32x4.mul(activated(kind, v128.load32_splat(gate + i)), v128.load32_splat(up + i));
      store<f32>(to + i, f32x4.extract_lane(y, 0));
    }
  }
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
