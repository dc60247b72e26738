/**
 * Lists the machine's GPUs and resolves a device name to one: `webgpu`, `webgpu:1` (an index into the list), `webgpu:llvmpipe` (part
 * of a name). A software adapter is used only when it is named.
 */
import type * as Webgpu from 'webgpu';
import { DeviceError } from '../device.ts';
import { napBetweenPolls, polled, installPolling } from './polling.ts';
import { mayHaveCard } from './vulkan_loader.ts';

/** A GPU as Dawn lists it. */
export interface AdapterListing {
  readonly backend: string;
  readonly name: string;
  readonly isSoftware: boolean;
}

/** A subgroup matrix configuration: [M, K] times [K, N]. */
export interface MatrixConfig {
  readonly componentType: string;
  readonly resultComponentType: string;
  readonly M: number;
  readonly N: number;
  readonly K: number;
}

/** An adapter that Dawn has opened, with its subgroup matrix configurations. One device can be requested from it. */
export interface OpenAdapter {
  readonly listing: AdapterListing;
  readonly adapter: GPUAdapter;
  readonly matrixConfigs: readonly MatrixConfig[];
}

/** Dawn toggles that enable f16 on NVIDIA under Vulkan, and subgroup matrices. */
const NEEDED = 'allow_unsafe_apis,vulkan_enable_f16_on_nvidia';
/**
 * Kernels clamp their own indexes and write workgroup memory before they read it: the guards that Tint would put around every loop and
 * array keep drivers from unrolling. A software driver keeps them, so that the tests see an index that is out of bounds.
 */
const UNGUARDED = 'disable_robustness,disable_workgroup_init';
/** WebGPU's compatibility backends repeat the same hardware with less of it. */
const BACKENDS = new Set(['vulkan', 'metal', 'd3d12']);
const SOFTWARE = /llvmpipe|lavapipe|swiftshader|basic render|software/i;

let loaded: Promise<typeof Webgpu> | undefined;
/** Dawn aborts when an instance is collected before its devices, so the module holds every one. */
const instances = new Map<string, GPU>();

/** Loads the `webgpu` package once. @throws DeviceError where the package has no binary for this platform. */
function loadPackage(): Promise<typeof Webgpu> {
  loaded ??= (async () => {
    installPolling();
    try {
      const webgpu = await import('webgpu');
      Object.assign(globalThis, webgpu.globals);
      return webgpu;
    } catch (cause) {
      throw new DeviceError('the webgpu package has no binary for this platform: use --device wasm', { cause });
    }
  })();
  return loaded;
}

let listed: Promise<readonly AdapterListing[]> | undefined;

/** Returns the adapters of this machine in the driver's order, listed once per process; empty where there is no driver. */
export function listAdapters(): Promise<readonly AdapterListing[]> {
  listed ??= askForAdapters();
  return listed;
}

async function askForAdapters(): Promise<AdapterListing[]> {
  const { create } = await loadPackage();
  if (!(await mayHaveCard())) return [];
  let listing = '';
  try {
    // Dawn has no call that lists adapters, but its error for an unknown name lists them.
    const gpu = create(['adapter=\u0001', `enable-dawn-features=${NEEDED}`]);
    instances.set('', gpu);
    await gpu.requestAdapter();
  } catch (error) {
    listing = error instanceof Error ? error.message : String(error);
  }
  return [...listing.matchAll(/backend: '([^']+)', name: '([^']*)'/g)]
    .map(([, backend = '', name = '']) => ({ backend, name, isSoftware: SOFTWARE.test(name) }))
    .filter(({ backend }) => BACKENDS.has(backend));
}

/**
 * Returns the index of the adapter used when none is named: the first hardware adapter, -1 where there is none. Windows lists a GPU
 * under D3D12 too, without matrix units and perhaps without a fused multiply-add, so Vulkan comes first.
 */
export function defaultAdapter(adapters: readonly AdapterListing[]): number {
  const preferred = adapters.findIndex(({ isSoftware, backend }) => !isSoftware && backend !== 'd3d12');
  return preferred >= 0 ? preferred : adapters.findIndex(({ isSoftware }) => !isSoftware);
}

