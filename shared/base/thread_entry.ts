/**
 * Entry of every worker thread: starts the thread's module, then runs calls one at a time in the order of their arrival. Calls without
 * an id run at once.
 */
import assert from 'node:assert/strict';
import { parentPort, workerData } from 'node:worker_threads';
import { failureCodeOf, messageOf } from './failure.ts';
import { nativeThreadId } from './native_thread.ts';
import type { Start } from './threads.ts';
import type { Answer, Call } from './worker_threads.ts';

const port = parentPort;
assert(port, 'this is the entry of a worker thread');
const nativeId = nativeThreadId();
if (nativeId !== undefined) port.postMessage({ nativeId } satisfies Answer);
const { module, data } = workerData as { module: string; data: unknown };
const { start } = (await import(module)) as { start: Start<unknown, object, unknown> };
const methods = await start(data, (event) => {
  port.postMessage({ event } satisfies Answer);
});

function run({ method, argument }: Call): unknown {
  const called: unknown = Reflect.get(methods, method);
  assert(typeof called === 'function', `no method ${method}`);
  return Reflect.apply(called, methods, [argument]);
}

let last: Promise<void> = Promise.resolve();
port.on('message', (call: Call) => {
  const { id } = call;
  if (id === undefined) {
    run(call);
    return;
  }
  last = last.then(async () => {
    try {
      port.postMessage({ id, value: await run(call) } satisfies Answer);
    } catch (error) {
      const code = failureCodeOf(error);
      port.postMessage({ id, error: messageOf(error), ...(code ? { code } : {}) } satisfies Answer);
    }
  });
});
