/**
 * The `webgpu` device: a program as WGSL kernels, one submit per step, bind groups and pipelines made at load.
 *
 * This version has three operations (rms_norm, linear, attention); a program with another one is refused by name. KV lies in
 * the device as records have it, so import and export are copies.
 */
import assert from 'node:assert/strict';
import { create, globals } from 'webgpu';
import {
  DeviceError,
  kvBlockBytes,
  type Device,
  type Executable,
  type LoadOptions,
  type Operation,
  type Program,
  type SampleResult,
  type Segment,
  type WeightSource,
} from '../device.ts';
import { compileKernel, packParams, PARAMS_STRIDE, type CompiledKernel, type KernelSpec } from './kernel.ts';
import { matvec } from './matvec.ts';
import { pagedAttention } from './paged_attention.ts';
import { rmsNorm } from './rms_norm.ts';

Object.assign(globalThis, globals);

/** Dawn aborts if the instance is collected before its devices, so the module holds it. */
let gpu: GPU | undefined;

/** Above 4 MiB Dawn makes a staging buffer per write. */
const UPLOAD_BYTES = 4 << 20;

/**
 * @param adapterName part of the adapter's name or vendor, for instance `llvmpipe`; empty takes the system's choice.
 * @throws DeviceError when there is no such adapter.
 */
export async function createWebgpuDevice(adapterName = ''): Promise<Device> {
  gpu ??= create(adapterName === '' ? [] : [`adapter=${adapterName}`]);
  const adapter = await gpu.requestAdapter();
  if (!adapter) {
    throw new DeviceError(
      `no WebGPU adapter ${adapterName}: install a Vulkan driver (mesa-vulkan-drivers 25 or later for llvmpipe)`,
    );
  }
  const { maxStorageBufferBindingSize, maxBufferSize } = adapter.limits;
  const device = await adapter.requestDevice({ requiredLimits: { maxStorageBufferBindingSize, maxBufferSize } });
  const { vendor, architecture, device: model, description } = adapter.info;
  return {
    kind: 'webgpu',
    description: `webgpu (${[vendor, architecture, model, description].filter(Boolean).join(' ')})`,
    numericsClass: `webgpu/${vendor}/${architecture}/plain/w-f32`,
    load: (program, weights, options) => load(device, program, weights, options),
  };
}

/** One operation, ready to be dispatched. */
interface Dispatch {
  readonly kernel: CompiledKernel;
  readonly bindGroup: GPUBindGroup;
  readonly paramsOffset: number;
  readonly params: Readonly<Record<string, number>>;
  readonly grid: (numRows: number) => readonly [number, number, number];
}

interface Resources {
  readonly device: GPUDevice;
  readonly buffers: ReadonlyMap<string, { readonly buffer: GPUBuffer; readonly width: number }>;
  readonly weights: ReadonlyMap<string, GPUBuffer>;
  readonly kv: GPUBuffer;
  readonly table: GPUBuffer;
  readonly rows: GPUBuffer;
  readonly none: GPUBuffer;
  readonly params: GPUBuffer;
}

async function load(
  device: GPUDevice,
  program: Program,
  source: WeightSource,
  options: LoadOptions,
): Promise<Executable> {
  const storage = (label: string, bytes: number): GPUBuffer =>
    device.createBuffer({
      label,
      size: Math.max(16, Math.ceil(bytes / 4) * 4),
      usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST,
    });
  const blockBytes = program.attention ? kvBlockBytes(program.attention, options.blockSize, options.kvDtype) : 0;
  const weights = new Map<string, GPUBuffer>();
  for (const [name, { outputs, inner, parts }] of Object.entries(program.weights)) {
    const buffer = storage(name, outputs * inner * 4);
    weights.set(name, buffer);
    let firstOutput = 0;
    for (const part of parts) {
      for await (const { rowStart, values } of source.slices(part.tensor)) {
        upload(device, buffer, (firstOutput + rowStart) * inner * 4, values);
      }
      firstOutput += part.outputs;
    }
  }
  const resources: Resources = {
    device,
    weights,
    buffers: new Map(
      Object.entries(program.buffers).map(([name, { rows, width }]) => [
        name,
        { width, buffer: storage(name, (rows === 'rows' ? options.maxRows : options.maxSamples) * width * 4) },
      ]),
    ),
    kv: storage('kv', blockBytes * options.numBlocks),
    table: storage('table', options.maxRows * options.maxBlocksPerSequence * 4),
    rows: storage('rows', options.maxRows * 8),
    none: storage('none', 16),
    params: device.createBuffer({
      label: 'params',
      size: program.operations.length * PARAMS_STRIDE,
      usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST,
    }),
  };
  const compiled = new Map<string, CompiledKernel>();
  const dispatches: Dispatch[] = [];
  for (const [i, op] of program.operations.entries()) {
    const plan = planOperation(op, program, options, resources, blockBytes);
    const id = `${plan.spec.name} ${JSON.stringify(plan.constants)}`;
    const kernel = compiled.get(id) ?? (await compileKernel(device, plan.spec, plan.constants));
    compiled.set(id, kernel);
    const paramsOffset = i * PARAMS_STRIDE;
    dispatches.push({
      ...plan,
      kernel,
      paramsOffset,
      bindGroup: kernel.bind(resources.params, paramsOffset, plan.bindings),
    });
  }
  return new WebgpuExecutable(resources, dispatches, options, blockBytes);
}

