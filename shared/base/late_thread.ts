/** A thread that starts when it is first called. */
import type { Transferable } from 'node:worker_threads';
import type { ArgumentOf, NameOf, ResultOf, Thread } from './threads.ts';

/** Starts its thread with the first call or notification, and passes on that one and all others. */
export class LateThread<M> implements Thread<M> {
  readonly #start: () => Thread<M>;
  #thread: Thread<M> | undefined;

  /** `start` is called once at most. */
  constructor(start: () => Thread<M>) {
    this.#start = start;
  }

  #started(): Thread<M> {
    return (this.#thread ??= this.#start());
  }

  call<K extends NameOf<M>>(method: K, argument: ArgumentOf<M, K>, signal?: AbortSignal): Promise<ResultOf<M, K>> {
    return this.#started().call(method, argument, signal);
  }

  notify<K extends NameOf<M>>(method: K, argument: ArgumentOf<M, K>, transfer?: readonly Transferable[]): void {
    this.#started().notify(method, argument, transfer);
  }

  async close(): Promise<void> {
    await this.#thread?.close();
  }
}
