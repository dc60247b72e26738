/**
 * A kernel is a WGSL file and the contract its caller keeps: which buffers it binds, in which order, which numbers vary per
 * step, which constants specialise it, how many workgroups it takes.
 *
 * One declaration yields the bind-group layout, the uniform packing and the dispatch grid, so that no two of them can disagree.
 * Convention: binding 0 is the uniform `params`, binding i is the i-th declared buffer, the entry point is the file name.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

type Scalar = 'f32' | 'u32';

export interface KernelSpec {
  /** Names the WGSL file and its entry point. */
  readonly name: string;
  /** Fields of the uniform struct, in order; 4 bytes each. */
  readonly params: Readonly<Record<string, Scalar>>;
  readonly buffers: Readonly<Record<string, { readonly access: 'read' | 'read_write'; readonly dtype: Scalar }>>;
  /** Defaults for the WGSL `override`s. */
  readonly constants: Readonly<Record<string, number>>;
}

/** Bytes from one kernel's uniform to the next: the alignment that every adapter grants. */
export const PARAMS_STRIDE = 256;

export function wgslUrl(name: string): URL {
  return new URL(`./${name}.wgsl`, import.meta.url);
}

export interface CompiledKernel {
  readonly spec: KernelSpec;
  readonly pipeline: GPUComputePipeline;
  /** Made once at load; `paramsOffset` is where this use's uniform lies in `params`. */
  bind(params: GPUBuffer, paramsOffset: number, buffers: Readonly<Record<string, GPUBuffer>>): GPUBindGroup;
}

const STAGE_COMPUTE = 4;

/** @throws Error with the compiler's own messages. */
export async function compileKernel(
  device: GPUDevice,
  spec: KernelSpec,
  constants: Readonly<Record<string, number>>,
): Promise<CompiledKernel> {
  const { name } = spec;
  const names = Object.keys(spec.buffers);
  const layout = device.createBindGroupLayout({
    label: name,
    entries: [
      { binding: 0, visibility: STAGE_COMPUTE, buffer: { type: 'uniform' } },
      ...Object.values(spec.buffers).map(({ access }, i): GPUBindGroupLayoutEntry => ({
        binding: i + 1,
        visibility: STAGE_COMPUTE,
        buffer: { type: access === 'read' ? 'read-only-storage' : 'storage' },
      })),
    ],
  });
  const module = device.createShaderModule({ label: name, code: readFileSync(wgslUrl(name), 'utf8') });
  const { messages } = await module.getCompilationInfo();
  const errors = messages.filter(({ type }) => type === 'error');
  assert(
    errors.length === 0,
    `${name}.wgsl: ${errors.map(({ lineNum, message }) => `line ${lineNum}: ${message}`).join('; ')}`,
  );
  const pipeline = await device.createComputePipelineAsync({
    label: name,
    layout: device.createPipelineLayout({ label: name, bindGroupLayouts: [layout] }),
    compute: { module, entryPoint: name, constants: { ...spec.constants, ...constants } },
  });
  return {
    spec,
    pipeline,
    bind: (params, paramsOffset, buffers) =>
      device.createBindGroup({
        label: name,
        layout,
        entries: [
          { binding: 0, resource: { buffer: params, offset: paramsOffset, size: paramsBytes(spec) } },
          ...names.map((key, i) => {
            const buffer = buffers[key];
            assert(buffer, `${name}: ${key} is not bound`);
            return { binding: i + 1, resource: { buffer } };
          }),
        ],
      }),
  };
}

/** The struct's size: every field is a 4-byte scalar, so it has no holes; it rounds up to 16. */
function paramsBytes({ params }: KernelSpec): number {
  return Math.ceil((Object.keys(params).length * 4) / 16) * 16;
}

/** Writes the uniform of one use. @throws AssertionError when a field is missing. */
export function packParams(
  spec: KernelSpec,
  values: Readonly<Record<string, number>>,
  into: DataView,
  offset: number,
): void {
  Object.entries(spec.params).forEach(([field, dtype], i) => {
    const value = values[field];
    assert(value !== undefined, `${spec.name}: param ${field} is missing`);
    if (dtype === 'f32') into.setFloat32(offset + i * 4, value, true);
    else into.setUint32(offset + i * 4, value, true);
  });
}