function upload(device: GPUDevice, buffer: GPUBuffer, offset: number, values: Float32Array): void {
  for (let at = 0; at < values.byteLength; at += UPLOAD_BYTES) {
    const count = Math.min(UPLOAD_BYTES, values.byteLength - at);
    device.queue.writeBuffer(buffer, offset + at, values.buffer, values.byteOffset + at, count);
  }
}

interface Plan {
  readonly spec: KernelSpec;
  readonly constants: Readonly<Record<string, number>>;
  readonly params: Readonly<Record<string, number>>;
  readonly bindings: Readonly<Record<string, GPUBuffer>>;
  readonly grid: (numRows: number) => readonly [number, number, number];
}

function planOperation(
  op: Operation,
  program: Program,
  options: LoadOptions,
  resources: Resources,
  blockBytes: number,
): Plan {
  const buffer = (name: string): { buffer: GPUBuffer; width: number } => {
    const found = resources.buffers.get(name);
    assert(found, `the program has no buffer ${name}`);
    return found;
  };
  const weight = (name: string): GPUBuffer => {
    const found = resources.weights.get(name);
    assert(found, `the program has no weight ${name}`);
    return found;
  };
  switch (op.kind) {
    case 'rms_norm': {
      const [x, out] = [buffer(op.x), buffer(op.out)];
      return {
        spec: rmsNorm,
        constants: {},
        params: { rows: options.maxRows, hidden: x.width, epsilon: op.epsilon },
        bindings: { x: x.buffer, weight: weight(op.weight), out: out.buffer },
        grid: (numRows) => [numRows, 1, 1],
      };
    }
    case 'linear': {
      const [x, out] = [buffer(op.x), buffer(op.out)];
      const spec = program.weights[op.weight];
      assert(spec, `the program has no weight ${op.weight}`);
      const limit = resources.device.limits.maxComputeWorkgroupsPerDimension;
      const gridX = Math.min(spec.outputs, limit);
      return {
        spec: matvec,
        constants: {},
        params: {
          outputs: spec.outputs,
          inner: spec.inner,
          x_width: x.width,
          out_width: out.width,
          has_bias: op.bias === undefined ? 0 : 1,
          is_accumulating: op.accumulate ? 1 : 0,
          grid_x: gridX,
        },
        bindings: {
          x: x.buffer,
          weight: weight(op.weight),
          bias: op.bias === undefined ? resources.none : weight(op.bias),
          out: out.buffer,
        },
        grid: (numRows) => [gridX, numRows, Math.ceil(spec.outputs / gridX)],
      };
    }
    case 'attention': {
      const shape = program.attention;
      assert(shape, "attention needs the program's attention shape");
      const [qkv, out] = [buffer(op.qkv), buffer(op.out)];
      const { heads, kvHeads, headDim, layers } = shape;
      return {
        spec: pagedAttention,
        constants: { BLOCK_SIZE: options.blockSize, HEAD_DIM: headDim, KV_F16: options.kvDtype === 'f16' ? 1 : 0 },
        params: {
          heads,
          kv_heads: kvHeads,
          qkv_width: qkv.width,
          table_width: options.maxBlocksPerSequence,
          block_words: blockBytes / 4,
          plane_words: blockBytes / 4 / layers / 2,
          layer: op.layer,
          scale: op.scale,
        },
        bindings: { qkv: qkv.buffer, kv: resources.kv, table: resources.table, rows: resources.rows, out: out.buffer },
        grid: (numRows) => [heads, numRows, 1],
      };
    }
    case 'embed':
    case 'rope_store':
    case 'silu_mul':
    case 'gather_samples':
    case 'candidates':
      throw new DeviceError(`webgpu: the operation ${op.kind} has no kernel in this version; use --device wasm`);
  }
}

