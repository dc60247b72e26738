/**
 * The `webgpu` device: a program as WGSL kernels on any GPU, through the `webgpu` package (Dawn).
 *
 *   adapter ─► device ─► load: weights streamed, buffers, KV blocks in what is left, pipelines and bind groups ─► executable
 *
 * KV lies in one buffer per layer, [block][plane][token][kv_head][head_dim]: the layers of a block are gathered into
 * a record when the block is exported, and scattered when it is imported.
 */
import { DeviceError, type Device, type LoadOptions, type ProbeOptions, type WeightSource } from '../device.ts';
import type { Program } from '../program.ts';
import { MIXED_NUMERICS, WEBGPU_REVISION } from '../revisions.ts';
import { listAdapters, openAdapter, selectAdapter, type AdapterListing, type OpenAdapter } from './adapters.ts';
import type { MemoryNeeds, MemoryRoom } from '../memory_needs.ts';
import { GpuMemory, memoryRoom } from './gpu_memory.ts';
import { KernelCache } from './kernel.ts';
import type { Capabilities, KernelSet } from './kernel_set.ts';
import { matrixChoice, nameOf, rightMatrices, type MatrixChoice, type MatrixUse } from './matrix_units.ts';
import { measurePeaks, type Peaks } from './peaks.ts';
import type { Room } from './memory_fit.ts';
import { loadProgram } from './program_loader.ts';
import { memoryNeeds } from './program_memory.ts';
import { findUnequalRows, type ProbeFindings } from './row_probe.ts';
import { polled } from './polling.ts';
import type { WebgpuExecutable } from './webgpu_executable.ts';

const FEATURES = ['shader-f16', 'subgroups', 'subgroup-size-control', 'chromium-experimental-subgroup-matrix'] as const;
/** Workgroup memory in bytes: what the kernels need at least, which every desktop GPU has, and the most that the largest kernel uses. */
const MIN_WORKGROUP_BYTES = 32_768;
const MAX_WORKGROUP_BYTES = 49_152;

/** Options of a webgpu device. */
export interface WebgpuOptions {
  /** Empty for the first hardware adapter, an index, or part of a name. */
  readonly adapter: string;
  readonly kernelSet: KernelSet;
  /** Bytes of device memory to use; 0 to find out how much is free. */
  readonly memoryBytes: number;
  /** Number of engines that share the device's memory; 1 by default. */
  readonly numSharing?: number;
  /** For tests: features that the device is made without. */
  readonly withoutFeatures?: readonly string[];
  /** For tests: matrix units that the adapter does not have. */
  readonly pretendedMatrix?: MatrixUse;
  /** For tests: a software adapter gets the kernels of a real one. */
  readonly isTreatedAsHardware?: boolean;
  /**
   * For tests: opens a software adapter without Dawn's bounds checks, so that a validation layer can find indexes that are out of
   * bounds.
   */
  readonly isUnguarded?: boolean;
  /** For tests: returns the WGSL to compile for the kernel `name` instead of `code`. */
  readonly rewriteWgsl?: (name: string, code: string) => string;
  /** For benchmark sweeps: replaces the chosen shape of the kernels for few rows. */
  readonly vectorShape?: Capabilities['vectorShape'];
  /** For tests: maximum bytes of a weight slice, as if a binding held no more. */
  readonly maxSliceBytes?: number;
}

/** A {@link Device} on a GPU, with what benchmarks and tests need besides. */
export interface WebgpuDevice extends Device {
  readonly capabilities: Capabilities;
  /** Smallest and largest subgroup size; 0 where the driver does not report them. */
  readonly subgroupSizes: readonly [number, number];
  /** Measures the device's peak rates, for benchmarks. `nowMs` is a steady clock. */
  peaks(nowMs: () => number): Promise<Peaks>;
  /** Loads a program as {@link Device} does, with an executable that can be profiled. */
  load(program: Program, weights: WeightSource, options: LoadOptions): Promise<WebgpuExecutable>;
}

/**
 * Opens the adapter that the options name, and a device on it. @throws DeviceError when there is no such adapter, or it lacks what the
 * kernels need.
 */
export async function createWebgpuDevice(options: WebgpuOptions): Promise<WebgpuDevice> {
  const listing = selectAdapter(await listAdapters(), options.adapter);
  const isGuarded = isTreatedAsSoftware(listing, options) && options.isUnguarded !== true;
  return createDeviceOn(await openAdapter(listing, isGuarded), options);
}

function isTreatedAsSoftware({ isSoftware }: AdapterListing, { isTreatedAsHardware }: WebgpuOptions): boolean {
  return isSoftware && isTreatedAsHardware !== true;
}

