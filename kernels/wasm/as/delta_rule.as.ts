/** The gated delta rule and the state space of Mamba2, and what prepares them. Pure functions on raw pointers, as in linear_float.as.ts. */
import { DeltaRuleParams, StateSegment } from './recurrence_params.as';
import { exp1, madd, sum4 } from './simd.as';

// @ts-ignore: decorator
@inline
function sigmoid1(x: f32): f32 {
  return (1.0 as f32) / ((1.0 as f32) + exp1(-x));
}

/**
 * Prepares {@link delta_rule} for units [start, end), key heads of rows: q and k are divided by their lengths, sqrt(sum of squares +
 * epsilon), q also by the root of its size; β = sigmoid(b), decay = e^(-e^aLog · softplus(a + dtBias)) of the value heads.
 */
export function delta_inputs(params: DeltaRuleParams, start: u32, end: u32): void {
  const keyHeads = params.keyHeads;
  const valueHeads = params.valueHeads;
  const group = valueHeads / keyHeads;
  const headBytes = (params.keyDim as usize) << 2;
  const root: f32 = sqrt<f32>(params.keyDim as f32);
  for (let unit = start; unit < end; unit++) {
    const row = unit / keyHeads;
    const head = unit - row * keyHeads;
    const q = params.qkv + (row as usize) * params.qkvStride + (head as usize) * headBytes;
    to_unit_length(q, params.keyDim, params.epsilon, root);
    to_unit_length(q + (keyHeads as usize) * headBytes, params.keyDim, params.epsilon, 1.0);
    const gates = params.gates + (row as usize) * params.gatesStride;
    for (let i: u32 = 0; i < group; i++) {
      const at = ((params.isTiled ? head + i * keyHeads : head * group + i) as usize) << 2;
      const a = gates + ((valueHeads as usize) << 2) + at;
      const rate = exp1(load<f32>(params.aLog + at));
      store<f32>(gates + at, sigmoid1(load<f32>(gates + at)));
      store<f32>(a, exp1(-rate * softplus(load<f32>(a) + load<f32>(params.dtBias + at))));
    }
  }
}

/**
 * Prepares {@link delta_rule} for a state space, rows [start, end): step = softplus(value + dtBias) of each head, between leastStep and
 * mostStep, in place of the value, and decay = e^(-e^aLog · step) after them.
 */
export function space_steps(params: DeltaRuleParams, start: u32, end: u32): void {
  const width = (params.valueHeads as usize) << 2;
  for (let row = start; row < end; row++) {
    const steps = params.gates + (row as usize) * params.gatesStride;
    for (let at: usize = 0; at < width; at += 4) {
      const value = softplus(load<f32>(steps + at) + load<f32>(params.dtBias + at));
      const step = min<f32>(max<f32>(value, params.leastStep), params.mostStep);
      store<f32>(steps + at, step);
      store<f32>(steps + width + at, exp1(-exp1(load<f32>(params.aLog + at)) * step));
    }
  }
}

/** Divides `width` values by `divisor` times their length. The squares are always added in the same order: four lanes, then the tail. */
// @ts-ignore: decorator
@inline
function to_unit_length(at: usize, width: u32, epsilon: f32, divisor: f32): void {
  const vectorEnd = ((width & ~3) as usize) << 2;
  const end = (width as usize) << 2;
  let squares = f32x4.splat(0);
  let i: usize = 0;
  for (; i < vectorEnd; i += 16) {
    const v = v128.load(at + i);
    squares = f32x4.add(squares, f32x4.mul(v, v));
  }
  let sum = sum4(squares);
  for (; i < end; i += 4) {
    const v = load<f32>(at + i);
    sum += v * v;
  }
  const scale: f32 = (1.0 as f32) / (sqrt<f32>(sum + epsilon) * divisor);
  const scale4 = f32x4.splat(scale);
  for (i = 0; i < vectorEnd; i += 16) v128.store(at + i, f32x4.mul(v128.load(at + i), scale4));
  for (; i < end; i += 4) store<f32>(at + i, load<f32>(at + i) * scale);
}

/** ln(1 + e^x) = max(x, 0) + ln(1 + t), t = e^-|x|; ln(1 + t) = 2 · artanh(t / (2 + t)), whose argument is at most 1/3. */
// @ts-ignore: decorator
@inline
function softplus(x: f32): f32 {
  const t = exp1(-abs<f32>(x)) as f64;
  const s = t / (2.0 + t);
  const z = s * s;
  // The first term that is left out is below 2^-32 of the sum.
  let series: f64 = 1.0 / 19.0;
  series = series * z + 1.0 / 17.0;
  series = series * z + 1.0 / 15.0;
  series = series * z + 1.0 / 13.0;
  series = series * z + 1.0 / 11.0;
  series = series * z + 1.0 / 9.0;
  series = series * z + 1.0 / 7.0;
  series = series * z + 1.0 / 5.0;
  series = series * z + 1.0 / 3.0;
  series = series * z + 1.0;
  return max<f32>(x, 0.0) + ((2.0 * s * series) as f32);
}

