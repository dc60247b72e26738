/** The module every thread instantiates over one shared memory. */
export { attention_tile } from './attention.as';
export { candidates } from './candidates.as';
export { linear } from './linear.as';
export { embed, gather, rms_norm, rope_store, silu_mul } from './rows.as';
