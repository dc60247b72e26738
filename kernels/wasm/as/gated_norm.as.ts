/** The norm with a gate of recurrent layers. Pure functions on raw pointers, as in linear_float.as.ts. */
import { silu4 } from './gates.as';
import { GatedNormParams } from './recurrence_params.as';
import { sum4 } from './simd.as';

/**
 * Units [start, end), spans of rows, in place: x = weight · rms_norm(x) · silu(gate), or with `isGateFirst` x = weight · rms_norm(x ·
 * silu(gate)). The squares are always added in the same order: four lanes, then the tail.
 */
export function gated_norm(params: GatedNormParams, start: u32, end: u32): void {
  const width = params.width;
  const isGateFirst = params.isGateFirst;
  const spanBytes = (width as usize) << 2;
  const vectorEnd = ((width & ~3) as usize) << 2;
  for (let unit = start; unit < end; unit++) {
    const row = unit / params.spans;
    const span = unit - row * params.spans;
    const x = params.x + (row as usize) * params.xStride + (span as usize) * spanBytes;
    const gate = params.gate + (row as usize) * params.gateStride + (span as usize) * spanBytes;
    const weight = params.weight + (span as usize) * params.weightStride;
    let squares = f32x4.splat(0);
    let i: usize = 0;
    for (; i < vectorEnd; i += 16) {
      let v = v128.load(x + i);
      if (isGateFirst) {
        v = f32x4.mul(v, silu4(v128.load(gate + i)));
        v128.store(x + i, v);
      }
      squares = f32x4.add(squares, f32x4.mul(v, v));
    }
    let sum = sum4(squares);
    for (; i < spanBytes; i += 4) {
      let v = load<f32>(x + i);
      if (isGateFirst) {
        v *= silu1(load<f32>(gate + i));
        store<f32>(x + i, v);
      }
      sum += v * v;
    }
    const scale: f32 = (1.0 as f32) / sqrt<f32>(sum / (width as f32) + params.epsilon);
    const scale4 = f32x4.splat(scale);
    for (i = 0; i < vectorEnd; i += 16) {
      const v = f32x4.mul(v128.load(weight + i), f32x4.mul(v128.load(x + i), scale4));
      v128.store(x + i, isGateFirst ? v : f32x4.mul(v, silu4(v128.load(gate + i))));
    }
    for (; i < spanBytes; i += 4) {
      const v = load<f32>(weight + i) * (load<f32>(x + i) * scale);
      store<f32>(x + i, isGateFirst ? v : v * silu1(load<f32>(gate + i)));
    }
  }
}

// @ts-ignore: decorator
@inline
function silu1(x: f32): f32 {
  return f32x4.extract_lane(silu4(f32x4.splat(x)), 0);
}
