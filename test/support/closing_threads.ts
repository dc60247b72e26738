/**
 * Starts and ends threads when it is hardest: `node dist/test/support/closing_threads.js NUM` starts NUM threads of each kind, closes each
 * at another moment of its start, and prints how many have ended. V8 compiles WebAssembly as it does while another thread compiles the
 * kernels, so that an event loop which does not wait for it ends too soon. A thread that is terminated while it loads a native library
 * aborts this process.
 */
import assert from 'node:assert/strict';
import { setFlagsFromString } from 'node:v8';
import { systemClock } from '../../shared/base/clock.ts';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import { Slab } from '../../shared/kv/slab.ts';
import { CHANNEL_TOKEN_BYTES } from '../../shared/net/transfer_thread/channel_messages.ts';
import type { start } from '../../shared/net/transfer_thread/copy_worker.ts';
import { startTransferThread } from '../../shared/net/transfer_thread/transfer_thread.ts';

interface Closing {
  readonly close: () => Promise<void>;
}

const numThreads = Number(process.argv[2]);
const copyModule = { url: new URL('../../shared/net/transfer_thread/copy_worker.js', import.meta.url) };
const fail = (error: Error): void => {
  throw error;
};
const startCopier = (): ReturnType<typeof workerThreads.spawn<typeof start>> =>
  workerThreads.spawn<typeof start>(copyModule, undefined, { onDeath: fail });

/** Returns a transfer thread that has just started a copy thread of its own, by a data channel to itself. */
async function startTransfer(): Promise<Closing> {
  const thread = startTransferThread(workerThreads, fail);
  await thread.call('attach', { memory: new Slab(1 << 16).memory, isShared: true });
  const port = await thread.call('listen', { host: '127.0.0.1', port: 0 });
  const token = 'x'.repeat(CHANNEL_TOKEN_BYTES);
  const memory = await thread.call('admit', { channel: 1, token, host: await thread.call('host', undefined) });
  thread.notify('connect', { channel: 1, host: '127.0.0.1', port, token, memory });
  return thread;
}

const v8Major = Number(process.versions.v8.split('.')[0]);
// The first needs feedback that eager compilation does not collect, see compiled_kernels.ts.
for (const flag of [...(v8Major >= 14 ? ['wasm-inlining'] : []), 'liftoff', 'wasm-lazy-compilation'])
  setFlagsFromString(`--no-${flag}`);

// eslint-disable-next-line time/speed -- moments of a start can only be found by its length
const fromMs = systemClock.nowMs();
for (let i = 0; i < numThreads; i++) {
  const thread = startCopier();
  await thread.call('close', 0);
  await thread.close();
}
/** Milliseconds that a thread takes to start and to end. */
// eslint-disable-next-line time/speed -- as above
const wholeMs = (systemClock.nowMs() - fromMs) / numThreads;

let numEnded = 0;
for (const startOne of [startCopier, startTransfer]) {
  for (let i = 0; i < numThreads; i++) {
    const thread: Closing = await startOne();
    // eslint-disable-next-line time/speed -- as above
    await systemClock.sleep((1.2 * wholeMs * i) / numThreads);
    await thread.close();
    numEnded++;
  }
}
assert.equal(numEnded, 2 * numThreads);
process.stdout.write(`${numEnded} ended\n`);
