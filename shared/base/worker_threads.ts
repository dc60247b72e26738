/**
 * Threads as workers of this process.
 *
 * Calls wait here, and a few at a time are with the worker, so that a call whose caller left is never begun. Those that are made for several
 * tenants or clients share the worker fairly (call_queue.ts). At most MAX_PENDING wait (P1). A worker that dies fails every open call.
 */
import assert from 'node:assert/strict';
import { Worker, type Transferable } from 'node:worker_threads';
import { CallQueue, type CallShare } from './call_queue.ts';
import { systemClock } from './clock.ts';
import { Condition } from './condition.ts';
import { nativeCpuMs } from './native_thread.ts';
import { Failure, isFailureCode } from './failure.ts';
import { DONE } from './signal.ts';
import type { ArgumentOf, NameOf, ResultOf, Thread, ThreadListener, Threads } from './threads.ts';

/**
 * Young objects, in MB, of a thread that creates few: three spaces of 2 MB. V8 lets a worker fill 16 MB before it first collects, which a
 * thread that is idle after its start keeps. For others it would cost time: the bodies of requests are parsed in up to 1.6 of it.
 */
const fewObjects = { maxYoungGenerationSizeMb: 6 };

/** Starts each module in a worker thread of this process. */
export const workerThreads: Threads = {
  spawn: (module, data, listener) => {
    const url = new URL('./thread_entry.js', import.meta.url);
    const resourceLimits = module.createsFewObjects === true ? fewObjects : {};
    const worker = new Worker(url, { workerData: { module: module.url.href, data }, resourceLimits });
    const thread = new WorkerThread<never, never>(worker, listener);
    running.add(thread);
    worker.once('exit', () => running.delete(thread));
    return thread;
  },
};

/** Message to the worker: it ends the threads that it has started, and then itself. */
export const END = 'end';

/** Message to the worker: a method call. Without an id no answer is sent. */
export interface Call {
  readonly id: number | undefined;
  readonly method: string;
  readonly argument: unknown;
}

/** Message from the worker: the answer to the call with `id`, or an event. */
export interface Answer {
  readonly id?: number;
  readonly event?: unknown;
  /** First message of a thread on Linux: its id in the operating system. */
  readonly nativeId?: string;
  /** `started`: the module runs, and its libraries are loaded. `ending`: the thread has read END. */
  readonly phase?: 'started' | 'ending';
  readonly value?: unknown;
  readonly error?: string;
  /** Code of the error when it is a Failure. */
  readonly code?: string;
}

interface Pending {
  readonly call: Call;
  readonly resolve: (value: never) => void;
  readonly reject: (error: Error) => void;
}

/** A call that is with the worker since `sentMs`, for whom it is, and when it was sent. */
interface Posted extends Pending {
  readonly key: string | undefined;
  readonly sentMs: number;
}

/** Most calls that may wait for one worker; more means that the caller is faster than the worker can ever be. */
const MAX_PENDING = 65_536;
/** Most calls sent to the worker at once: enough that it is never idle, few enough that a cancelled call is seldom begun. */
const MAX_POSTED = 4;
/** Milliseconds within which a thread reads END unless it computes. One that computes is terminated within its call. */
const READ_MS = 250;
/**
 * Milliseconds that a thread has to end in while it starts, or waits for a thread of its own that starts. Terminated while it loads a
 * native library, a thread takes the whole process down: the library throws, and an ending thread cannot.
 */
const END_MS = 3_000;

/** Threads that this thread has started and that have not ended. */
const running = new Set<Pick<Thread<unknown>, 'close'>>();

/** Ends all threads that this thread has started; resolves when they have ended. For the end of a process, or of a thread. */
export async function endThreads(): Promise<void> {
  await Promise.all([...running].map((thread) => thread.close()));
}

/** A worker and the calls to it: at most MAX_POSTED are with the worker, the others wait here and can still be cancelled. */
export class WorkerThread<M, E> implements Thread<M> {
  readonly #worker: Worker;
  readonly #posted = new Map<number, Posted>();
  readonly #waiting = new CallQueue<Pending>();
  /** When the worker answered last, in ms. */
  #answeredMs = 0;
  /** Id of the thread in the operating system; undefined until it has been sent, or where there is none. */
  #nativeId: string | undefined;
  #nextId = 0;
  #death: Error | undefined;
  /** Last phase that the worker has reported. */
  #phase: Answer['phase'];
  #closing: Promise<void> | undefined;
  /** Notified of a phase and of the end. */
  readonly #changed = new Condition();

