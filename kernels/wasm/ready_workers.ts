/** Threads that say that they are ready before they serve. */
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';

/** One of the file, beside this one, for each of `all`; resolves when every one is ready. @throws Error when one ends before; none is left then. */
export async function readyWorkers(file: string, all: readonly unknown[]): Promise<Worker[]> {
  const workers = all.map((workerData) => new Worker(new URL(file, import.meta.url), { workerData }));
  try {
    await Promise.all(workers.map((worker) => once(worker, 'message')));
    return workers;
  } catch (error) {
    await Promise.all(workers.map((worker) => worker.terminate()));
    throw error;
  }
}
