/** The process of a trial: opens the adapter with the index that it is given, and says what it found. */
import { messageOf } from '../../shared/base/failure.ts';
import { tryAdapter, type DeviceTrial } from '../../shared/engine/open_device.ts';

const trial = await tryAdapter(Number(process.argv[2])).catch((error: unknown): DeviceTrial => ({
  matrixTaken: undefined,
  notes: [`it cannot be used: ${messageOf(error)}`],
}));
// Adapters keep Dawn's threads; nothing is left to do.
process.send?.(trial, () => process.exit(0));
