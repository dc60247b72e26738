/**
 * Entry of every worker thread: starts the thread's module, then runs calls one at a time in the order of their arrival. Calls without
 * an id run at once. Messages are read from the first moment: a thread that is to end while its module starts ends between two of its
 * steps, and the listener keeps the event loop alive for a module that waits for nothing the loop knows of, such as a WebAssembly module
 * that V8 compiles in the background.
 */
import assert from 'node:assert/strict';
import { parentPort, workerData } from 'node:worker_threads';
import { failureCodeOf, messageOf } from './failure.ts';
import { nativeThreadId } from './native_thread.ts';
import { pendingEnd } from './thread_end.ts';
import type { Start } from './threads.ts';
import { END, endThreads, type Answer, type Call } from './worker_threads.ts';

const port = parentPort;
assert(port, 'this is the entry of a worker thread');
function post(answer: Answer): void {
  port?.postMessage(answer);
}

const nativeId = nativeThreadId();
if (nativeId !== undefined) post({ nativeId });

/** Receives a call; those that come while the module starts wait in `early`. */
let receive = (call: Call): void => {
  early.push(call);
};
const early: Call[] = [];
port.on('message', (message: Call | typeof END) => {
  if (message === END) void end();
  else receive(message);
});

async function end(): Promise<void> {
  post({ phase: 'ending' });
  await endThreads();
  // A start that goes on meanwhile may begin threads until the moment of the exit.
  for (let pending = pendingEnd(); pending !== undefined; pending = pendingEnd()) await pending;
  // Ends this thread alone.
  process.exit();
}

const { module, data } = workerData as { module: string; data: unknown };
const { start } = (await import(module)) as { start: Start<unknown, object, unknown> };
const methods = await start(data, (event) => {
  post({ event });
});

function run({ method, argument }: Call): unknown {
  const called: unknown = Reflect.get(methods, method);
  assert(typeof called === 'function', `no method ${method}`);
  return Reflect.apply(called, methods, [argument]);
}

let last: Promise<void> = Promise.resolve();
receive = (call) => {
  const { id } = call;
  if (id === undefined) {
    run(call);
    return;
  }
  last = last.then(async () => {
    try {
      post({ id, value: await run(call) });
    } catch (error) {
      const code = failureCodeOf(error);
      post({ id, error: messageOf(error), ...(code ? { code } : {}) });
    }
  });
};
for (const call of early) receive(call);
post({ phase: 'started' });
