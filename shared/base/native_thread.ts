/** Threads as Linux knows them: their ids and the CPU time that each has used. */
import { readFileSync, readlinkSync } from 'node:fs';

/** Milliseconds of a clock tick in /proc/PID/stat; Linux has 100 a second. */
const TICK_MS = 10;

/** Returns the operating system's id of the calling thread; undefined where there is no /proc. */
export function nativeThreadId(): string | undefined {
  try {
    // PID/task/TID
    return readlinkSync('/proc/thread-self').split('/').at(-1);
  } catch {
    return undefined;
  }
}

/** Returns the milliseconds of CPU time of a thread of this process; undefined where the system does not say it, or it has ended. */
export function nativeCpuMs(id: string): number | undefined {
  const folder = `/proc/self/task/${id}`;
  try {
    // Nanoseconds on a CPU, then nanoseconds of waiting for one.
    const onCpu = Number(readFileSync(`${folder}/schedstat`, 'utf8').split(' ')[0]);
    if (onCpu > 0) return onCpu / 1e6;
  } catch {
    // A kernel without these statistics has ticks.
  }
  try {
    // The name before the numbers may hold anything but ends with the last parenthesis.
    const fields = readFileSync(`${folder}/stat`, 'utf8')
      .replace(/^.*\) /s, '')
      .split(' ');
    const [user, system] = [Number(fields[11]), Number(fields[12])];
    return Number.isFinite(user + system) ? (user + system) * TICK_MS : undefined;
  } catch {
    return undefined;
  }
}
