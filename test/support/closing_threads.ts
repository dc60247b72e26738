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
import { engineModule } from '../../shared/engine/engine_host.ts';
import type { EngineWorkerData } from '../../shared/engine/engine_messages.ts';
import type { start as startEngineThread } from '../../shared/engine/engine_worker.ts';
import { Slab } from '../../shared/kv/slab.ts';
import { CHANNEL_TOKEN_BYTES } from '../../shared/net/transfer_thread/channel_messages.ts';
import type { start } from '../../shared/net/transfer_thread/copy_worker.ts';
import { goldenFolder } from './golden.ts';
import { loadDefaults } from './reference_loop.ts';
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

const engine: EngineWorkerData = {
  model: { ...loadDefaults, modelPath: goldenFolder('llama-tied'), numThreads: 3 },
  maxWaiting: 1,
  queueOrder: 'first_come',
  fairShares: false,
  stateInterval: 0,
  stepMs: 10,
  tbtTargetMs: 0,
  loseDeviceAfterSteps: 0,
  hangAfterSteps: 0,
  heartbeat: new SharedArrayBuffer(8),
};
/** Returns an engine's thread, which starts step threads when its model is loaded; `onReady` is called after that. */
const startEngine = (onReady: () => void = () => undefined): Closing =>
  workerThreads.spawn<typeof startEngineThread>(engineModule, engine, {
    onDeath: fail,
    onEvent: ({ kind, ...event }) => {
      if (kind === 'ready') onReady();
      else assert.notEqual(kind, 'failed', JSON.stringify(event));
    },
  });

/** Returns the milliseconds that a thread takes to start and to end, the mean of some. */
async function wholeMsOf(count: number, run: () => Promise<void>): Promise<number> {
  // eslint-disable-next-line time/speed -- moments of a start can only be found by its length
  const fromMs = systemClock.nowMs();
  for (let i = 0; i < count; i++) await run();
  // eslint-disable-next-line time/speed -- as above
  return (systemClock.nowMs() - fromMs) / count;
}

const copierMs = await wholeMsOf(numThreads, async () => {
  const thread = startCopier();
  await thread.call('close', 0);
  await thread.close();
});
const useEngine = async (): Promise<void> => {
  let thread: Closing | undefined;
  await new Promise<void>((resolve) => {
    thread = startEngine(resolve);
  });
  await thread?.close();
};
// The first reads files that later ones find in memory.
await useEngine();
const engineMs = await wholeMsOf(2, useEngine);

let numEnded = 0;
// An engine's step threads load their library late in its start.
for (const [startOne, fromMs, overMs] of [
  [startCopier, 0, 1.2 * copierMs],
  [startTransfer, 0, 1.2 * copierMs],
  [() => startEngine(), 0.5 * engineMs, 0.5 * engineMs],
] as const) {
  for (let i = 0; i < numThreads; i++) {
    const thread: Closing = await startOne();
    // eslint-disable-next-line time/speed -- as above
    await systemClock.sleep(fromMs + (overMs * i) / numThreads);
    await thread.close();
    numEnded++;
  }
}
assert.equal(numEnded, 3 * numThreads);
process.stdout.write(`${numEnded} ended\n`);