class WebgpuExecutable implements Executable {
  readonly blockBytes: number;
  readonly #resources: Resources;
  readonly #dispatches: readonly Dispatch[];
  readonly #options: LoadOptions;

  constructor(resources: Resources, dispatches: readonly Dispatch[], options: LoadOptions, blockBytes: number) {
    this.blockBytes = blockBytes;
    this.#resources = resources;
    this.#dispatches = dispatches;
    this.#options = options;
    // Nothing in the uniforms varies per step here: they are written once.
    const params = new DataView(new ArrayBuffer(dispatches.length * PARAMS_STRIDE));
    for (const dispatch of dispatches) packParams(dispatch.kernel.spec, dispatch.params, params, dispatch.paramsOffset);
    resources.device.queue.writeBuffer(resources.params, 0, params.buffer);
  }

  async run(batch: readonly Segment[]): Promise<SampleResult[]> {
    const { device, rows, table } = this.#resources;
    const { maxRows, maxBlocksPerSequence } = this.#options;
    const numRows = batch.reduce((sum, { tokens }) => sum + tokens.length, 0);
    assert(numRows <= maxRows, `a step takes at most ${maxRows} rows`);
    const rowState = new Uint32Array(numRows * 2);
    const tables = new Uint32Array(batch.length * maxBlocksPerSequence);
    let row = 0;
    batch.forEach(({ tokens, start, blockTable }, sequence) => {
      tables.set(Array.from(blockTable), sequence * maxBlocksPerSequence);
      for (let i = 0; i < tokens.length; i++, row++) rowState.set([start + i, sequence], row * 2);
    });
    device.queue.writeBuffer(rows, 0, rowState);
    device.queue.writeBuffer(table, 0, tables);
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    for (const { kernel, bindGroup, grid } of this.#dispatches) {
      pass.setPipeline(kernel.pipeline);
      pass.setBindGroup(0, bindGroup);
      pass.dispatchWorkgroups(...grid(numRows));
    }
    pass.end();
    device.queue.submit([encoder.finish()]);
    await device.queue.onSubmittedWorkDone();
    return [];
  }

  async #readBack(buffer: GPUBuffer, offset: number, bytes: number): Promise<ArrayBuffer> {
    const { device } = this.#resources;
    const staging = device.createBuffer({ size: bytes, usage: GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ });
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(buffer, offset, staging, 0, bytes);
    device.queue.submit([encoder.finish()]);
    await staging.mapAsync(GPUMapMode.READ);
    const copy = staging.getMappedRange().slice(0);
    staging.destroy();
    return copy;
  }

  async exportBlock(blockId: number, out: Uint8Array): Promise<void> {
    out.set(new Uint8Array(await this.#readBack(this.#resources.kv, blockId * this.blockBytes, this.blockBytes)));
  }

  importBlock(blockId: number, payload: Uint8Array): Promise<void> {
    // writeBuffer takes no view of shared memory.
    const bytes = payload.slice(0, this.blockBytes);
    this.#resources.device.queue.writeBuffer(
      this.#resources.kv,
      blockId * this.blockBytes,
      bytes.buffer,
      bytes.byteOffset,
      bytes.byteLength,
    );
    return Promise.resolve();
  }

  #buffer(name: string): { buffer: GPUBuffer; width: number } {
    const found = this.#resources.buffers.get(name);
    if (!found) throw new DeviceError(`the program has no buffer ${name}`);
    return found;
  }

  write(name: string, values: Float32Array): Promise<void> {
    upload(this.#resources.device, this.#buffer(name).buffer, 0, values);
    return Promise.resolve();
  }

  async read(name: string, numRows: number): Promise<Float32Array> {
    const { buffer, width } = this.#buffer(name);
    return new Float32Array(await this.#readBack(buffer, 0, numRows * width * 4));
  }

  async close(): Promise<void> {
    await this.#resources.device.queue.onSubmittedWorkDone();
    this.#resources.device.destroy();
  }
}
