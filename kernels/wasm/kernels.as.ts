/** The module every thread instantiates over one shared memory. */
export { attention_merge, attention_span, attention_tile } from './attention.as';
export { candidates } from './candidates.as';
export { linear_float } from './linear_float.as';
export { linear_int } from './linear_int.as';
export { embed, pack_rows } from './pack.as';
export { is_fused, multiply_add_loop, multiply_add_loop_int, multiply_add_loop_int4, read_loop } from './peaks.as';
export { quantise } from './quantise.as';
export { gather, rms_norm, rope_store, silu_mul } from './rows.as';
