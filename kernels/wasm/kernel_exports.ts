/** Exports of the compiled kernels; `as/` documents each. Every thread has its own instance over one shared memory. */

/**
 * Functions that the compiled module exports. All addresses are byte offsets in the shared memory: `params` of an operation's struct,
 * `tile` of an attention tile, the others (`scratch`, `records`, `data`, ...) of regions that the caller owns. Ranges are half-open.
 */
export interface Kernels {
  embed(params: number, start: number, end: number): void;
  rms_norm(params: number, start: number, end: number): void;
  qk_norm(params: number, start: number, end: number): void;
  rope_store(params: number, start: number, end: number): void;
  silu_mul(params: number, start: number, end: number, first: number, last: number): void;
  gelu_mul(params: number, start: number, end: number, first: number, last: number): void;
  clamped_swiglu(params: number, start: number, end: number, first: number, last: number): void;
  mul(params: number, start: number, end: number, first: number, last: number): void;
  sigmoid_mul(params: number, start: number, end: number, first: number, last: number): void;
  /** Channels [first, last) of a segment, at most `CONV_CHANNELS`; `first` is a multiple of 8. `zeros`: room for that many f32. */
  causal_conv(params: number, segment: number, first: number, last: number, zeros: number): void;
  delta_inputs(params: number, start: number, end: number): void;
  space_steps(params: number, start: number, end: number): void;
  /** `STATE_COLUMNS` columns of a head's state. `scratch`: room for them over all keys, and for a row of them. */
  delta_rule(params: number, segment: number, head: number, tile: number, scratch: number): void;
  gated_norm(params: number, start: number, end: number): void;
  soft_cap(params: number, start: number, end: number, first: number, last: number): void;
  route(params: number, start: number, end: number): void;
  /** `scratch`: room for one f32 per expert, then one per group. */
  route_sigmoid(params: number, start: number, end: number, scratch: number): void;
  number_expert_slots(params: number, rows: number): void;
  permute(params: number, start: number, end: number): void;
  combine(params: number, start: number, end: number): void;
  gather(params: number, start: number, end: number): void;
  candidates(params: number, start: number, end: number): void;
  sample(params: number, start: number, end: number, scratch: number): void;
  /**
   * Quantises rows [first, first + rows) of a product's input into `quantised`. `last`: room for 32 f32, where the last inputs of a
   * row are padded with zeros. `instructions`: a code of products.ts, for `linear_int` the same.
   */
  quantise(params: number, first: number, rows: number, quantised: number, last: number, instructions: number): void;
  linear_float(
    params: number,
    first: number,
    rows: number,
    panelStart: number,
    panelEnd: number,
    scratch: number,
  ): void;
  linear_int(
    params: number,
    quantised: number,
    first: number,
    rows: number,
    panelStart: number,
    panelEnd: number,
    scratch: number,
    instructions: number,
  ): void;
  attention_tile(params: number, tile: number, kvHeadStart: number, kvHeadEnd: number, scratch: number): void;
  attention_span(
    params: number,
    tile: number,
    kvHeadStart: number,
    kvHeadEnd: number,
    span: number,
    records: number,
    scratch: number,
  ): void;
  attention_merge(
    params: number,
    tile: number,
    kvHead: number,
    records: number,
    numSpans: number,
    spanBytes: number,
    scratch: number,
  ): void;
  /** `scratch`: room for the rotated key, [rotary] f32. */
  latent_store(params: number, start: number, end: number, scratch: number): void;
  latent_tile(params: number, tile: number, headStart: number, headEnd: number, scratch: number): void;
  latent_span(
    params: number,
    tile: number,
    headStart: number,
    headEnd: number,
    span: number,
    partials: number,
    scratch: number,
  ): void;
  latent_merge(
    params: number,
    tile: number,
    head: number,
    partials: number,
    numSpans: number,
    spanBytes: number,
    scratch: number,
  ): void;
  /**
   * Packs rows of f32 (`source` 0), f16 (1) or bf16 (2) into the panels of a weight, from output `firstOutput` on. `room`: working
   * memory of `ROOM` bytes (quantised_values.as.ts).
   */
  pack_rows(
    source: number,
    values: number,
    format: number,
    rows: number,
    inner: number,
    weight: number,
    firstOutput: number,
    room: number,
  ): void;
  /**
   * Packs stored codes of a table into mxfp4 or iq4 panels: `source` 0 as weight_format.ts has them, 1 MXFP4 in pairs, 2 GGUF's MXFP4, 3
   * IQ4_NL, 4 IQ4_XS.
   */
  pack_codes(...args: Parameters<Kernels['pack_stored']>): void;
  /** Packs stored integers into int8 or int4 panels: `source` 0 int8 and 1 int4 as weight_format.ts has them, 2 Q8_0, 3 Q4_0. */
  pack_stored(
    format: number,
    source: number,
    data: number,
    dataRow: number,
    scales: number,
    scaleRow: number,
    rows: number,
    inner: number,
    weight: number,
    firstOutput: number,
  ): void;
  /** Packs stored integers into uint4 panels: `source` 1 int4 and 4 uint4 as weight_format.ts has them, 3 Q4_0, 5 Q4_1, 6 Q4_K. */
  pack_uint4(
    source: number,
    data: number,
    dataRow: number,
    scales: number,
    scaleRow: number,
    rows: number,
    inner: number,
    weight: number,
    firstOutput: number,
  ): void;
  /**
   * Packs `inputs` inputs of `rows` rows, out of `width` rows stored side by side, into int4 or uint4 panels: `source` 0 GPTQ, 1 AWQ;
   * `zeros` 0: none. `groupInputs` inputs share a scale; `data` begins `skip` inputs into the first group.
   */
  pack_columns(
    format: number,
    source: number,
    data: number,
    scales: number,
    zeros: number,
    width: number,
    rows: number,
    inputs: number,
    groupInputs: number,
    skip: number,
    inner: number,
    weight: number,
    firstOutput: number,
    firstInput: number,
  ): void;
  /** Returns the code of the instructions that add dot products of four bytes exactly, 0 where there are none. `scratch`: room for 32 bytes. */
  dot_instructions(scratch: number): number;
  /** Returns 1 when a multiply-add rounds once, else 0. `scratch`: room for 32 bytes. */
  is_fused(scratch: number): number;
  multiply_add_loop(iterations: number, scratch: number): void;
  multiply_add_loop_int(iterations: number, scratch: number): void;
  multiply_add_loop_int4(iterations: number, scratch: number): void;
  read_loop(start: number, end: number): void;
}

