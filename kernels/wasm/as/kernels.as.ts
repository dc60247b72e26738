/** The module every thread instantiates over one shared memory. */
export { attention_merge, attention_span, attention_tile, SPAN } from './attention.as';
export { candidates } from './candidates.as';
export { causal_conv, CONV_CHANNELS } from './causal_conv.as';
export { delta_inputs, delta_rule, space_steps, STATE_COLUMNS } from './delta_rule.as';
export { sample } from './sample.as';
export { embed } from './embed.as';
export { dot_instructions } from './instructions.as';
export { latent_merge, latent_span, latent_tile } from './latent_attention.as';
export { latent_store } from './latent_store.as';
export { gated_norm } from './gated_norm.as';
export { clamped_swiglu, gelu_mul, mul, sigmoid_mul, silu_mul } from './gates.as';
// One function for each format: the optimiser would put what is not exported into its only caller, and V8 keeps fewer values of a function
// of all formats in registers, which made dot products a fifth to a third slower.
export { dot_tiles_int4, dot_tiles_int8, dot_tiles_int8_signed, dot_tiles_iq4, dot_tiles_iq4_signed, dot_tiles_mxfp4, dot_tiles_uint4 } from './linear_dot.as';
export { dot_row_int4, dot_row_int8, dot_row_int8_signed, dot_row_iq4, dot_row_iq4_signed, dot_row_mxfp4, dot_row_uint4 } from './linear_dot_row.as';
export { linear_float, SLICE } from './linear_float.as';
export { linear_int, SLICE_GROUPS } from './linear_int.as';
export { combine, number_expert_slots, permute, route } from './mixture.as';
export { pack_stored } from './pack.as';
export { pack_rows } from './pack_floats.as';
export { pack_codes } from './pack_codes.as';
export { pack_columns } from './pack_columns.as';
export { pack_uint4 } from './pack_uint4.as';
export { INT4_GROUP, INT8_GROUP, IQ4_GROUP, MXFP4_GROUP, ROW_BLOCK, UINT4_GROUP } from './panels.as';
export { route_sigmoid } from './route_sigmoid.as';
export { is_fused, multiply_add_loop, multiply_add_loop_int, multiply_add_loop_int4, read_loop } from './peaks.as';
export { Q_GROUP_BYTES, quantise } from './quantise.as';
export { gather, qk_norm, rms_norm, rope_store, soft_cap } from './rows.as';
