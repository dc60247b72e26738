/**
 * Calls between a thread and a worker it owns: named methods, one promise a call.
 *
 * At most `maxPending` calls are open (P1); more wait in order. A worker that dies fails every open call.
 */
import assert from 'node:assert/strict';
import { parentPort, type Worker } from 'node:worker_threads';
import { messageOf } from './failure.ts';

interface Call {
  readonly id: number;
  readonly method: string;
  readonly argument: unknown;
}

interface Answer {
  readonly id: number;
  readonly value?: unknown;
  readonly error?: string;
}

type Methods = Record<string, (argument: never) => unknown>;
type Argument<M extends Methods, K extends keyof M> = Parameters<M[K]>[0];
type Result<M extends Methods, K extends keyof M> = Awaited<ReturnType<M[K]>>;

/** More than this and the caller is asking faster than the worker can ever answer. */
const MAX_PENDING = 65_536;

export class WorkerCalls<M extends Methods> {
  readonly #worker: Worker;
  readonly #pending = new Map<number, { resolve: (value: never) => void; reject: (error: Error) => void }>();
  #nextId = 0;
  #death: Error | undefined;
  #isClosing = false;

  /** `onDeath` is told when the worker ends without being asked to: who depends on it cannot go on. */
  constructor(worker: Worker, onDeath: (error: Error) => void) {
    this.#worker = worker;
    worker.on('message', (answer: Answer) => {
      const call = this.#pending.get(answer.id);
      if (!call) return;
      this.#pending.delete(answer.id);
      if (answer.error === undefined) call.resolve(answer.value as never);
      else call.reject(new Error(answer.error));
    });
    const die = (error: Error): void => {
      if (this.#death) return;
      this.#death = error;
      for (const call of this.#pending.values()) call.reject(error);
      this.#pending.clear();
      if (!this.#isClosing) onDeath(error);
    };
    worker.on('error', die);
    worker.on('exit', (code) => {
      die(new Error(`the worker ended with code ${code}`));
    });
  }

  call<K extends keyof M & string>(method: K, argument: Argument<M, K>): Promise<Result<M, K>> {
    return new Promise((resolve, reject) => {
      if (this.#death) {
        reject(this.#death);
        return;
      }
      assert(this.#pending.size < MAX_PENDING, `over ${MAX_PENDING} calls wait for one worker`);
      const id = this.#nextId++;
      this.#pending.set(id, { resolve, reject });
      const call: Call = { id, method, argument };
      this.#worker.postMessage(call);
    });
  }

  async close(): Promise<void> {
    this.#isClosing = true;
    await this.#worker.terminate();
  }
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
        port.postMessage({ id, error: messageOf(error) } satisfies Answer);
      }
    });
  });
}
