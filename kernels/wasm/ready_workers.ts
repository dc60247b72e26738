/** Starts worker threads and waits until each has reported that it is ready. */
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';

/**
 * Starts one worker per element of `all`, its data, from a file beside this one. Resolves when every worker has sent a message.
 * @throws the error of a worker that fails first, after all workers were terminated.
 */
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
