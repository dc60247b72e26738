/** The control thread's side of the mover thread. */
import type { MethodsOf, Thread, Threads } from '../base/threads.ts';
import type { start } from './mover_worker.ts';

export type Mover = Thread<MethodsOf<typeof start>>;

export const moverModule = { url: new URL('./mover_worker.js', import.meta.url) };

export function startMover(threads: Threads, onDeath: (error: Error) => void): Mover {
  return threads.spawn<typeof start>(moverModule, undefined, { onDeath });
}
