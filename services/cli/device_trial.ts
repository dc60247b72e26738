/**
 * Opens an adapter and tries it, in a process of its own: a driver that ends its process does not end the one that asks. For `penstock
 * devices`.
 */
import { fork } from 'node:child_process';
import type { DeviceTrial } from '../../shared/engine/open_device.ts';

/** Compilers of software drivers take seconds. */
const TRIAL_MS = 60_000;

/** Tries the adapter with that index; one that cannot be tried has a note that says so, and takes what `promised` names. */
export function tryDevice(index: number, promised: string | undefined): Promise<DeviceTrial> {
  return new Promise((resolve) => {
    const child = fork(new URL('./device_trial_process.js', import.meta.url), [String(index)], {
      stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
      timeout: TRIAL_MS,
      killSignal: 'SIGKILL',
    });
    const failed = (why: string): void => {
      resolve({ matrixTaken: promised, notes: [`it could not be tried: ${why}`] });
    };
    child.once('message', (trial: DeviceTrial) => {
      resolve(trial);
    });
    child.once('error', ({ message }) => {
      failed(message);
    });
    const startMs = performance.now();
    child.once('exit', (code, signal) => {
      if (performance.now() - startMs >= TRIAL_MS)
        failed(`it took over ${TRIAL_MS / 1_000} s: its driver compiles or hangs`);
      else failed(`opening it ended the process (${signal ?? `exit code ${code}`})`);
    });
  });
}
