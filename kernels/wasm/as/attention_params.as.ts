/** Parameters of the attention kernels: one struct per layer, and one per tile of rows that are computed together. */

/**
 *   qkv   [rows][heads + 2 · kv_heads][head_dim] f32; out [rows][heads][head_dim] f32
 *   kv    plane K of this layer in block 0; plane V lies valueOffset after it (0: one plane for both); blocks are blockBytes apart
 */
// @ts-ignore: decorator
@unmanaged
export class AttentionParams {
  qkv: usize;
  qkvStride: usize;
  out: usize;
  outStride: usize;
  kv: usize;
  valueOffset: usize;
  keyTokenBytes: usize;
  valueTokenBytes: usize;
  blockBytes: usize;
  kvHeads: u32;
  /** Query heads of a KV head. */
  group: u32;
  headDim: u32;
  blockSize: u32;
  isF16: u32;
  /** Tokens that a row sees, its own included; 0: all. */
  window: u32;
  scale: f32;
  /** Soft cap: a scaled score s becomes cap · tanh(s / cap); 0: no cap. */
  cap: f32;
  /** [heads] f32: the sink of each head; 0: none. */
  sinks: usize;
  /** Weight of the norm of keys, where keys are computed from values; 0: K is stored. The rotary table is for these keys. */
  keyNorm: usize;
  cos: usize;
  sin: usize;
  rotaryDim: u32;
  pairDistance: u32;
}

/** Consecutive rows of one sequence. */
// @ts-ignore: decorator
@unmanaged
export class AttentionTile {
  row: u32;
  rows: u32;
  /** Position of the first row in its sequence. */
  position: u32;
  blockTable: usize;
}
