/** The module every thread instantiates over one shared memory. */
export { attention_merge, attention_span, attention_tile, SPAN } from './attention.as';
export { candidates } from './candidates.as';
export { sample } from './sample.as';
export { embed } from './embed.as';
export { gelu_mul, silu_mul } from './gates.as';
export { linear_float, SLICE } from './linear_float.as';
export { linear_int, SLICE_GROUPS } from './linear_int.as';
export { combine, number_expert_slots, permute, route } from './mixture.as';
export { pack_stored } from './pack.as';
export { pack_rows } from './pack_floats.as';
export { pack_columns } from './pack_columns.as';
export { pack_uint4 } from './pack_uint4.as';
export { INT4_GROUP, INT8_GROUP, ROW_BLOCK, UINT4_GROUP } from './panels.as';
export { is_fused, multiply_add_loop, multiply_add_loop_int, multiply_add_loop_int4, read_loop } from './peaks.as';
export { Q_GROUP_BYTES, quantise } from './quantise.as';
export { gather, qk_norm, rms_norm, rope_store, soft_cap } from './rows.as';
