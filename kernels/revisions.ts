/**
 * Revisions of the devices' numerics: raised when a kernel's bits change, so that blocks computed with other bits are never matched
 * (E2).
 */

/** Revision of the wasm kernels' numerics: raise it when the order of a sum or a rounding changes. */
export const WASM_REVISION = 2;
/** Revision of the webgpu kernels' numerics: raise it when the order of a sum or a rounding changes. */
export const WEBGPU_REVISION = 1;

/** The numerics class of instances that may share blocks though their numerics differ; their kernels have the same revisions. */
export const MIXED_NUMERICS = `mixed/wasm-${WASM_REVISION}/webgpu-${WEBGPU_REVISION}`;
