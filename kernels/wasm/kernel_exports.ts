/** What the compiled kernels export. Every thread has its own instance over one shared memory. */

type Kernel = (...args: number[]) => number;

export type KernelExports = Readonly<
  Record<
    | 'attention_merge'
    | 'attention_span'
    | 'attention_tile'
    | 'candidates'
    | 'embed'
    | 'gather'
    | 'is_fused'
    | 'linear_float'
    | 'linear_int'
    | 'multiply_add_loop'
    | 'multiply_add_loop_int'
    | 'multiply_add_loop_int4'
    | 'pack_rows'
    | 'quantise'
    | 'read_loop'
    | 'rms_norm'
    | 'rope_store'
    | 'silu_mul',
    Kernel
  >
>;

export function instantiate(module: WebAssembly.Module, memory: WebAssembly.Memory): KernelExports {
  return new WebAssembly.Instance(module, { env: { memory } }).exports as unknown as KernelExports;
}
