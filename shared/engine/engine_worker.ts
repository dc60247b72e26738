/**
 * The engine thread: owns the device; no network, no disk but the weights at load.
 *
 * Between steps it puts delivered blocks in and copies full blocks out, each under a byte budget, so that a burst of
 * transfers cannot stall the tokens of running sequences.
 */
import assert from 'node:assert/strict';
import { parentPort, workerData } from 'node:worker_threads';
import { systemClock } from '../base/clock.ts';
import { Failure, messageOf } from '../base/failure.ts';
import { slotBytes, type SlabMemory } from '../kv/slab.ts';
import { Engine } from './engine.ts';
import { ExportQueue } from './export_queue.ts';
import type { EngineEvent, EngineWorkerData, FromEngine, ToEngine } from './engine_messages.ts';
import { configDigest } from '../model/model_folder.ts';
import { loadModel, type LoadedModel } from './load_model.ts';

/** Copied in, and as much copied out, between two steps: about 2 ms at memory speed. */
const COPY_BYTES_PER_STEP = 16 * 2 ** 20;
/** After a loss: for the step that ran to fail, and for what else Dawn has to say. */
const LOST_STEP_MS = 2_000;
const LAST_ANSWERS_MS = 60;
/** Progress lines while loading: one per this many bytes is plenty. */
const PROGRESS_BYTES = 64 * 2 ** 20;

const port = parentPort;
assert(port, 'the engine runs in a worker thread');
const post = (message: FromEngine): void => {
  port.postMessage(message);
};

class EngineThread {
  readonly #engine: Engine;
  readonly #model: LoadedModel;
  readonly #blocksPerStep: number;
  #events: EngineEvent[] = [];
  #toldState = '';
  #slab: { memory: SlabMemory; payloadOffset: number } | undefined;
  /** Per sequence, deliveries in order; bounded by the slab's arrival window, which the control thread keeps. */
  readonly #deliveries = new Map<number, { blockIndex: number; slot: number }[]>();
  /** Free slots for exports; bounded by what the control thread grants. */
  readonly #credits: number[] = [];
  readonly #exports: ExportQueue;
  #wake: (() => void) | undefined;
  #hasNews = false;

