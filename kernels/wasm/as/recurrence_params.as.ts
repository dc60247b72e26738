/**
 * Parameters of the kernels of recurrent layers. A step names its segments (rows of one sequence each), the slot that each begins with, and
 * the slots in which its state is saved.
 *
 * Threads split segments, heads and columns, never sums (E2): the rows of a segment come in their order, so the bits do not depend on
 * where segments are cut. Strides are bytes.
 */

/** Rows of one sequence in a step. `from`: the slot with the state before them, -1 for the zero state. */
// @ts-ignore: decorator
@unmanaged
export class StateSegment {
  row: u32;
  rows: u32;
  from: i32;
  /** [numSaves][rows, slot] u32: after how many rows the state is saved, ascending, and where. */
  saves: usize;
  numSaves: u32;
}

/**
 *   x       [rows][channels and more] f32
 *   weight  f32 panels of eight channels, [taps][8]
 *   bias    [channels] f32; 0: none
 *   state   plane [taps - 1][channels] f32 of slot 0, the oldest input first; slots are slotBytes apart
 */
// @ts-ignore: decorator
@unmanaged
export class CausalConvParams {
  x: usize;
  xStride: usize;
  weight: usize;
  bias: usize;
  out: usize;
  outStride: usize;
  channels: u32;
  taps: u32;
  isActivated: u32;
  state: usize;
  slotBytes: usize;
}

/**
 * Parameters of the delta rule, and of the state space: its groups are key heads here, c is q, b is k, x is v, and a step is β.
 *
 *   qkv     [rows][keyHeads · keyDim of q, as many of k, valueHeads · valueDim of v] f32; q and k are normalised in place
 *   gates   [rows][valueHeads of b, as many of a] f32, which become β and the decay in place; a state space has no a
 *   aLog, dtBias  [valueHeads] f32
 *   skips   [valueHeads] f32, factors of v that are added to the outputs of a state space; 0: the delta rule
 *   state   plane [valueHeads][keyDim][valueDim] f32 of slot 0; slots are slotBytes apart
 */
// @ts-ignore: decorator
@unmanaged
export class DeltaRuleParams {
  qkv: usize;
  qkvStride: usize;
  gates: usize;
  gatesStride: usize;
  aLog: usize;
  dtBias: usize;
  skips: usize;
  out: usize;
  outStride: usize;
  keyHeads: u32;
  valueHeads: u32;
  keyDim: u32;
  valueDim: u32;
  /** Whether value head h belongs to key head h modulo keyHeads; else consecutive value heads have one key head. */
  isTiled: u32;
  epsilon: f32;
  leastStep: f32;
  mostStep: f32;
  state: usize;
  slotBytes: usize;
}

/**
 *   x       [rows][spans · width] f32
 *   gate    [rows][spans · width] f32
 *   weight  [width] f32, or [spans][width] with weightStride bytes from one span's to the next
 */
// @ts-ignore: decorator
@unmanaged
export class GatedNormParams {
  x: usize;
  xStride: usize;
  gate: usize;
  gateStride: usize;
  weight: usize;
  weightStride: usize;
  spans: u32;
  width: u32;
  epsilon: f32;
  isGateFirst: u32;
}
