/** `penstock devices`: what can compute on this machine. */
import { availableCores } from '../../shared/base/cpu_quota.ts';
import { tryDevice } from './device_trial.ts';
import { reportDevices, type DeviceReport } from '../../shared/engine/device_reports.ts';
import { autoDevice, describeWasm } from '../../shared/engine/open_device.ts';

/** Prints the devices of this machine and the one that `auto` selects, as text or one line of JSON, then exits the process with code 0. */
export async function printDevices(isJson: boolean): Promise<void> {
  const auto = await autoDevice();
  const wasm = describeWasm();
  const reports = await Promise.all((await reportDevices().catch(() => [])).map(withTrial));
  const text = isJson
    ? JSON.stringify({ auto, wasm: { threads: availableCores(), description: wasm }, adapters: reports })
    : [wasm, ...reports.map(describe), `auto is ${auto.device}: ${auto.reason}`].join('\n');
  // Open adapters keep Dawn's threads running, so the process would not exit by itself.
  process.stdout.write(`${text}\n`, () => process.exit(0));
}

/** Returns the report with the matrix configuration and the notes that a trial of the adapter adds. `index` is the adapter's number. */
async function withTrial(report: DeviceReport, index: number): Promise<DeviceReport> {
  const { matrixTaken, notes } = await tryDevice(index, report.matrixTaken);
  return { ...report, matrixTaken, notes: [...new Set([...report.notes, ...notes])] };
}

function describe(report: DeviceReport): string {
  const { device, name, backend, isSoftware, subgroupSizes, matrices, matrixTaken, notes, features, limits } = report;
  const lines = [
    `${device}: ${name} (${backend}${isSoftware ? ', software: used only when --device names it' : ''})`,
    `subgroups: ${features.includes('subgroups') ? subgroupSizes : 'none'}`,
    `subgroup matrices: ${matrices.length > 0 ? `${matrices.join(', ')}; the fast kernels take ${matrixTaken ?? 'none'}` : 'none'}`,
    `limits: ${Object.entries(limits)
      .map(([limit, value]) => `${limit} ${value}`)
      .join(', ')}`,
    `features: ${features.join(', ')}`,
    ...notes.map((note) => `note: ${note}`),
  ];
  return lines.join('\n    ');
}
