/**
 * Collects the dispatches of a program's operations, then compiles and binds them once. Rows of buffers are padded to whole groups of
 * 32 values.
 */
import assert from 'node:assert/strict';
import type { LoadOptions } from '../device.ts';
import type { BufferSpec, Program } from '../program.ts';
import { widestMixture } from '../program_kinds.ts';
import { paddedInner } from '../weights/weight_format.ts';
import type { AttentionTiling } from './attention_tiling.ts';
import type { GpuMemory } from './gpu_memory.ts';
import type { GpuWeight } from './gpu_weights.ts';
import {
  packParams,
  PARAMS_STRIDE,
  type KernelCache,
  type KernelSpec,
  type Specialisation,
  type Uniform,
} from './kernel.ts';
import type { Capabilities } from './kernel_set.ts';
import { routingLayout, type RoutingLayout } from './routing.ts';
import { polled } from './polling.ts';
import type { AttendedTokens, GridCounts } from './step_state.ts';

type Grid = readonly [x: number, y: number, z: number];

/** One dispatch as a step encodes it. */
interface Launch {
  readonly pipeline: GPUComputePipeline;
  readonly bindGroup: GPUBindGroup;
  readonly grid: Grid;
}

/** Cost of one launch, for profiles and the submit budget: bytes that must be read, and operations (two for each multiply-add). */
interface KernelCost {
  readonly bytes: number;
  readonly flops: number;
}

/** One entry of a step's dispatch list. */
export interface Dispatch {
  /** Kernel and what it is for. */
  readonly label: string;
  /** Returns what to encode for a step with these counts; undefined when the step has no work for this dispatch. */
  readonly launch: (counts: GridCounts) => Launch | undefined;
  readonly work: (counts: GridCounts, attended: AttendedTokens) => KernelCost;
}

/** Encodes one dispatch into a compute pass; does nothing when the step has no work for it. */
export function encode(pass: GPUComputePassEncoder, launch: ReturnType<Dispatch['launch']>): void {
  if (!launch) return;
  pass.setPipeline(launch.pipeline);
  pass.setBindGroup(0, launch.bindGroup);
  pass.dispatchWorkgroups(...launch.grid);
}

/** A rope table on the device. */
export interface RopeAngles {
  /** Number of values of a head that the table rotates, and the distance of the two of a pair. */
  readonly dim: number;
  readonly pairDistance: number;
  readonly hasQueryFactors: boolean;
  /** [positions][dim / 2][cosine, sine] f32; with query factors, each position ends with [factor, 0] */
  readonly angles: GPUBuffer;
}

/** GPU objects and buffers that any dispatch of the list can bind. */
export interface Resources {
  readonly device: GPUDevice;
  readonly kernels: KernelCache;
  readonly capabilities: Capabilities;
  readonly weights: ReadonlyMap<string, GpuWeight>;
  readonly buffers: ReadonlyMap<string, GPUBuffer>;
  /** KV buffer of each layer, by layer index. */
  readonly kv: readonly GPUBuffer[];
  /** Recurrent states of each layer, [slots][layer bytes], by layer index; empty for a program without recurrent layers. */
  readonly states: readonly GPUBuffer[];
  /** Rope angles by the name of the rope table. */
  readonly rope: ReadonlyMap<string, RopeAngles>;
  readonly step: GPUBuffer;
  readonly parts: GPUBuffer;
  readonly partStats: GPUBuffer;
  readonly lists: GPUBuffer;
  readonly stats: GPUBuffer;
  readonly results: GPUBuffer;
  readonly exp2Table: GPUBuffer;
  /** State that the rounds of sampling pass on to each other; shaders/sampling.wgsl has the layout. */
  readonly sampleState: GPUBuffer;
  /** [samplerPages][vocab] u32 */
  readonly samplerPages: GPUBuffer;
  /** [maxSamples] u32 */
  readonly slots: GPUBuffer;
  /** Routing of the mixture that was routed last; routing.ts describes the layout. */
  readonly routing: GPUBuffer;
  /** Small buffer for bindings that a kernel does not use. */
  readonly none: GPUBuffer;
}

/**
 * Returns the values from one row of a buffer to the next: `width` rounded up to whole groups of 32, so that products have no tail to
 * handle. The padding stays zero.
 */
export function rowStride(width: number): number {
  return paddedInner(width);
}

