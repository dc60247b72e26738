/** Starts worker threads and waits until each has reported that it is ready. */
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';

/**
 * Starts one worker of the module `url` per element of `data`. Resolves when every worker has sent a message.
 * @throws the error of a worker that fails, or ends without a message, after all workers were terminated.
 */
export async function readyWorkers(url: URL, data: readonly unknown[]): Promise<Worker[]> {
  const workers = data.map((workerData) => new Worker(url, { workerData }));
  // A worker that is terminated while it loads a native library takes the process down, so all are waited for although one has failed.
  const all = Promise.allSettled(workers.map(isReady));
  starting.add(all);
  const starts = await all;
  starting.delete(all);
  const failed = starts.find((start) => start.status === 'rejected');
  if (!failed) return workers;
  await Promise.all(workers.map((worker) => worker.terminate()));
  throw failed.reason;
}

/** Starts of workers that have not settled. */
const starting = new Set<Promise<unknown>>();

/** Returns the starts of workers that have not settled, before which this thread must not end; undefined when there are none. */
export function startingWorkers(): Promise<unknown> | undefined {
  return starting.size > 0 ? Promise.all(starting) : undefined;
}

/** Resolves when a worker has sent a message. @throws the worker's error, or an Error where it ends before */
async function isReady(worker: Worker): Promise<void> {
  const settled = new AbortController();
  const { signal } = settled;
  const ended = async (): Promise<never> => {
    const [code] = (await once(worker, 'exit', { signal })) as [number];
    throw new Error(`a thread ended with code ${code} before it was ready`);
  };
  try {
    await Promise.race([once(worker, 'message', { signal }), ended()]);
  } finally {
    settled.abort();
  }
}
