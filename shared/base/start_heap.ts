/**
 * Keeps the heap of a process small while it starts.
 *
 * Nearly all that modules allocate while they load stays, so V8 doubles the space for new objects up to 16 MB twice (more in Node 24), keeps
 * it, and an idle process never gives it back: 10 to 30 MB. The space of a process that is at work grows as ever.
 */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

/** Factors by which the space for new objects grows: not at all, and V8's own. */
const FACTORS = { start: 1, work: 2 } as const;

function growBy(factor: number): void {
  setFlagsFromString(`--semi-space-growth-factor=${factor}`);
}

/** Call before most modules are loaded. */
export function beginStart(): void {
  growBy(FACTORS.start);
}

/** Call when the process is ready; collects the garbage of the start, which takes tens of milliseconds. */
export function endStart(): void {
  growBy(FACTORS.work);
  collectGarbage();
}

/** Collects all garbage of this thread now. V8 would once as much was allocated again, which an idle thread never does. */
export function collectGarbage(): void {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  setFlagsFromString('--no-expose-gc');
  collect();
}
