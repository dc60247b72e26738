/** Describes and tries the GPUs of this machine, for `penstock devices`. */
import { DeviceError } from '../../kernels/device.ts';
import { listAdapters, openAdapter } from '../../kernels/wgsl/adapters.ts';
import { matrixChoice, nameOf } from '../../kernels/wgsl/matrix_units.ts';
import { typicalProgram } from '../../kernels/wgsl/row_probe.ts';
import { createDeviceOn } from '../../kernels/wgsl/webgpu_device.ts';

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