/** Dispatch of one kernel, at most once per step. */
interface SimpleDispatch {
  /** Label in profiles; the kernel's name by default. */
  readonly label?: string;
  readonly spec: KernelSpec;
  readonly specialisation?: Specialisation;
  readonly params: Readonly<Record<string, number>>;
  readonly bindings: Readonly<Record<string, GPUBuffer>>;
  readonly grid: (counts: GridCounts) => Grid;
  readonly work: Dispatch['work'];
}

interface Planned {
  readonly spec: KernelSpec;
  readonly params: Readonly<Record<string, number>>;
  readonly make: (uniform: Uniform) => Promise<Dispatch>;
}

/** Builds the dispatch list of a program: operations add dispatches, `compile` makes their pipelines. */
export class DispatchPlan {
  readonly #program: Program;
  readonly options: LoadOptions;
  readonly resources: Resources;
  readonly #tiling: AttentionTiling | undefined;
  readonly #planned: Planned[] = [];

  constructor(program: Program, options: LoadOptions, resources: Resources, tiling: AttentionTiling | undefined) {
    this.#program = program;
    this.options = options;
    this.resources = resources;
    this.#tiling = tiling;
  }

  /** Number of dispatches added so far. */
  get numPlanned(): number {
    return this.#planned.length;
  }

  /** Compiles and binds everything that was planned. @throws DeviceError when the device is full. */
  async compile(memory: GpuMemory): Promise<Dispatch[]> {
    const bytes = Math.max(1, this.#planned.length) * PARAMS_STRIDE;
    const usage = GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST;
    const buffer = await memory.allocate('step', 'params', bytes, usage);
    const values = new DataView(new ArrayBuffer(bytes));
    const dispatches = this.#planned.map(({ spec, params, make }, i) => {
      packParams(spec, params, values, i * PARAMS_STRIDE);
      return make({ buffer, offset: i * PARAMS_STRIDE });
    });
    const made = await polled(Promise.all(dispatches));
    this.resources.device.queue.writeBuffer(buffer, 0, values.buffer);
    return made;
  }

  get routing(): RoutingLayout {
    return routingLayout(this.options.maxRows, widestMixture(this.#program));
  }

  get tiling(): AttentionTiling {
    assert(this.#tiling, 'attention comes with its tiling');
    return this.#tiling;
  }

  buffer(name: string): { readonly buffer: GPUBuffer; readonly spec: BufferSpec; readonly stride: number } {
    const [buffer, spec] = [this.resources.buffers.get(name), this.#program.buffers[name]];
    assert(buffer && spec, `the program has no buffer ${name}`);
    return { buffer, spec, stride: rowStride(spec.width) };
  }

  weight(name: string): GpuWeight {
    const weight = this.resources.weights.get(name);
    assert(weight, `the program has no weight ${name}`);
    return weight;
  }

  vector(name: string): GPUBuffer {
    const weight = this.weight(name);
    assert(weight.inner === 1, `${name} is no vector`);
    return weight.slices[0]!.data;
  }

  /** Returns the buffer of a vector, or the one that is bound where an operation has no such vector. */
  optionalVector(name: string | undefined): GPUBuffer {
    return name === undefined ? this.resources.none : this.vector(name);
  }

  kv(layer: number): GPUBuffer {
    const buffer = this.resources.kv[layer];
    assert(buffer, `the program has no KV of layer ${layer}`);
    return buffer;
  }

  /** Returns the states of a layer, [slots][layer bytes]. */
  states(layer: number): GPUBuffer {
    const buffer = this.resources.states[layer];
    assert(buffer, `the program was loaded without slots for the state of layer ${layer}`);
    return buffer;
  }

  rope(name: string): RopeAngles {
    const table = this.resources.rope.get(name);
    assert(table, `the program has no rope table ${name}`);
    return table;
  }

  /** Appends a dispatch; `make` builds it from its uniform, which is filled with `params`. */
  add(spec: KernelSpec, params: Readonly<Record<string, number>>, make: Planned['make']): void {
    this.#planned.push({ spec, params, make });
  }

  /** Appends a dispatch of one kernel. */
  push({ label, spec, specialisation = {}, params, bindings, grid, work }: SimpleDispatch): void {
    const { kernels } = this.resources;
    this.add(spec, params, async (uniform) => {
      const bindGroup = kernels.bind(spec, uniform, bindings);
      const pipeline = await kernels.pipeline(spec, specialisation);
      return {
        label: label ?? spec.name,
        work,
        launch: (counts) => {
          const size = grid(counts);
          return size[0] * size[1] * size[2] === 0 ? undefined : { pipeline, bindGroup, grid: size };
        },
      };
    });
  }
}