  constructor(worker: Worker, listener: ThreadListener<E>) {
    this.#worker = worker;
    worker.on('message', (answer: Answer) => {
      if (answer.nativeId !== undefined) {
        this.#nativeId = answer.nativeId;
        return;
      }
      if (answer.phase !== undefined) {
        this.#phase = answer.phase;
        this.#changed.notify();
        return;
      }
      if (answer.id === undefined) {
        // Its owner does not expect events of a thread that it has closed.
        if (!this.#closing) listener.onEvent?.(answer.event as E);
        return;
      }
      const pending = this.#posted.get(answer.id);
      if (!pending) return;
      this.#ended(answer.id, pending);
      if (answer.error === undefined) pending.resolve(answer.value as never);
      else if (answer.code !== undefined && isFailureCode(answer.code))
        pending.reject(new Failure(answer.code, answer.error));
      else pending.reject(new Error(answer.error));
      this.#post();
    });
    const die = (error: Error): void => {
      if (this.#death) return;
      this.#death = error;
      this.#changed.notify();
      for (const { reject } of [...this.#posted.values(), ...this.#waiting.clear()]) reject(error);
      this.#posted.clear();
      if (!this.#closing) listener.onDeath(error);
    };
    worker.on('error', die);
    worker.on('exit', (code) => {
      die(new Error(`the worker ended with code ${code}`));
    });
  }

  call<K extends NameOf<M>>(
    method: K,
    argument: ArgumentOf<M, K>,
    signal?: AbortSignal,
    share?: CallShare,
  ): Promise<ResultOf<M, K>> {
    return new Promise((resolve, reject) => {
      if (this.#death || signal?.aborted) {
        reject(this.#death ?? cancelled());
        return;
      }
      assert(this.#waiting.size < MAX_PENDING, `over ${MAX_PENDING} calls wait for one worker`);
      const id = this.#nextId++;
      const leave = (): void => {
        if (this.#waiting.remove(id, share)) reject(cancelled());
      };
      signal?.addEventListener('abort', leave, { once: true });
      const settled = (): void => signal?.removeEventListener('abort', leave);
      const pending: Pending = {
        call: { id, method, argument },
        resolve: (value) => {
          settled();
          resolve(value);
        },
        reject: (error) => {
          settled();
          reject(error);
        },
      };
      this.#waiting.add(id, pending, share);
      this.#post();
    });
  }

  notify<K extends NameOf<M>>(method: K, argument: ArgumentOf<M, K>, transfer: readonly Transferable[] = []): void {
    this.#worker.postMessage({ id: undefined, method, argument } satisfies Call, transfer);
  }

  async cpuMs(): Promise<number | undefined> {
    if (this.#death) return undefined;
    const own = this.#nativeId === undefined ? undefined : nativeCpuMs(this.#nativeId);
    if (own !== undefined) return own;
    // Node 24 and later, where the system has no such file: the thread itself answers, also within one long computation.
    if ('cpuUsage' in this.#worker && typeof this.#worker.cpuUsage === 'function') {
      const usage = this.#worker.cpuUsage as () => Promise<{ readonly user: number; readonly system: number }>;
      return usage.call(this.#worker).then(
        ({ user, system }) => (user + system) / 1_000,
        () => undefined,
      );
    }
    return undefined;
  }

  #post(): void {
    while (this.#posted.size < MAX_POSTED) {
      const next = this.#waiting.next();
      if (!next) return;
      const { id, call: pending, key } = next;
      const posted = { ...pending, key, sentMs: systemClock.nowMs() };
      this.#posted.set(id, posted);
      try {
        this.#worker.postMessage(pending.call);
      } catch (error) {
        // An argument that cannot be cloned fails its own call, and no other.
        this.#ended(id, posted);
        pending.reject(error as Error);
      }
    }
  }

  /** A call is with the worker no more. The worker does one at a time: its time began when the one before had ended. */
  #ended(id: number, { key, sentMs }: Posted): void {
    this.#posted.delete(id);
    const nowMs = systemClock.nowMs();
    this.#waiting.ended(key, nowMs - Math.max(sentMs, this.#answeredMs));
    this.#answeredMs = nowMs;
  }

  close(): Promise<void> {
    this.#closing ??= this.#end();
    return this.#closing;
  }

  async #end(): Promise<void> {
    if (!this.#death) this.#worker.postMessage(END);
    if (this.#phase === 'started') await this.#within(READ_MS, () => this.#phase === 'ending');
    if (this.#phase !== 'started') await this.#within(END_MS, () => false);
    await this.#worker.terminate();
  }

  /** Waits until `holds`, the thread has ended, or `ms` milliseconds have passed. */
  async #within(ms: number, holds: () => boolean): Promise<void> {
    const late = new AbortController();
    const timer = setTimeout(() => {
      late.abort(DONE);
    }, ms);
    await this.#changed.until(() => this.#death !== undefined || holds(), late.signal);
    clearTimeout(timer);
  }
}

function cancelled(): Failure {
  return new Failure('cancelled', 'the caller went away');
}