/** Kernels that compute each row by itself, those that native sets bring. */
export type RowKernels = Pick<Kernels, 'rms_norm' | 'silu_mul' | 'rope_store'>;

/** Kernels of attention. */
export type Attention = Pick<Kernels, 'attention_tile' | 'attention_span' | 'attention_merge'>;

/** Products of one thread, over one memory. Arguments are those of the kernels of the same names. */
export interface Products {
  /** Quantises rows of a product's input into the form that `multiply` reads, `Q_GROUP_BYTES` a group at most. */
  quantise(params: number, first: number, rows: number, quantised: number, last: number): void;
  /** Computes the outputs of panels [panelStart, panelEnd) for quantised rows; `scratch` has `productScratchBytes`. */
  multiply(
    params: number,
    quantised: number,
    first: number,
    rows: number,
    panelStart: number,
    panelEnd: number,
    scratch: number,
  ): void;
  /** Computes the outputs of panels [panelStart, panelEnd) with weights of f32 or f16. */
  readonly multiplyFloats: Kernels['linear_float'];
}

/** Returns a new instance of the kernels over a shared memory; each thread needs its own. */
export function instantiate(module: WebAssembly.Module, memory: WebAssembly.Memory): Kernels {
  return new WebAssembly.Instance(module, { env: { memory } }).exports as unknown as Kernels;
}
