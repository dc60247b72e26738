/** Opens devices by name, and describes them for `penstock devices`. */
import { DeviceError, type Device } from '../../kernels/device.ts';
import type { ProductsWanted } from '../../kernels/wasm/products_names.ts';
import { startingWorkers } from '../../kernels/wasm/ready_workers.ts';
import { createWasmDevice, type WasmBounds } from '../../kernels/wasm/wasm_device.ts';
import { defaultAdapter, listAdapters, openAdapter } from '../../kernels/wgsl/adapters.ts';
import type { KernelSet } from '../../kernels/wgsl/kernel_set.ts';
import { matrixChoice, nameOf } from '../../kernels/wgsl/matrix_units.ts';
import { typicalProgram } from '../../kernels/wgsl/row_probe.ts';
import { createDeviceOn, createWebgpuDevice } from '../../kernels/wgsl/webgpu_device.ts';
import { availableCores } from '../base/cpu_quota.ts';
import { endAfter } from '../base/thread_end.ts';

interface DeviceChoice {
  /** `wasm`, `webgpu`, `webgpu:INDEX` or `webgpu:PART_OF_NAME`. */
  readonly device: string;
  readonly kernelSet: KernelSet;
  readonly deviceMemoryBytes: number;
  readonly deviceSharing: number;
  /** 0: one per core. */
  readonly numThreads: number;
  readonly products?: ProductsWanted | undefined;
  /** Clock of the trial of products; that of the machine without it. */
  readonly nowMs?: (() => number) | undefined;
  readonly wasmBounds?: WasmBounds | undefined;
}

/** Returns the device that `auto` selects on this machine, and the reason: a hardware WebGPU adapter if there is one, else wasm. */
export async function autoDevice(): Promise<{ readonly device: string; readonly reason: string }> {
  try {
    const adapters = await listAdapters();
    const index = defaultAdapter(adapters);
    const hardware = adapters[index];
    if (hardware) return { device: `webgpu:${index}`, reason: `${hardware.name} is a hardware adapter` };
    const reason = adapters.length > 0 ? 'only software adapters, which must be named' : 'no WebGPU adapter';
    return { device: 'wasm', reason };
  } catch (error) {
    if (!(error instanceof DeviceError)) throw error;
    return { device: 'wasm', reason: error.message };
  }
}

/** @throws DeviceError for a name that is no device here. */
export async function openDevice(choice: DeviceChoice): Promise<Device> {
  const { device: name } = choice;
  if (name === 'wasm') return openWasm(choice);
  const match = /^webgpu(?::(.+))?$/.exec(name);
  if (!match) {
    throw new DeviceError(
      `no device ${JSON.stringify(name)}: use auto, wasm, webgpu, webgpu:INDEX or webgpu:PART_OF_NAME (\`penstock devices\` lists them)`,
    );
  }
  const { kernelSet, deviceMemoryBytes: memoryBytes, deviceSharing: numSharing } = choice;
  return createWebgpuDevice({ adapter: match[1] ?? '', kernelSet, memoryBytes, numSharing });
}

type WasmChoice = Pick<DeviceChoice, 'numThreads' | 'deviceSharing' | 'wasmBounds' | 'products' | 'nowMs'>;

function openWasm({ numThreads, deviceSharing, wasmBounds, products = 'auto', nowMs }: WasmChoice): Device {
  endAfter(startingWorkers);
  const request = { wanted: products, ...(nowMs ? { nowMs } : {}) };
  return createWasmDevice(numThreads || availableCores(), true, deviceSharing, wasmBounds, request);
}

/** Returns the description of the wasm device of this machine, with the products that engines use here. */
export function describeWasm(): string {
  return openWasm({ numThreads: 0, deviceSharing: 1 }).description;
}

/** One WebGPU adapter of this machine, as `penstock devices` reports it. */
export interface DeviceReport {
  readonly device: string;
  readonly name: string;
  readonly isSoftware: boolean;
  readonly backend: string;
  readonly features: readonly string[];
  readonly limits: Readonly<Record<string, number>>;
  readonly subgroupSizes: string;
  /** Subgroup matrix configurations, and the one that the fast set takes. */
  readonly matrices: readonly string[];
  readonly matrixTaken: string | undefined;
  /** Sentences for the user, such as why the adapter uses no matrix units or cannot be used. */
  readonly notes: readonly string[];
}

const LIMITS = [
  'maxBufferSize',
  'maxStorageBufferBindingSize',
  'maxStorageBuffersPerShaderStage',
  'maxComputeWorkgroupStorageSize',
  'maxComputeInvocationsPerWorkgroup',
  'maxComputeWorkgroupsPerDimension',
] as const;

/**
 * Describes every WebGPU adapter of this machine, as the adapter reports itself. @throws DeviceError when the WebGPU package has no
 * binary for this machine.
 */
export async function reportDevices(): Promise<DeviceReport[]> {
  const reports: DeviceReport[] = [];
  for (const [index, listing] of (await listAdapters()).entries()) {
    const opened = await openAdapter(listing);
    const { features, limits, info } = opened.adapter;
    const { subgroupMinSize, subgroupMaxSize } = info as GPUAdapterInfo & Record<string, number | undefined>;
    const { uses, note } = matrixChoice(opened);
    reports.push({
      device: `webgpu:${index}`,
      name: listing.name,
      isSoftware: listing.isSoftware,
      backend: listing.backend,
      features: [...features].sort(),
      limits: Object.fromEntries(LIMITS.map((name) => [name, limits[name]])),
      subgroupSizes: `${subgroupMinSize ?? '?'} to ${subgroupMaxSize ?? '?'}`,
      matrices: opened.matrixConfigs.map(nameOf),
      matrixTaken: uses[0] && nameOf(uses[0]),
      notes: note === undefined ? [] : [note],
    });
  }
  return reports;
}

/** Result of opening an adapter with each kernel set. */
export interface DeviceTrial {
  /** The matrix configuration that the fast set takes, by name. */
  readonly matrixTaken: string | undefined;
  /** Clauses for the user about the adapter's limitations. */
  readonly notes: readonly string[];
}

/** Opens the adapter with that index of the list with each kernel set. A driver may end the process. @throws DeviceError */
export async function tryAdapter(index: number): Promise<DeviceTrial> {
  const listing = (await listAdapters())[index];
  if (!listing) throw new DeviceError(`there is no adapter ${index}`);
  const options = { adapter: '', memoryBytes: 0 };
  const fast = await createDeviceOn(await openAdapter(listing), { ...options, kernelSet: 'fast' });
  const { matrix } = fast.capabilities;
  const notes = [...fast.notes];
  // The kernel sets that promise E2, which checkRows verifies; 'matrices' only where there are matrix units.
  for (const kernelSet of matrix ? (['deterministic', 'matrices'] as const) : (['deterministic'] as const)) {
    const device = await createDeviceOn(await openAdapter(listing), { ...options, kernelSet });
    await device.checkRows(typicalProgram, { weightFormat: 'f16', kv: { dtype: 'f16', blockSize: 32 } });
    notes.push(...device.notes.map((note) => (kernelSet === 'matrices' ? `kernel set matrices: ${note}` : note)));
  }
  return { matrixTaken: matrix && nameOf(matrix), notes: [...new Set(notes)] };
}