  constructor(model: LoadedModel, maxWaiting: number, chunkTokens: number, maxNumSeqs: number) {
    this.#model = model;
    this.#exports = new ExportQueue(model.numBlocks, (link) => {
      this.#events.push({ kind: 'export_failed', link });
    });
    this.#blocksPerStep = Math.max(1, Math.floor(COPY_BYTES_PER_STEP / model.layout.payloadBytes));
    const { blockSize, namespace } = model.layout;
    const emit = (event: EngineEvent): void => {
      this.#events.push(event);
    };
    this.#engine = new Engine(
      model.executable,
      { namespace, blockSize, numBlocks: model.numBlocks, chunkTokens, maxNumSeqs, maxWaiting },
      {
        onToken: (id, sampled, report, finish) => {
          emit({ kind: 'token', id, sampled, report, finish });
        },
        onAdmitted: (id) => {
          emit({ kind: 'admitted', id });
        },
        onPreempted: (id) => {
          // What was on its way to blocks it no longer has would hold host memory that admitted sequences need.
          for (const { slot } of this.#deliveries.get(id) ?? []) emit({ kind: 'consumed', slot });
          this.#deliveries.delete(id);
          emit({ kind: 'preempted', id });
        },
        onProgress: (id, numReady, numRun) => {
          emit({ kind: 'progress', id, numReady, numRun });
        },
        onPrefilled: (id, report) => {
          emit({ kind: 'prefilled', id, report });
        },
        onStored: (link, origin) => {
          emit({ kind: 'stored', link });
          if (origin === 'computed') this.#exports.computed(link, link.anchor);
        },
        onRemoved: (key) => {
          emit({ kind: 'removed', key });
        },
      },
      systemClock,
    );
  }

  #isStopping = false;

  receive(message: ToEngine): void {
    this.#hasNews = true;
    this.#wake?.();
    switch (message.kind) {
      case 'attach':
        this.#slab = { memory: message.slab, payloadOffset: message.payloadOffset };
        return;
      case 'submit':
        try {
          this.#engine.submit(message.request);
        } catch (error) {
          if (!(error instanceof Failure)) throw error;
          this.#events.push({ kind: 'refused', id: message.request.id, code: error.code, message: error.message });
        }
        return;
      case 'deliver': {
        const { id, blockIndex, slot } = message;
        const queue = this.#deliveries.get(id) ?? [];
        queue.push({ blockIndex, slot });
        this.#deliveries.set(id, queue);
        return;
      }
      case 'proceed':
        this.#proceeding.add(message.id);
        return;
      case 'cancel':
        this.#engine.cancel(message.id);
        return;
      case 'grant':
        this.#credits.push(...message.slots);
        return;
      case 'export':
        this.#exports.asked(message.link);
        return;
      case 'stop':
        this.#isStopping = true;
        return;
    }
  }

  /** Sequences whose fetch ended; they proceed when their last delivery is in. */
  readonly #proceeding = new Set<number>();

  /** Resolves when told to stop, between two steps: a device must not go while it computes. */
  async loop({ loseDeviceAfterSteps, hangAfterSteps, pulse }: EngineWorkerData): Promise<void> {
    const beat = new Int32Array(pulse);
    while (!this.#isStopping) {
      Atomics.add(beat, 0, 1);
      Atomics.store(beat, 1, 1);
      if (loseDeviceAfterSteps > 0 && this.#engine.numSteps >= loseDeviceAfterSteps) this.#model.device.destroy();
      if (hangAfterSteps > 0 && this.#engine.numSteps >= hangAfterSteps) Atomics.wait(beat, 1, 1);
      this.#hasNews = false;
      await this.#putDeliveriesIn();
      for (const id of this.#proceeding) {
        if (this.#deliveries.has(id)) continue;
        this.#engine.proceed(id);
        this.#proceeding.delete(id);
      }
      const hasWorked = await this.#engine.step();
      const hasExported = await this.#copyOut();
      this.#flush();
      if (hasWorked || hasExported) {
        await new Promise((resolve) => setImmediate(resolve));
      } else {
        Atomics.store(beat, 1, 0);
        await this.#news();
      }
    }
  }

  /** Resolves at the next message, or at once when one came meanwhile. */
  async #news(): Promise<void> {
    if (this.#hasNews) return;
    await new Promise<void>((resolve) => {
      this.#wake = resolve;
    });
    this.#wake = undefined;
  }

  async #putDeliveriesIn(): Promise<void> {
    let budget = this.#blocksPerStep;
    for (const [id, queue] of this.#deliveries) {
      // A waiting sequence has no device blocks yet: its deliveries stay where they are.
      if (this.#engine.has(id) && !this.#engine.isLoading(id)) continue;
      const taken = queue.splice(0, budget);
      budget -= taken.length;
      await this.#engine.deliver(
        id,
        taken.map(({ blockIndex, slot }) => ({ blockIndex, payload: this.#payload(slot) })),
      );
      for (const { slot } of taken) this.#events.push({ kind: 'consumed', slot });
      if (queue.length === 0) this.#deliveries.delete(id);
      else this.#hasNews = true;
    }
  }

  async #copyOut(): Promise<boolean> {
    const batch = this.#exports
      .next(Math.min(this.#blocksPerStep, this.#credits.length))
      .map((entry) => ({ entry, slot: this.#credits.pop()! }));
    if (batch.length === 0) return false;
    const isHeld = await this.#engine.exportTo(
      batch.map(({ entry, slot }) => ({ link: entry.link, out: this.#payload(slot) })),
    );
    batch.forEach(({ entry, slot }, i) => {
      const { link } = entry;
      if (isHeld[i]) {
        this.#events.push({ kind: 'exported', link, slot, anchor: this.#exports.copied(entry) });
      } else {
        this.#credits.push(slot);
        this.#exports.failed(link.key);
      }
    });
    // Also when the pool held none of them: there may be more.
    return true;
  }

  #payload(slot: number): Uint8Array {
    assert(this.#slab, 'slots come after the slab');
    const { memory, payloadOffset } = this.#slab;
    return slotBytes(memory, slot).subarray(payloadOffset, payloadOffset + this.#model.layout.payloadBytes);
  }

  /** Tells what happened, and the load when it changed: a cancelled sequence leaves no event. */
  #flush(): void {
    const { pool, load, numSteps, lastStepMs } = this.#engine;
    const { numKeyed, numAvailable, counters } = pool;
    const state = `${load.numRunning} ${load.numWaiting} ${numAvailable}`;
    if (this.#events.length === 0 && state === this.#toldState) return;
    this.#toldState = state;
    post({
      kind: 'events',
      events: this.#events,
      load: { ...load, numSteps, lastStepMs, numKeyed, numAvailable, counters },
    });
    this.#events = [];
  }
}

async function main(): Promise<void> {
  const data = workerData as EngineWorkerData;
  const { model: options, maxWaiting } = data;
  const startMs = systemClock.nowMs();
  let reportedBytes = 0;
  const model = await loadModel(options, (doneBytes, totalBytes) => {
    if (doneBytes - reportedBytes < PROGRESS_BYTES) return;
    reportedBytes = doneBytes;
    post({ kind: 'loading', doneBytes, totalBytes });
  });
  const thread = new EngineThread(model, maxWaiting, options.chunkTokens, options.maxNumSeqs);
  const { namespace, layout, numBlocks, folder, device, description } = model;
  // What the device blocks hold is the longest context here, whatever the model could do.
  const maxModelLen = Math.min(model.maxModelLen, numBlocks * layout.blockSize);
  port?.on('message', (message: ToEngine) => {
    thread.receive(message);
  });
  const loadMs = systemClock.nowMs() - startMs;
  const { vocabSize } = folder.config;
  const modelConfig = configDigest(folder.config);
  post({
    kind: 'ready',
    info: { namespace, layout, numBlocks, maxModelLen, vocabSize, modelConfig, device: description, loadMs },
  });
  const loop = thread.loop(data);
  const failed = loop.catch(async (error: unknown) => {
    // A step that failed because the device went says so in its own words; anything else is the error.
    const why = await Promise.race([device.lost, systemClock.sleep(LAST_ANSWERS_MS)]);
    if (typeof why !== 'string') throw error;
    return why;
  });
  const reason = await Promise.race([device.lost, failed]);
  if (typeof reason === 'string') {
    // Dawn owes answers to the step that ran, and aborts the process when this thread ends before they come.
    thread.receive({ kind: 'stop' });
    await Promise.race([loop.catch(() => undefined), systemClock.sleep(LOST_STEP_MS)]);
    await systemClock.sleep(LAST_ANSWERS_MS);
    throw new Error(`the device was lost: ${reason}`);
  }
  await model.executable.close();
  device.destroy();
  await device.lost;
  post({ kind: 'stopped' });
}

main().catch((error: unknown) => {
  post({ kind: 'failed', message: messageOf(error) });
});
