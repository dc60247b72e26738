/** A thread that starts when it is first called. */
import type { Transferable } from 'node:worker_threads';
import type { CallShare } from './call_queue.ts';
import { Failure } from './failure.ts';
import type { ArgumentOf, NameOf, ResultOf, Thread } from './threads.ts';

/** Starts its thread with the first call or notification, and passes on that one and all others. */
export class LateThread<M> implements Thread<M> {
  readonly #start: () => Thread<M>;
  #thread: Thread<M> | undefined;
  #isClosed = false;

  /** `start` is called once at most. */
  constructor(start: () => Thread<M>) {
    this.#start = start;
  }

  #started(): Thread<M> {
    if (this.#isClosed) throw new Failure('cancelled', 'the thread was closed');
    return (this.#thread ??= this.#start());
  }

  /** @throws Failure `cancelled` after close(), as the calls of a thread that was closed fail */
  async call<K extends NameOf<M>>(
    method: K,
    argument: ArgumentOf<M, K>,
    signal?: AbortSignal,
    share?: CallShare,
  ): Promise<ResultOf<M, K>> {
    return this.#started().call(method, argument, signal, share);
  }

  notify<K extends NameOf<M>>(method: K, argument: ArgumentOf<M, K>, transfer?: readonly Transferable[]): void {
    this.#started().notify(method, argument, transfer);
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#thread?.close();
  }
}
