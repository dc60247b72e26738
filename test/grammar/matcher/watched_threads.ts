/** Worker threads that a test watches: what is called, and an end that nobody expects. */
import type { Thread, ThreadListener, ThreadModule, Threads } from '../../../shared/base/threads.ts';
import { workerThreads } from '../../../shared/base/worker_threads.ts';

interface Watched {
  readonly thread: Thread<object>;
  readonly listener: ThreadListener<never>;
  readonly calls: { readonly method: string; readonly argument: unknown }[];
  isOver: boolean;
}

/** Starts `module` in place of the real one, when there is one. */
export class WatchedThreads implements Threads {
  readonly started: Watched[] = [];
  readonly #module: ThreadModule | undefined;

  constructor(module?: ThreadModule) {
    this.#module = module;
  }

  /** Threads that run. */
  get numRunning(): number {
    return this.started.filter(({ isOver }) => !isOver).length;
  }

  /** All calls of a method, in all threads. */
  argumentsOf(method: string): unknown[] {
    return this.started
      .flatMap(({ calls }) => calls.filter((call) => call.method === method))
      .map((call) => call.argument);
  }

  spawn: Threads['spawn'] = (module, data, listener) => {
    const thread = workerThreads.spawn(this.#module ?? module, data as never, listener as never) as Thread<object>;
    const watched: Watched = { thread, listener: listener as ThreadListener<never>, calls: [], isOver: false };
    this.started.push(watched);
    return {
      call: (method: string, argument: unknown, signal?: AbortSignal) => {
        watched.calls.push({ method, argument });
        return thread.call(method as never, argument as never, signal);
      },
      notify: () => {
        throw new Error('every message has an answer');
      },
      cpuMs: () => thread.cpuMs?.() ?? Promise.resolve(undefined),
      close: async () => {
        watched.isOver = true;
        await thread.close();
      },
    } as never;
  };

  /** Ends a thread as if it had crashed. */
  async kill(index: number): Promise<void> {
    const watched = this.started[index];
    if (!watched || watched.isOver) throw new Error(`thread ${index} does not run`);
    watched.isOver = true;
    await watched.thread.close();
    watched.listener.onDeath(new Error('killed'));
  }
}