/** Columns of a head's state that a call of {@link delta_rule} computes. */
export const STATE_COLUMNS: u32 = 32;
const TILE_BYTES: usize = 128;

/**
 * For each row of a segment, with the state S [keyDim][valueDim] of value head `head`:
 *
 *   S = decay · S;  d = β · (v - Sᵀk);  S = S + k dᵀ;  out = Sᵀq
 *
 * or of a state space, with `skips`, d = β · v and out = Sᵀq + skip · v. Columns [STATE_COLUMNS · tile, + STATE_COLUMNS) of S, as far as it has them, stay in `scratch` over all rows; room for (keyDim + 1) ·
 * STATE_COLUMNS f32. Lanes are columns, and keys come in ascending order.
 */
export function delta_rule(params: DeltaRuleParams, segment: StateSegment, head: u32, tile: u32, scratch: usize): void {
  const keyDim = params.keyDim;
  const valueDim = params.valueDim;
  const keyHeads = params.keyHeads;
  const valueHeads = params.valueHeads;
  const keyHead = params.isTiled ? head % keyHeads : head / (valueHeads / keyHeads);
  const column = tile * STATE_COLUMNS;
  const bytes = (min(STATE_COLUMNS, valueDim - column) as usize) << 2;
  const tableEnd = scratch + (keyDim as usize) * TILE_BYTES;
  const value = tableEnd;
  const plane = params.state + (((head * keyDim * valueDim + column) as usize) << 2);
  load_columns(params, segment, plane, bytes, scratch, tableEnd);
  const qSkipped = ((keyHead * keyDim) as usize) << 2;
  const kSkipped = (((keyHeads + keyHead) * keyDim) as usize) << 2;
  const vSkipped = ((2 * keyHeads * keyDim + head * valueDim + column) as usize) << 2;
  const outSkipped = ((head * valueDim + column) as usize) << 2;
  let save: u32 = 0;
  for (let row: u32 = 0; row < segment.rows; row++) {
    const line = ((segment.row + row) as usize);
    const qkv = params.qkv + line * params.qkvStride;
    const gate = params.gates + line * params.gatesStride + ((head as usize) << 2);
    copy_columns(qkv + vSkipped, value, bytes);
    const decay = v128.load32_splat(gate + ((valueHeads as usize) << 2));
    const beta = v128.load32_splat(gate);
    if (params.skips == 0) differences(qkv + kSkipped, value, scratch, tableEnd, beta, decay);
    else scale_columns(value, beta);
    update(qkv + qSkipped, qkv + kSkipped, value, scratch, tableEnd, decay);
    update(qkv + qSkipped, qkv + kSkipped, value + 64, scratch + 64, tableEnd, decay);
    const to = params.out + line * params.outStride + outSkipped;
    if (params.skips == 0) copy_columns(value, to, bytes);
    else add_columns(value, qkv + vSkipped, load<f32>(params.skips + ((head as usize) << 2)), to, bytes);
    if (save < segment.numSaves && load<u32>(segment.saves + ((save as usize) << 3)) == row + 1) {
      const slot = load<u32>(segment.saves + ((save as usize) << 3), 4);
      let to = plane + (slot as usize) * params.slotBytes;
      for (let from = scratch; from < tableEnd; from += TILE_BYTES) {
        copy_columns(from, to, bytes);
        to += (valueDim as usize) << 2;
      }
      save++;
    }
  }
}

/** Copies the segment's first state into the table, with zeros in the columns that the state lacks. */
function load_columns(
  params: DeltaRuleParams,
  segment: StateSegment,
  plane: usize,
  bytes: usize,
  table: usize,
  tableEnd: usize,
): void {
  // The row of values after the table has zeros there as well.
  if (segment.from < 0 || bytes < TILE_BYTES) memory.fill(table, 0, tableEnd + TILE_BYTES - table);
  if (segment.from < 0) return;
  let from = plane + (segment.from as usize) * params.slotBytes;
  for (let to = table; to < tableEnd; to += TILE_BYTES) {
    copy_columns(from, to, bytes);
    from += (params.valueDim as usize) << 2;
  }
}

/** Copies whole vectors, then single values: a call of memory.copy would cost more than it copies. */
// @ts-ignore: decorator
@inline
function copy_columns(from: usize, to: usize, bytes: usize): void {
  let i: usize = 0;
  for (; i + 16 <= bytes; i += 16) v128.store(to + i, v128.load(from + i));
  for (; i < bytes; i += 4) store<f32>(to + i, load<f32>(from + i));
}

