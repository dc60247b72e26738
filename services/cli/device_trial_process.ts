/** Process of a device trial: opens the adapter whose index is its argument, and sends the result to its parent. */
import { messageOf } from '../../shared/base/failure.ts';
import { tryAdapter, type DeviceTrial } from '../../shared/engine/device_reports.ts';

const trial = await tryAdapter(Number(process.argv[2])).catch((error: unknown): DeviceTrial => ({
  matrixTaken: undefined,
  notes: [`the adapter cannot be used: ${messageOf(error)}`],
}));
// Open adapters keep Dawn's threads running, so the process would not exit by itself.
process.send?.(trial, () => process.exit(0));
