/** Opens devices by name. What talks to a GPU is loaded only where there may be one. */
import { DeviceError, type Device } from '../../kernels/device.ts';
import type { ProductsWanted } from '../../kernels/wasm/products_names.ts';
import { startingWorkers } from '../../kernels/wasm/ready_workers.ts';
import { createWasmDevice, type WasmBounds } from '../../kernels/wasm/wasm_device.ts';
import { hasCardFile } from '../../kernels/wgsl/card_files.ts';
import type { KernelSet } from '../../kernels/wgsl/kernel_set.ts';
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
  // Without one, the drivers of a machine are software: loading them takes 50 MB of each engine.
  if (!hasCardFile()) return { device: 'wasm', reason: 'no device file of a GPU' };
  const { defaultAdapter, listAdapters } = await import('../../kernels/wgsl/adapters.ts');
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
  const { createWebgpuDevice } = await import('../../kernels/wgsl/webgpu_device.ts');
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
