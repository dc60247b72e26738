/** The control thread's handle on the engine thread. */
import type { Clock } from '../base/clock.ts';
import type { Thread, Threads } from '../base/threads.ts';
import type { SlabMemory } from '../kv/slab.ts';
import type { LoopEvent, EngineInfo, EngineLoad, EngineWorkerData, FromEngine, ToEngine } from './engine_messages.ts';
import type { EngineMethods, start } from './engine_worker.ts';
import type { SequenceRequest } from './sequence_request.ts';

/** Milliseconds that a stop waits for the running step; a device that takes longer hangs. */
const STOP_MS = 10_000;

/** Module of the engine thread, for `Threads.spawn`. */
export const engineModule = { url: new URL('./engine_worker.js', import.meta.url) };

/** Callbacks for the progress, events and death of an engine thread. */
export interface EngineHostListener {
  /** The engine has read `doneBytes` of the `totalBytes` of its weights. */
  onLoading(doneBytes: number, totalBytes: number): void;
  /** The engine has emitted an event. */
  onEvent(event: LoopEvent): void;
  /** The engine thread died: nothing more will come. */
  onDeath(error: Error): void;
}

/** Handle of the control thread on one engine thread: starts it, sends messages, dispatches events, stops it. */
export class EngineHost {
  readonly info: EngineInfo;
  readonly #thread: Thread<EngineMethods>;
  #isStopping = false;
  #isDead = false;
  #onStopped: () => void = () => undefined;
  /** Load sent with the engine thread's latest events; undefined before the first. */
  load: EngineLoad | undefined;

  private constructor(thread: Thread<EngineMethods>, info: EngineInfo) {
    this.#thread = thread;
    this.info = info;
  }

  /** Resolves when the model is loaded. @throws Error with the model's or the device's own message. */
  static async start(threads: Threads, data: EngineWorkerData, listener: EngineHostListener): Promise<EngineHost> {
    let host: EngineHost | undefined;
    let thread: Thread<EngineMethods> | undefined;
    const info = await new Promise<EngineInfo>((resolve, reject) => {
      const fail = (error: Error): void => {
        if (host) host.#isDead = true;
        if (!host) reject(error);
        else if (!host.#isStopping) listener.onDeath(error);
        if (host) host.#onStopped();
      };
      const onEvent = (message: FromEngine): void => {
        if (message.kind === 'loading') listener.onLoading(message.doneBytes, message.totalBytes);
        else if (message.kind === 'ready') resolve(message.info);
        else if (message.kind === 'failed') fail(new Error(message.message));
        else if (host && message.kind === 'stopped') host.#onStopped();
        else if (host && message.kind === 'events') host.#receive(message, listener);
      };
      thread = threads.spawn<typeof start>(engineModule, data, { onEvent, onDeath: fail });
    });
    host = new EngineHost(thread!, info);
    return host;
  }

  #receive({ events, load }: Extract<FromEngine, { kind: 'events' }>, listener: EngineHostListener): void {
    this.load = {
      ...load,
      work: load.work ?? this.load?.work,
      residency: load.residency ?? this.load?.residency,
    };
    for (const event of events) listener.onEvent(event);
  }

  attach(slab: SlabMemory): void {
    this.send({ kind: 'attach', slab });
  }

  submit(request: SequenceRequest): void {
    this.#thread.notify('submit', request);
  }

  send(message: ToEngine): void {
    this.#thread.notify('receive', message);
  }

  /**
   * Stops the thread after the running step, or after STOP_MS. A thread that ends while Dawn owes it an answer takes the whole process
   * down.
   */
  async stop(clock: Clock): Promise<void> {
    this.#isStopping = true;
    const stopped = new Promise<void>((resolve) => {
      this.#onStopped = resolve;
    });
    this.send({ kind: 'stop' });
    if (!this.#isDead) await Promise.race([stopped, clock.sleep(STOP_MS)]);
    await this.#thread.close();
  }
}
