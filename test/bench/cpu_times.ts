/** CPU times of a process and of its main thread, which Linux counts in hundredths of a second. */
import type { ChildProcess } from 'node:child_process';
import { readFileSync } from 'node:fs';

/** User and system time in milliseconds. */
export interface CpuTimes {
  /** Main thread; in a router the one that serves all requests. */
  readonly control: number;
  /** All threads, those that have ended included. */
  readonly all: number;
}

/** Reads the CPU times that a process has used since its start. */
export function cpuTimesOf(child: ChildProcess): CpuTimes {
  return { control: readMs(`/proc/${child.pid}/task/${child.pid}/stat`), all: cpuMsOf(child) };
}

/** Reads the CPU time of all threads of a process in milliseconds. */
export function cpuMsOf({ pid }: ChildProcess): number {
  return readMs(`/proc/${pid}/stat`);
}

function readMs(path: string): number {
  return cpuMsIn(readStat(path));
}

/** Returns the fields of a file `stat` of /proc after the name, which is in brackets and may have spaces: the state first. */
export function readStat(path: string): string[] {
  return readFileSync(path, 'utf8')
    .replace(/^.*\) /s, '')
    .split(' ');
}

/** Returns user and system time in milliseconds. */
export function cpuMsIn(stat: readonly string[]): number {
  return 10 * (Number(stat[11]) + Number(stat[12]));
}