/**
 * Makes a device on an opened adapter; tries the adapter's matrix units first if the kernel set may use them. @throws DeviceError when
 * the adapter lacks what the kernels need.
 */
export async function createDeviceOn(opened: OpenAdapter, options: WebgpuOptions): Promise<WebgpuDevice> {
  const { adapter, listing } = opened;
  const { limits, features, info } = adapter;
  if (limits.maxComputeWorkgroupStorageSize < MIN_WORKGROUP_BYTES) {
    throw new DeviceError(
      `the adapter ${listing.name} has ${limits.maxComputeWorkgroupStorageSize} bytes of workgroup memory, the kernels need ${MIN_WORKGROUP_BYTES}`,
    );
  }
  // Request all of the adapter's workgroup memory, up to what the largest kernel can use.
  const workgroupBytes = Math.min(limits.maxComputeWorkgroupStorageSize, MAX_WORKGROUP_BYTES);
  const withoutFeatures = new Set(options.withoutFeatures);
  const wanted = FEATURES.filter((feature) => features.has(feature) && !withoutFeatures.has(feature));
  const device = await polled(
    adapter.requestDevice({
      requiredFeatures: wanted as GPUFeatureName[],
      requiredLimits: {
        maxStorageBufferBindingSize: limits.maxStorageBufferBindingSize,
        maxBufferSize: limits.maxBufferSize,
        maxComputeWorkgroupStorageSize: workgroupBytes,
      },
    }),
  );
  const has = (feature: (typeof FEATURES)[number]): boolean => wanted.includes(feature);
  const capabilities: Capabilities = {
    set: options.kernelSet,
    hasSubgroups: has('subgroups'),
    hasF16: has('shader-f16'),
    isSoftware: isTreatedAsSoftware(listing, options),
    matrix: undefined,
    workgroupBytes,
    vectorShape: options.vectorShape,
  };
  // The trials share this cache with the final device, so that no kernel is compiled twice.
  const kernels = new KernelCache(device, options.rewriteWgsl);
  const gpu = (matrix: MatrixUse | undefined, notes: readonly string[] = []): Gpu => {
    const set = options.kernelSet === 'matrices' && !matrix ? 'deterministic' : options.kernelSet;
    return new Gpu(device, kernels, listing, info, { ...capabilities, set, matrix }, options, notes);
  };
  const plain = gpu(undefined);
  if (options.kernelSet === 'deterministic') return plain;
  const { uses, note } = matricesOf(opened, options);
  if (uses.length === 0) {
    const none =
      options.kernelSet === 'matrices' ? ['it has no matrix units: the deterministic kernel set is used instead'] : [];
    return gpu(undefined, note === undefined ? none : [note]);
  }
  device.pushErrorScope('validation');
  const found = await rightMatrices(uses, plain.load.bind(plain), (use) => {
    const withMatrices = gpu(use);
    return withMatrices.load.bind(withMatrices);
  });
  await polled(device.popErrorScope());
  const made = gpu(found.use, found.note === undefined ? [] : [found.note]);
  if (found.fault !== undefined) made.blame(found.fault);
  return made;
}

function matricesOf(opened: OpenAdapter, { pretendedMatrix, withoutFeatures = [] }: WebgpuOptions): MatrixChoice {
  if (pretendedMatrix) return { uses: [pretendedMatrix], note: undefined };
  return withoutFeatures.length === 0 ? matrixChoice(opened) : { uses: [], note: undefined };
}

class Gpu implements WebgpuDevice {
  readonly kind = 'webgpu';
  readonly mixedNumericsClass = MIXED_NUMERICS;
  readonly #info: GPUAdapterInfo;
  #capabilities: Capabilities;
  #areRowsUnequal = false;
  #fault: string | undefined;
  readonly lost: Promise<string>;
  readonly #notes: string[];
  readonly #device: GPUDevice;
  readonly #listing: AdapterListing;
  readonly #options: WebgpuOptions;
  readonly subgroupSizes: readonly [number, number];
  readonly #kernels: KernelCache;
  #lostReason: string | undefined;

