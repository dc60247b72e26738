/**
 * Work beside the control thread: a module whose `start` gives named methods, called from here, and events that it emits. Who runs it
 * is a driver: a worker thread, or in tests this very thread.
 */

import type { Transferable } from 'node:worker_threads';

/** What a thread's module exports as `start`: gives an object whose methods can be called from outside. */
export type Start<D, M extends object, E> = (data: D, emit: (event: E) => void) => M | Promise<M>;

// eslint-disable-next-line @typescript-eslint/no-explicit-any -- what any module's `start` is, to be taken apart below
type AnyStart = Start<any, any, any>;
type DataOf<S extends AnyStart> = Parameters<S>[0];
export type MethodsOf<S extends AnyStart> = Awaited<ReturnType<S>>;
type EventOf<S extends AnyStart> = Parameters<Parameters<S>[1]>[0];

type Method = (argument: never) => unknown;
/** The names of an object's methods. */
export type NameOf<M> = { [K in keyof M]: M[K] extends Method ? K : never }[keyof M] & string;
export type ArgumentOf<M, K extends keyof M> = M[K] extends Method ? Parameters<M[K]>[0] : never;
export type ResultOf<M, K extends keyof M> = M[K] extends Method ? Awaited<ReturnType<M[K]>> : never;

export interface Thread<M> {
  /** One at a time, in order. @throws Failure `cancelled` when `signal` aborts before it has begun; Error when the thread died. */
  call<K extends NameOf<M>>(method: K, argument: ArgumentOf<M, K>, signal?: AbortSignal): Promise<ResultOf<M, K>>;
  /** Without an answer, and without waiting for calls before it. `transfer`: what of the argument is its own from now on. */
  notify<K extends NameOf<M>>(method: K, argument: ArgumentOf<M, K>, transfer?: readonly Transferable[]): void;
  /** Ends it where it is. */
  close(): Promise<void>;
}

export interface ThreadListener<E> {
  onEvent?(event: E): void;
  /** It ended without being asked to: who depends on it cannot go on. */
  onDeath(error: Error): void;
}

/** Of a module that exports {@link Start}; the type says which. */
export interface ThreadModule {
  readonly url: URL;
}

export interface Threads {
  spawn<S extends AnyStart>(
    module: ThreadModule,
    data: DataOf<S>,
    listener: ThreadListener<EventOf<S>>,
  ): Thread<MethodsOf<S>>;
}
