/** Tries an adapter in a process of its own, for `penstock devices`: a driver that crashes its process does not end this one. */
import { fork } from 'node:child_process';
import type { DeviceTrial } from '../../shared/engine/device_reports.ts';

/** Milliseconds that a trial may take. Shader compilers of software drivers need seconds. */
const TRIAL_MS = 60_000;

/** Tries the adapter with that index. A failed trial has a note with the reason, and `promised` as its matrix configuration. */
export function tryDevice(index: number, promised: string | undefined): Promise<DeviceTrial> {
  return new Promise((resolve) => {
    const child = fork(new URL('./device_trial_process.js', import.meta.url), [String(index)], {
      stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
      timeout: TRIAL_MS,
      killSignal: 'SIGKILL',
    });
    const failed = (why: string): void => {
      resolve({ matrixTaken: promised, notes: [`the adapter could not be tried: ${why}`] });
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
        failed(`the trial took over ${TRIAL_MS / 1_000} s: the driver still compiles, or hangs`);
      else failed(`the driver ended the trial's process (${signal ?? `exit code ${code}`})`);
    });
  });
}