/** value = β · value, all columns. */
// @ts-ignore: decorator
@inline
function scale_columns(value: usize, beta: v128): void {
  for (let i: usize = 0; i < TILE_BYTES; i += 16) v128.store(value + i, f32x4.mul(beta, v128.load(value + i)));
}

/** to = value + skip · x */
// @ts-ignore: decorator
@inline
function add_columns(value: usize, x: usize, skip: f32, to: usize, bytes: usize): void {
  const skip4 = f32x4.splat(skip);
  let i: usize = 0;
  for (; i + 16 <= bytes; i += 16) v128.store(to + i, madd(skip4, v128.load(x + i), v128.load(value + i)));
  for (; i < bytes; i += 4) {
    const sum = madd(skip4, v128.load32_splat(x + i), v128.load32_splat(value + i));
    store<f32>(to + i, f32x4.extract_lane(sum, 0));
  }
}

/** value = β · (value - decay · Sᵀk), all columns of the table. */
// @ts-ignore: decorator
@inline
function differences(k: usize, value: usize, table: usize, tableEnd: usize, beta: v128, decay: v128): void {
  let s0 = f32x4.splat(0);
  let s1 = f32x4.splat(0);
  let s2 = f32x4.splat(0);
  let s3 = f32x4.splat(0);
  let s4 = f32x4.splat(0);
  let s5 = f32x4.splat(0);
  let s6 = f32x4.splat(0);
  let s7 = f32x4.splat(0);
  for (let at = table; at < tableEnd; at += TILE_BYTES) {
    const key = v128.load32_splat(k);
    s0 = madd(key, v128.load(at), s0);
    s1 = madd(key, v128.load(at, 16), s1);
    s2 = madd(key, v128.load(at, 32), s2);
    s3 = madd(key, v128.load(at, 48), s3);
    s4 = madd(key, v128.load(at, 64), s4);
    s5 = madd(key, v128.load(at, 80), s5);
    s6 = madd(key, v128.load(at, 96), s6);
    s7 = madd(key, v128.load(at, 112), s7);
    k += 4;
  }
  v128.store(value, difference(v128.load(value), s0, beta, decay));
  v128.store(value, difference(v128.load(value, 16), s1, beta, decay), 16);
  v128.store(value, difference(v128.load(value, 32), s2, beta, decay), 32);
  v128.store(value, difference(v128.load(value, 48), s3, beta, decay), 48);
  v128.store(value, difference(v128.load(value, 64), s4, beta, decay), 64);
  v128.store(value, difference(v128.load(value, 80), s5, beta, decay), 80);
  v128.store(value, difference(v128.load(value, 96), s6, beta, decay), 96);
  v128.store(value, difference(v128.load(value, 112), s7, beta, decay), 112);
}

// @ts-ignore: decorator
@inline
function difference(value: v128, recalled: v128, beta: v128, decay: v128): v128 {
  return f32x4.mul(beta, f32x4.sub(value, f32x4.mul(decay, recalled)));
}

/** S = decay · S + k dᵀ with d in `value`, then value = Sᵀq, for half of the table's columns. */
// @ts-ignore: decorator
@inline
function update(q: usize, k: usize, value: usize, table: usize, tableEnd: usize, decay: v128): void {
  const d0 = v128.load(value);
  const d1 = v128.load(value, 16);
  const d2 = v128.load(value, 32);
  const d3 = v128.load(value, 48);
  let o0 = f32x4.splat(0);
  let o1 = f32x4.splat(0);
  let o2 = f32x4.splat(0);
  let o3 = f32x4.splat(0);
  for (let at = table; at < tableEnd; at += TILE_BYTES) {
    const key = v128.load32_splat(k);
    const query = v128.load32_splat(q);
    const s0 = madd(key, d0, f32x4.mul(v128.load(at), decay));
    const s1 = madd(key, d1, f32x4.mul(v128.load(at, 16), decay));
    const s2 = madd(key, d2, f32x4.mul(v128.load(at, 32), decay));
    const s3 = madd(key, d3, f32x4.mul(v128.load(at, 48), decay));
    v128.store(at, s0);
    v128.store(at, s1, 16);
    v128.store(at, s2, 32);
    v128.store(at, s3, 48);
    o0 = madd(query, s0, o0);
    o1 = madd(query, s1, o1);
    o2 = madd(query, s2, o2);
    o3 = madd(query, s3, o3);
    k += 4;
    q += 4;
  }
  v128.store(value, o0);
  v128.store(value, o1, 16);
  v128.store(value, o2, 32);
  v128.store(value, o3, 48);
}
