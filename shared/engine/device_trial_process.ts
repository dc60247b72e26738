/** The process of a trial: opens the adapter with the index that it is given, with both kernel sets, and says what it found. */
import { listAdapters, openAdapter } from '../../kernels/wgsl/adapters.ts';
import { nameOf } from '../../kernels/wgsl/matrix_units.ts';
import { typicalProgram } from '../../kernels/wgsl/row_probe.ts';
import { createDeviceOn } from '../../kernels/wgsl/webgpu_device.ts';
import { messageOf } from '../base/failure.ts';
import type { DeviceTrial } from './device_trial.ts';

async function tried(index: number): Promise<DeviceTrial> {
  const listing = (await listAdapters())[index];
  if (!listing) throw new Error('it is gone');
  const notes: string[] = [];
  const options = { adapter: '', memoryBytes: 0 };
  const fast = await createDeviceOn(await openAdapter(listing), { ...options, kernelSet: 'fast' });
  notes.push(...fast.notes);
  const { matrix } = fast.capabilities;
  const ordered = await createDeviceOn(await openAdapter(listing), { ...options, kernelSet: 'deterministic' });
  await ordered.checkRows(typicalProgram, { weightFormat: 'f16', kvDtype: 'f16', blockSize: 32 });
  notes.push(...ordered.notes);
  return { matrixTaken: matrix && nameOf(matrix), notes };
}

const trial = await tried(Number(process.argv[2])).catch((error: unknown): DeviceTrial => ({
  matrixTaken: undefined,
  notes: [`it cannot be used: ${messageOf(error)}`],
}));
// Adapters keep Dawn's threads; nothing is left to do.
process.send?.(trial, () => process.exit(0));
