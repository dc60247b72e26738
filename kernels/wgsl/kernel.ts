/**
 * A kernel is a WGSL file and the contract its caller keeps: which buffers it binds, in which order, which numbers its uniform
 * has, which constants specialise it.
 *
 * One declaration yields the bind-group layout and the uniform packing, so that no two of them can disagree. Convention:
 * binding 0 is the uniform `params`, binding i the i-th declared buffer, the entry point is the file name. `const NAME: u32` lines
 * are the specialisable constants, `alias NAME = type` lines the specialisable types: a compile replaces their values, so that
 * array sizes and loop bounds are known to the shader compiler. `uses` names WGSL files of what several kernels share, which are appended.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

type Scalar = 'f32' | 'u32';
type Element = Scalar | 'vec2f' | 'vec2u' | 'vec4f' | 'vec4u' | 'KvVector' | 'atomic';

/** Declaration of a kernel: its WGSL files, uniform fields, buffers in binding order, and constants. */
export interface KernelSpec {
  /** Names the WGSL file and its entry point. */
  readonly name: string;
  readonly uses?: readonly string[];
  /** WGSL text that is appended, made from a declaration that the host shares. */
  readonly text?: string;
  /** Fields of the uniform struct, in order; 4 bytes each. */
  readonly params: Readonly<Record<string, Scalar>>;
  readonly buffers: Readonly<Record<string, { readonly access: 'read' | 'read_write'; readonly dtype: Element }>>;
  /** Defaults of the constants. */
  readonly constants: Readonly<Record<string, number>>;
  readonly aliases?: Readonly<Record<string, string>>;
}

/** Values that a compile puts in place of a kernel's constants and types. */
export interface Specialisation {
  readonly constants?: Readonly<Record<string, number>>;
  readonly aliases?: Readonly<Record<string, string>>;
  /** Keeps `@subgroup_size`, which needs the feature subgroup-size-control; else a file that has it is compiled without. */
  readonly isSubgroupSizeAsked?: boolean;
}

/** Place of one dispatch's uniform in a buffer. */
export interface Uniform {
  readonly buffer: GPUBuffer;
  readonly offset: number;
}

/** Bytes from one dispatch's uniform to the next: the alignment that every adapter grants. */
export const PARAMS_STRIDE = 256;

/** Returns the URL of the WGSL file of a kernel or of a shared part. */
export function wgslUrl(name: string): URL {
  return new URL(`./shaders/${name}.wgsl`, import.meta.url);
}

/** The WGSL text with its constants and types in place. @throws AssertionError for a name that the file does not have. */
export function specialise(
  spec: KernelSpec,
  { constants = {}, aliases = {}, isSubgroupSizeAsked = false }: Specialisation,
): string {
  const files = [spec.name, ...(spec.uses ?? [])].map((name) => readFileSync(wgslUrl(name), 'utf8'));
  let code = [...files, ...(spec.text === undefined ? [] : [spec.text])].join('\n');
  const put = (pattern: RegExp, line: string): void => {
    assert(pattern.test(code), `${spec.name}.wgsl has no line like ${pattern.source}`);
    code = code.replace(pattern, line);
  };
  for (const [name, value] of Object.entries(constants)) {
    put(new RegExp(`^const ${name}: u32 = \\d+;$`, 'm'), `const ${name}: u32 = ${value};`);
  }
  // Remove the calls of bound(): Tint guards loops whose end is a call, and drivers unroll loops whose end they know.
  if ((constants['UNROLLED'] ?? 1) === 1) code = code.replace(/(?<!fn )\bbound\((\w+)\)/g, '$1');
  for (const [name, type] of Object.entries(aliases)) {
    put(new RegExp(`^alias ${name} = \\w+;$`, 'm'), `alias ${name} = ${type};`);
  }
  if (!isSubgroupSizeAsked) {
    code = code.replace(/^enable subgroup_size_control;\n/m, '').replace(/ @subgroup_size\(\w+\)/, '');
  }
  const needsF16 = Object.values(aliases).includes('f16') && !/^enable f16;$/m.test(code);
  return needsF16 ? `enable f16;\n${code}` : code;
}

/** Compiles each specialisation once. All specialisations of a kernel have the same layout, so that one bind group serves them all. */
export class KernelCache {
  readonly #device: GPUDevice;
  readonly #rewrite: ((name: string, code: string) => string) | undefined;
  readonly #layouts = new Map<string, GPUBindGroupLayout>();
  readonly #pipelines = new Map<string, Promise<GPUComputePipeline>>();

  /** `rewrite` is for tests: returns the WGSL to compile instead of a kernel's text. */
  constructor(device: GPUDevice, rewrite?: (name: string, code: string) => string) {
    this.#device = device;
    this.#rewrite = rewrite;
  }

  #layout(spec: KernelSpec): GPUBindGroupLayout {
    const layout =
      this.#layouts.get(spec.name) ??
      this.#device.createBindGroupLayout({
        label: spec.name,
        entries: [
          { binding: 0, visibility: GPUShaderStage.COMPUTE, buffer: { type: 'uniform' } },
          ...Object.values(spec.buffers).map(({ access }, i): GPUBindGroupLayoutEntry => ({
            binding: i + 1,
            visibility: GPUShaderStage.COMPUTE,
            buffer: { type: access === 'read' ? 'read-only-storage' : 'storage' },
          })),
        ],
      });
    this.#layouts.set(spec.name, layout);
    return layout;
  }

  /** Returns the pipeline of a specialisation, compiled at the first call. @throws AssertionError with the compiler's own messages. */
  pipeline(spec: KernelSpec, specialisation: Specialisation): Promise<GPUComputePipeline> {
    const id = `${spec.name} ${JSON.stringify(specialisation)}`;
    const pipeline = this.#pipelines.get(id) ?? this.#compile(spec, specialisation, id);
    this.#pipelines.set(id, pipeline);
    return pipeline;
  }

  async #compile(spec: KernelSpec, specialisation: Specialisation, label: string): Promise<GPUComputePipeline> {
    const device = this.#device;
    const code = specialise(spec, specialisation);
    const module = device.createShaderModule({ label, code: this.#rewrite?.(spec.name, code) ?? code });
    const { messages } = await module.getCompilationInfo();
    const errors = messages.filter(({ type }) => type === 'error');
    assert(
      errors.length === 0,
      `${label}: ${errors.map(({ lineNum, message }) => `line ${lineNum}: ${message}`).join('; ')}`,
    );
    return device.createComputePipelineAsync({
      label,
      layout: device.createPipelineLayout({ label, bindGroupLayouts: [this.#layout(spec)] }),
      compute: { module, entryPoint: spec.name },
    });
  }

  /** Makes the bind group of a kernel's uniform and buffers; called only at load. @throws AssertionError when a buffer is missing. */
  bind(spec: KernelSpec, uniform: Uniform, buffers: Readonly<Record<string, GPUBuffer>>): GPUBindGroup {
    return this.#device.createBindGroup({
      label: spec.name,
      layout: this.#layout(spec),
      entries: [
        { binding: 0, resource: { ...uniform, size: paramsBytes(spec) } },
        ...Object.keys(spec.buffers).map((key, i) => {
          const buffer = buffers[key];
          assert(buffer, `${spec.name}: ${key} is not bound`);
          return { binding: i + 1, resource: { buffer } };
        }),
      ],
    });
  }
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
