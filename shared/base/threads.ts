/**
 * Work off the control thread: a module whose `start` returns named methods, which are called from here, and which emits events. A
 * driver runs it: a worker thread, or in tests the calling thread.
 */

import type { Transferable } from 'node:worker_threads';
import type { CallShare } from './call_queue.ts';

/** Type of the function `start` that a thread's module exports: returns the object whose methods other threads can call. */
export type Start<D, M extends object, E> = (data: D, emit: (event: E) => void) => M | Promise<M>;

// eslint-disable-next-line @typescript-eslint/no-explicit-any -- what any module's `start` is, to be taken apart below
type AnyStart = Start<any, any, any>;
type DataOf<S extends AnyStart> = Parameters<S>[0];
/** Object of methods that a module's `start` returns. */
export type MethodsOf<S extends AnyStart> = Awaited<ReturnType<S>>;
type EventOf<S extends AnyStart> = Parameters<Parameters<S>[1]>[0];

type Method = (argument: never) => unknown;
/** The names of an object's methods. */
export type NameOf<M> = { [K in keyof M]: M[K] extends Method ? K : never }[keyof M] & string;
/** Argument of the method `K` of `M`. */
export type ArgumentOf<M, K extends keyof M> = M[K] extends Method ? Parameters<M[K]>[0] : never;
/** Result of the method `K` of `M`, after its promise has resolved. */
export type ResultOf<M, K extends keyof M> = M[K] extends Method ? Awaited<ReturnType<M[K]>> : never;

/** CPU time of a thread. */
export interface CpuTime {
  /** Returns the milliseconds of CPU time that the thread has used so far; undefined where the system does not say it. */
  cpuMs?(): Promise<number | undefined>;
}

/** A started module, as its caller sees it. */
export interface Thread<M> extends CpuTime {
  /**
   * Calls a method; calls run one at a time, those of one share in order. `share`: for whom it is, where several share the thread. @throws Failure
   * `cancelled` when `signal` aborts before the call has begun; Error when the thread died.
   */
  call<K extends NameOf<M>>(
    method: K,
    argument: ArgumentOf<M, K>,
    signal?: AbortSignal,
    share?: CallShare,
  ): Promise<ResultOf<M, K>>;
  /**
   * Calls a method without an answer, and without waiting for earlier calls. `transfer` lists objects in the argument whose ownership
   * moves to the thread.
   */
  notify<K extends NameOf<M>>(method: K, argument: ArgumentOf<M, K>, transfer?: readonly Transferable[]): void;
  /** Ends the thread, and those that it has started: at once when it waits, soon within a call, and between two steps of its start. */
  close(): Promise<void>;
}

/** Callbacks for a thread's events and for its death. */
export interface ThreadListener<E> {
  /** The thread has emitted an event. */
  onEvent?(event: E): void;
  /** The thread ended without close() being called. Its owner cannot continue without it. */
  onDeath(error: Error): void;
}

/** Location of a module that exports {@link Start}; the type argument of `spawn` names the type of that function. */
export interface ThreadModule {
  readonly url: URL;
  /** Whether the module creates few objects, also at work: its thread then has little room for new ones. */
  readonly createsFewObjects?: boolean;
}

/** Starts modules on threads of their own: worker threads, or in tests the calling thread. */
export interface Threads {
  /** Starts the module with `data`; its events and its death go to `listener`. */
  spawn<S extends AnyStart>(
    module: ThreadModule,
    data: DataOf<S>,
    listener: ThreadListener<EventOf<S>>,
  ): Thread<MethodsOf<S>>;
}