  constructor(
    device: GPUDevice,
    kernels: KernelCache,
    listing: AdapterListing,
    info: GPUAdapterInfo & { readonly subgroupMinSize?: number; readonly subgroupMaxSize?: number },
    capabilities: Capabilities,
    options: WebgpuOptions,
    notes: readonly string[],
  ) {
    this.#notes = [...notes];
    const { subgroupMinSize = 0, subgroupMaxSize = 0 } = info;
    this.#info = info;
    this.#capabilities = capabilities;
    this.#device = device;
    this.#listing = listing;
    this.#options = options;
    this.subgroupSizes = [subgroupMinSize, subgroupMaxSize];
    this.#kernels = kernels;
    // An error that no scope took would mean stale results: the device cannot be trusted with another step.
    const failed = new Promise<string>((resolve) => {
      device.addEventListener('uncapturederror', ({ error }) => {
        resolve(error.message);
      });
    });
    const gone = device.lost.then(({ reason, message }) => message || reason);
    this.lost = Promise.race([failed, gone]).then((reason) => (this.#lostReason ??= reason));
  }

  get capabilities(): Capabilities {
    return this.#capabilities;
  }

  get description(): string {
    const { set, matrix } = this.#capabilities;
    const matrices = matrix && set !== 'deterministic' ? `, matrices ${nameOf(matrix)}` : '';
    return `webgpu (${this.#listing.name}, ${this.#listing.backend}, ${set} kernels${matrices})`;
  }

  /**
   * Numerics class of the adapter, its driver version (in `info.description`) and the kernel set: another driver version may reorder
   * or contract arithmetic, so it computes other bits.
   */
  get numericsClass(): string {
    const { vendor, architecture, description } = this.#info;
    const { set, matrix } = this.#capabilities;
    // The fast set's bits changed without a revision of the others.
    const own =
      set === 'matrices' && matrix ? `${set}-${matrix.M}-${matrix.N}-${matrix.K}` : set === 'fast' ? 'fast-2' : set;
    const rows = this.#areRowsUnequal ? ['unequal-rows'] : [];
    return [`webgpu-${WEBGPU_REVISION}`, vendor, architecture, own, description, ...rows].join('/');
  }

  /** Reason why the device's results cannot be trusted; undefined while no check has failed. */
  get fault(): string | undefined {
    return this.#fault;
  }

  /** Marks the device as one that computes wrongly: sets `fault`, unless it is set already, and adds a note. */
  blame(fault: string): void {
    this.#fault ??= fault;
    this.#notes.push(fault);
  }

  get notes(): readonly string[] {
    return this.#notes;
  }

  async checkRows(program: Program, options: ProbeOptions): Promise<void> {
    if (this.#capabilities.set === 'fast' || this.#areRowsUnequal) return;
    const find = (): Promise<ProbeFindings> =>
      findUnequalRows(this.load.bind(this), program, options, this.#capabilities.isSoftware);
    let { unequal, fault } = await find();
    if (unequal !== undefined && this.#capabilities.set === 'matrices') {
      this.#notes.push(`its matrix units are not used: ${unequal}`);
      this.#capabilities = { ...this.#capabilities, set: 'deterministic' };
      ({ unequal, fault } = await find());
    }
    if (fault !== undefined) this.blame(`its results cannot be used: ${fault}`);
    if (unequal === undefined) return;
    this.#areRowsUnequal = true;
    this.#notes.push(
      `a token's bits depend on the other rows of its step (E2 does not hold): ${unequal}; separate prefill and decode instances may emit other tokens than a single process`,
    );
  }

  /** Loses the device as a driver reset does, for fault injection and tests. */
  destroy(): void {
    this.#device.destroy();
  }

  peaks(nowMs: () => number): Promise<Peaks> {
    return measurePeaks(this.#device, this.#kernels, this.capabilities.isSoftware, nowMs);
  }

  needs(program: Program, options: LoadOptions): MemoryNeeds {
    const { maxBytes } = new GpuMemory(this.#device);
    return memoryNeeds(program, options, { isSoftware: this.#capabilities.isSoftware, maxBytes });
  }

  room({ min, max }: LoadOptions['numBlocks']): Promise<MemoryRoom> {
    return memoryRoom(this.#listing, this.#room, min < max);
  }

  get #room(): Omit<Room, 'listing'> {
    return { budgetBytes: this.#options.memoryBytes, numSharing: this.#options.numSharing ?? 1 };
  }

  async load(program: Program, source: WeightSource, options: LoadOptions): Promise<WebgpuExecutable> {
    const device = this.#device;
    const memory = new GpuMemory(device, this.#options.maxSliceBytes);
    try {
      const executable = await loadProgram(
        {
          device,
          kernels: this.#kernels,
          capabilities: this.#capabilities,
          room: { listing: this.#listing, ...this.#room },
          lost: () => this.#lostReason,
        },
        ...([program, source, options, memory] as const),
      );
      // Making objects on a lost device raises no error, so the loss is checked here.
      if (this.#lostReason !== undefined) throw new DeviceError('lost while loading');
      return executable;
    } catch (error) {
      memory.destroy();
      if (this.#lostReason !== undefined)
        throw new DeviceError(`the GPU was lost: ${this.#lostReason}`, { cause: error });
      throw error;
    }
  }
}
