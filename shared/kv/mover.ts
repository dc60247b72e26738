/** The control thread's side of the mover thread. */
import { Worker } from 'node:worker_threads';
import { WorkerCalls } from '../base/worker_calls.ts';
import type { MoverMethods } from './mover_worker.ts';

export type Mover = WorkerCalls<MoverMethods>;

export function startMover(onDeath: (error: Error) => void): Mover {
  return new WorkerCalls<MoverMethods>(new Worker(new URL('./mover_worker.js', import.meta.url)), onDeath);
}
