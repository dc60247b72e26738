/** Starts worker threads and waits until each has reported that it is ready. */
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';

/**
 * Starts one worker of the module `url` per element of `all`, its data. Resolves when every worker has sent a message.
 * @throws the error of a worker that fails first, after all workers were terminated.
 */
export async function readyWorkers(url: URL, all: readonly unknown[]): Promise<Worker[]> {
  const workers = all.map((workerData) => new Worker(url, { workerData }));
  try {
    await Promise.all(workers.map((worker) => once(worker, 'message')));
    return workers;
  } catch (error) {
    await Promise.all(workers.map((worker) => worker.terminate()));
    throw error;
  }
}
