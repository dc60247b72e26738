/** The control thread's handle on the engine thread. */
import { Worker } from 'node:worker_threads';
import type { Clock } from '../base/clock.ts';
import type { SlabMemory } from '../kv/slab.ts';
import type { EngineEvent, EngineInfo, EngineLoad, EngineWorkerData, FromEngine, ToEngine } from './engine_messages.ts';

/** A step takes this long at most, or its device hangs. */
const STOP_MS = 10_000;

export interface EngineHostListener {
  onLoading(doneBytes: number, totalBytes: number): void;
  onEvent(event: EngineEvent): void;
  /** The engine thread died: nothing more will come. */
  onDeath(error: Error): void;
}

export class EngineHost {
  readonly info: EngineInfo;
  readonly #worker: Worker;
  #isStopping = false;
  #isDead = false;
  #onStopped: () => void = () => undefined;
  /** As of the last step that had something to tell. */
  load: EngineLoad | undefined;

  private constructor(worker: Worker, info: EngineInfo) {
    this.#worker = worker;
    this.info = info;
  }

  /** Resolves when the model is loaded. @throws Error with the model's or the device's own message. */
  static async start(data: EngineWorkerData, listener: EngineHostListener): Promise<EngineHost> {
    const worker = new Worker(new URL('./engine_worker.js', import.meta.url), { workerData: data });
    let host: EngineHost | undefined;
    const info = await new Promise<EngineInfo>((resolve, reject) => {
      const fail = (error: Error): void => {
        if (host) host.#isDead = true;
        if (host) listener.onDeath(error);
        else reject(error);
      };
      worker.on('message', (message: FromEngine) => {
        if (message.kind === 'loading') listener.onLoading(message.doneBytes, message.totalBytes);
        else if (message.kind === 'ready') resolve(message.info);
        else if (message.kind === 'failed') fail(new Error(message.message));
        else if (host && message.kind === 'stopped') host.#onStopped();
        else if (host && message.kind === 'events') host.#receive(message, listener);
      });
      worker.on('error', fail);
      worker.on('exit', (code) => {
        if (host === undefined || !host.#isStopping) fail(new Error(`the engine thread ended with code ${code}`));
      });
    });
    host = new EngineHost(worker, info);
    return host;
  }

  #receive({ events, load }: Extract<FromEngine, { kind: 'events' }>, listener: EngineHostListener): void {
    this.load = load;
    for (const event of events) listener.onEvent(event);
  }

  attach(slab: SlabMemory, payloadOffset: number): void {
    this.send({ kind: 'attach', slab, payloadOffset });
  }

  send(message: ToEngine): void {
    this.#worker.postMessage(message);
  }

  /** Waits for the step that runs: a thread that ends while Dawn owes it an answer takes the whole process down. */
  async stop(clock: Clock): Promise<void> {
    this.#isStopping = true;
    const stopped = new Promise<void>((resolve) => {
      this.#onStopped = resolve;
      this.#worker.once('exit', () => {
        resolve();
      });
    });
    this.send({ kind: 'stop' });
    if (!this.#isDead) await Promise.race([stopped, clock.sleep(STOP_MS)]);
    await this.#worker.terminate();
  }
}
