/** The control thread's handle on the engine thread. */
import { Worker } from 'node:worker_threads';
import type { SlabMemory } from '../kv/slab.ts';
import type { EngineEvent, EngineInfo, EngineLoad, EngineWorkerData, FromEngine, ToEngine } from './engine_messages.ts';

export interface EngineHostListener {
  onLoading(doneBytes: number, totalBytes: number): void;
  onEvent(event: EngineEvent): void;
  /** The engine thread died: nothing more will come. */
  onDeath(error: Error): void;
}

export class EngineHost {
  readonly info: EngineInfo;
  readonly #worker: Worker;
  /** As of the last step that had something to tell. */
  load: EngineLoad | undefined;

  private constructor(worker: Worker, info: EngineInfo) {
    this.#worker = worker;
    this.info = info;
  }

  /** Resolves when the model is loaded. @throws Error with the model's or the device's own message. */
  static async start(data: EngineWorkerData, listener: EngineHostListener): Promise<EngineHost> {
    const worker = new Worker(new URL('./engine_worker.js', import.meta.url), { workerData: data });
    const info = await new Promise<EngineInfo>((resolve, reject) => {
      worker.on('message', (message: FromEngine) => {
        if (message.kind === 'loading') listener.onLoading(message.doneBytes, message.totalBytes);
        else if (message.kind === 'ready') resolve(message.info);
        else if (message.kind === 'failed') reject(new Error(message.message));
      });
      worker.once('error', reject);
      worker.once('exit', (code) => {
        reject(new Error(`the engine thread ended with code ${code}`));
      });
    });
    const host = new EngineHost(worker, info);
    worker.removeAllListeners();
    worker.on('message', (message: FromEngine) => {
      if (message.kind === 'failed') listener.onDeath(new Error(message.message));
      if (message.kind !== 'events') return;
      host.load = message.load;
      for (const event of message.events) listener.onEvent(event);
    });
    worker.on('error', (error) => {
      listener.onDeath(error);
    });
    return host;
  }

  attach(slab: SlabMemory, payloadOffset: number): void {
    this.send({ kind: 'attach', slab, payloadOffset });
  }

  send(message: ToEngine): void {
    this.#worker.postMessage(message);
  }

  async stop(): Promise<void> {
    this.#worker.removeAllListeners('error');
    await this.#worker.terminate();
  }
}