/**
 * Returns the adapter that `selector` names: empty for the first hardware adapter, digits for an index, else part of a name. @throws
 * DeviceError when no adapter matches, or Dawn cannot tell the match from another adapter.
 */
export function selectAdapter(adapters: readonly AdapterListing[], selector: string): AdapterListing {
  const lines = adapters.map(({ name, isSoftware }, i) => `${i}: ${name}${isSoftware ? ' (software)' : ''}`);
  const there = lines.length === 0 ? 'there is none: install a Vulkan driver' : `there are ${lines.join(', ')}`;
  if (selector === '') {
    const hardware = adapters[defaultAdapter(adapters)];
    if (hardware) return hardware;
    throw new DeviceError(`no hardware WebGPU adapter; ${there}. A software one must be named (webgpu:llvmpipe)`);
  }
  // Digits beyond the list may be part of a name: webgpu:4090.
  const isIndex = /^\d+$/.test(selector) && Number(selector) < adapters.length;
  const found = isIndex
    ? adapters[Number(selector)]
    : adapters.find(({ name }) => name.toLowerCase().includes(selector.toLowerCase()));
  if (!found) throw new DeviceError(`no WebGPU adapter ${selector}; ${there}`);
  if (isIndex && found.isSoftware) {
    throw new DeviceError(
      `adapter ${selector} is software (${found.name}), which must be named, for instance webgpu:llvmpipe`,
    );
  }
  // Dawn selects the first adapter whose name contains the given one.
  const twin = adapters.find((adapter) => adapter.name.includes(found.name) && adapter.backend === found.backend);
  if (twin !== found) {
    throw new DeviceError(
      `adapter ${selector} cannot be told from adapter ${adapters.indexOf(twin ?? found)}: Dawn selects adapters by name. Hide the others from ` +
        'this process (NVIDIA: a container with one GPU; Mesa: MESA_VK_DEVICE_SELECT) and use webgpu',
    );
  }
  return found;
}

/** Opens a listed adapter anew, since each device consumes its adapter. @throws DeviceError when the driver no longer has it. */
export async function openAdapter(
  listing: AdapterListing,
  isGuarded: boolean = listing.isSoftware,
): Promise<OpenAdapter> {
  const { create } = await loadPackage();
  const id = `${listing.backend} ${listing.name} ${isGuarded}`;
  const toggles = `enable-dawn-features=${isGuarded ? NEEDED : `${NEEDED},${UNGUARDED}`}`;
  const gpu = instances.get(id) ?? create([`backend=${listing.backend}`, `adapter=${listing.name}`, toggles]);
  instances.set(id, gpu);
  if (listing.isSoftware) napBetweenPolls();
  const adapter = await polled(gpu.requestAdapter());
  if (!adapter)
    throw new DeviceError(`the driver no longer has the adapter ${listing.name}: restart, or choose another device`);
  // Not in @webgpu/types yet, and only on the adapter, not on its device.
  const info = adapter.info as GPUAdapterInfo & { readonly subgroupMatrixConfigs?: readonly MatrixConfig[] };
  return { listing, adapter, matrixConfigs: (info.subgroupMatrixConfigs ?? []).map(copied) };
}

/** Copies the fields by name: Dawn's objects have them as getters of their prototype, so that a spread would be empty. */
function copied({ componentType, resultComponentType, M, N, K }: MatrixConfig): MatrixConfig {
  return { componentType, resultComponentType, M, N, K };
}

/**
 * Opens Dawn's null adapter, which accepts every command and computes nothing: for tests of compiled kernels, and for measuring all
 * but the device.
 */
export async function openNullAdapter(): Promise<OpenAdapter> {
  const { create } = await loadPackage();
  const gpu = instances.get('null') ?? create(['backend=null', `enable-dawn-features=${NEEDED},${UNGUARDED}`]);
  instances.set('null', gpu);
  const adapter = await polled(gpu.requestAdapter());
  if (!adapter) throw new DeviceError('Dawn has no null adapter');
  return { listing: { backend: 'null', name: 'null', isSoftware: false }, adapter, matrixConfigs: [] };
}
