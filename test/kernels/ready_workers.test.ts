/** Threads of the wasm device are ready, or their start fails with the reason: it never hangs. Budget: 10 s. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { expect, test } from 'vitest';
import { readyWorkers } from '../../kernels/wasm/ready_workers.ts';

/** Returns a module whose threads run `code`, with `data` and `port`. */
function moduleOf(code: string): URL {
  const text = `import { parentPort as port, workerData as data } from 'node:worker_threads'; ${code}`;
  return new URL(`data:text/javascript,${encodeURIComponent(text)}`);
}

test('workers are returned when each has sent a message', async () => {
  const workers = await readyWorkers(
    moduleOf("port.postMessage('ready'); port.once('message', () => port.close())"),
    [0, 1],
  );
  assert.equal(workers.length, 2);
  const exits = workers.map((worker) => once(worker, 'exit'));
  for (const worker of workers) worker.postMessage('end');
  expect(await Promise.all(exits)).toEqual([[0], [0]]);
});

test('the error of a worker that fails fails the start, when the others have started too', async () => {
  const started = new Int32Array(new SharedArrayBuffer(4));
  const code = `
    if (data.number === 0) throw new Error('no library');
    Atomics.wait(data.started, 0, 0, 100);
    Atomics.store(data.started, 0, 1);
    port.postMessage('ready');
    setInterval(() => {}, 1e6);`;
  const starting = readyWorkers(moduleOf(code), [
    { number: 0, started },
    { number: 1, started },
  ]);
  await assert.rejects(starting, { message: 'no library' });
  assert.equal(started[0], 1, 'no thread is terminated while it starts');
});

test('a worker that ends without a message fails the start', async () => {
  const code = "if (data === 0) process.exit(7); port.postMessage('ready'); setInterval(() => {}, 1e6);";
  await assert.rejects(readyWorkers(moduleOf(code), [1, 0]), {
    message: 'a thread ended with code 7 before it was ready',
  });
});

test('an error after the start is not caught here: whoever owns the thread learns of it', async () => {
  const code = "port.postMessage('ready'); port.once('message', () => { throw new Error('later'); });";
  const [worker] = await readyWorkers(moduleOf(code), [0]);
  assert(worker);
  assert.equal(worker.listenerCount('error'), 0);
  const failed = once(worker, 'error');
  worker.postMessage('fail');
  expect(await failed).toMatchObject([{ message: 'later' }]);
});
