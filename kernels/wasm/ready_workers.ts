/** Starts worker threads and waits until each has reported that it is ready. */
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';

/**
 * Starts one worker of the module `url` per element of `all`, its data. Resolves when every worker has sent a message.
 * @throws the error of a worker that fails, or ends without a message, after all workers were terminated.
 */
export async function readyWorkers(url: URL, all: readonly unknown[]): Promise<Worker[]> {
  const workers = all.map((workerData) => new Worker(url, { workerData }));
  // A worker that is terminated while it loads a native library takes the process down, so all are waited for although one has failed.
  const starts = await Promise.allSettled(workers.map(isReady));
  const failed = starts.find((start) => start.status === 'rejected');
  if (!failed) return workers;
  await Promise.all(workers.map((worker) => worker.terminate()));
  throw failed.reason;
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
