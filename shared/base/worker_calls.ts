/**
 * Calls between a thread and a worker it owns: named methods, one promise a call.
 *
 * Calls wait here, in order, and a few at a time are with the worker, so that a call whose caller left is never begun. At most
 * MAX_PENDING wait (P1). A worker that dies fails every open call.
 */
import assert from 'node:assert/strict';
import { parentPort, type Worker } from 'node:worker_threads';
import { Failure, isFailureCode, messageOf } from './failure.ts';

interface Call {
  readonly id: number;
  readonly method: string;
  readonly argument: unknown;
}

interface Answer {
  readonly id: number;
  readonly value?: unknown;
  readonly error?: string;
  /** Of a Failure. */
  readonly code?: string;
}

interface Pending {
  readonly call: Call;
  readonly resolve: (value: never) => void;
  readonly reject: (error: Error) => void;
}

type Methods = Record<string, (argument: never) => unknown>;
type Argument<M extends Methods, K extends keyof M> = Parameters<M[K]>[0];
type Result<M extends Methods, K extends keyof M> = Awaited<ReturnType<M[K]>>;

/** More than this and the caller is asking faster than the worker can ever answer. */
const MAX_PENDING = 65_536;
/** With the worker: enough that it never waits for the next, few enough that what nobody wants is not begun. */
const MAX_POSTED = 4;

export class WorkerCalls<M extends Methods> {
  readonly #worker: Worker;
  readonly #posted = new Map<number, Pending>();
  readonly #waiting = new Map<number, Pending>();
  #nextId = 0;
  #death: Error | undefined;
  #isClosing = false;

  /** `onDeath` is told when the worker ends without being asked to: who depends on it cannot go on. */
  constructor(worker: Worker, onDeath: (error: Error) => void) {
    this.#worker = worker;
    worker.on('message', (answer: Answer) => {
      const pending = this.#posted.get(answer.id);
      if (!pending) return;
      this.#posted.delete(answer.id);
      if (answer.error === undefined) pending.resolve(answer.value as never);
      else if (answer.code !== undefined && isFailureCode(answer.code))
        pending.reject(new Failure(answer.code, answer.error));
      else pending.reject(new Error(answer.error));
      this.#post();
    });
    const die = (error: Error): void => {
      if (this.#death) return;
      this.#death = error;
      for (const calls of [this.#posted, this.#waiting]) {
        for (const { reject } of calls.values()) reject(error);
        calls.clear();
      }
      if (!this.#isClosing) onDeath(error);
    };
    worker.on('error', die);
    worker.on('exit', (code) => {
      die(new Error(`the worker ended with code ${code}`));
    });
  }

  /** @throws Failure `cancelled` when `signal` aborts before the worker has begun. */
  call<K extends keyof M & string>(method: K, argument: Argument<M, K>, signal?: AbortSignal): Promise<Result<M, K>> {
    return new Promise((resolve, reject) => {
      if (this.#death || signal?.aborted) {
        reject(this.#death ?? cancelled());
        return;
      }
      assert(this.#waiting.size < MAX_PENDING, `over ${MAX_PENDING} calls wait for one worker`);
      const id = this.#nextId++;
      const leave = (): void => {
        if (this.#waiting.delete(id)) reject(cancelled());
      };
      signal?.addEventListener('abort', leave, { once: true });
      const settled = (): void => signal?.removeEventListener('abort', leave);
      this.#waiting.set(id, {
        call: { id, method, argument },
        resolve: (value) => {
          settled();
          resolve(value);
        },
        reject: (error) => {
          settled();
          reject(error);
        },
      });
      this.#post();
    });
  }

  #post(): void {
    for (const [id, pending] of this.#waiting) {
      if (this.#posted.size >= MAX_POSTED) return;
      this.#waiting.delete(id);
      this.#posted.set(id, pending);
      this.#worker.postMessage(pending.call);
    }
  }

  async close(): Promise<void> {
    this.#isClosing = true;
    await this.#worker.terminate();
  }
}

function cancelled(): Failure {
  return new Failure('cancelled', 'the caller went away');
}

/** In the worker: answers calls in the order they came, one at a time. */
export function serveCalls(methods: Methods): void {
  const port = parentPort;
  assert(port, 'serveCalls runs in a worker thread');
  let last: Promise<void> = Promise.resolve();
  port.on('message', ({ id, method, argument }: Call) => {
    last = last.then(async () => {
      try {
        const run = methods[method];
        assert(run, `no method ${method}`);
        port.postMessage({ id, value: await run(argument as never) } satisfies Answer);
      } catch (error) {
        const code = error instanceof Failure ? { code: error.code } : {};
        port.postMessage({ id, error: messageOf(error), ...code } satisfies Answer);
      }
    });
  });
}
