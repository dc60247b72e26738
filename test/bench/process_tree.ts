/** Processes of Linux as /proc describes them: who started whom, and what each takes. */
import { readdirSync, readFileSync } from 'node:fs';
import { cpuMsIn, readStat } from './cpu_times.ts';

/** CPU time and wake-ups of a process since it started, and the memory and threads that it has now. */
export interface ProcessUse {
  /** CPU seconds of all threads. */
  readonly cpuSeconds: number;
  /** How often its threads have gone to sleep, which is how often they were woken. */
  readonly wakeUps: number;
  readonly numThreads: number;
  readonly rssMiB: number;
  /** RSS, with each shared page divided by the number of its users. */
  readonly pssMiB: number;
}

/** Returns a process and all that it has started, directly or not. */
export function treeOf(root: number): number[] {
  const parents = readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((name) => {
      try {
        return [{ pid: Number(name), parent: Number(readStat(`/proc/${name}/stat`)[1]) }];
      } catch {
        // The process has ended meanwhile.
        return [];
      }
    });
  const tree = [root];
  // The list grows while it is walked.
  for (const pid of tree) tree.push(...parents.filter(({ parent }) => parent === pid).map((child) => child.pid));
  return tree;
}

/** Returns the process that started this one. */
export function parentOf(pid: number): number {
  return Number(readStat(`/proc/${pid}/stat`)[1]);
}

/** Returns what a process and all that it has started take together. */
export function useOf(pids: readonly number[]): ProcessUse {
  const uses = pids.map(ownUse);
  const sum = (key: keyof ProcessUse): number => uses.reduce((total, use) => total + use[key], 0);
  return {
    cpuSeconds: sum('cpuSeconds'),
    wakeUps: sum('wakeUps'),
    numThreads: sum('numThreads'),
    rssMiB: sum('rssMiB'),
    pssMiB: sum('pssMiB'),
  };
}

function ownUse(pid: number): ProcessUse {
  const rollup = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8');
  const tasks = readdirSync(`/proc/${pid}/task`);
  return {
    cpuSeconds: cpuMsIn(readStat(`/proc/${pid}/stat`)) / 1_000,
    wakeUps: tasks.reduce((total, task) => total + wakeUpsOf(`/proc/${pid}/task/${task}/status`), 0),
    numThreads: tasks.length,
    rssMiB: numberOf(rollup, 'Rss') / 1_024,
    pssMiB: numberOf(rollup, 'Pss') / 1_024,
  };
}

function wakeUpsOf(status: string): number {
  try {
    return numberOf(readFileSync(status, 'utf8'), 'voluntary_ctxt_switches');
  } catch {
    // The thread has ended meanwhile.
    return 0;
  }
}

function numberOf(text: string, name: string): number {
  return Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(text)?.[1]);
}

/** Fields of the stat file from the state on: the name before may have spaces. */
