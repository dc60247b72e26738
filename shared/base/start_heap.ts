/**
 * Keeps the heap of a process small: while it starts, and how much garbage it holds at work.
 *
 * Nearly all that modules allocate while they load stays, so V8 doubles the space for new objects up to 16 MB twice (more in Node 24), keeps
 * it, and an idle process never gives it back: 10 to 30 MB. The space of a process that is at work grows as ever.
 */
import { getHeapStatistics, setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

/** Factors by which the space for new objects grows: not at all, and V8's own. */
const FACTORS = { start: 1, work: 2 } as const;

/**
 * Percent by which old objects may grow until they are collected again; V8 lets a small heap grow to four times its size. A router keeps 40 MB and
 * promotes several KB of garbage with each request, so that it held 240 MB: with half as much again it holds 65 MB, for the same CPU time.
 */
const GROWING_PERCENT = 50;

/** Largest heap that is collected at the end of the start: some tens of milliseconds. */
const MAX_COLLECTED_BYTES = 128 << 20;

function growBy(factor: number): void {
  setFlagsFromString(`--semi-space-growth-factor=${factor}`);
}

/** Call before most modules are loaded. */
export function beginStart(): void {
  growBy(FACTORS.start);
}

/** Call when the process is ready: bounds the garbage from now on, and collects the garbage of the start, which takes tens of milliseconds. */
export function endStart(): void {
  growBy(FACTORS.work);
  setFlagsFromString(`--heap-growing-percent=${GROWING_PERCENT}`);
  // A large heap is no garbage of the start, and takes seconds.
  if (getHeapStatistics().used_heap_size < MAX_COLLECTED_BYTES) collectGarbage();
}

/** Collects all garbage of this thread now. V8 would once as much was allocated again, which an idle thread never does. */
export function collectGarbage(): void {
  // Flags are of the process: taken back, this one would be missed by another thread that has just set it. It gives contexts that are new a
  // function `gc`, and changes none that exist.
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  collect();
}
