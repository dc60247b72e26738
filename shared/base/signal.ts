/** Abort signals that follow other signals and can stop following them. */
import { setMaxListeners } from 'node:events';

/** Reason of aborts whose reason nobody reads. One shared Error, because every new one captures a stack. */
export const DONE = new Error('cancelled: no caller waits for the result any more');

/** A signal that aborts with the first of its sources, or by `abort`; see linkSignals. */
export interface Link {
  readonly signal: AbortSignal;
  /** Aborts the signal, whatever its sources do. */
  abort(reason?: unknown): void;
  /** Stops following the sources. */
  release(): void;
}

/**
 * Returns a signal that aborts with the first of its sources. Unlike AbortSignal.any, release() removes its listeners, so none stays
 * on a source that lives as long as the process.
 */
export function linkSignals(...sources: readonly AbortSignal[]): Link {
  const controller = new AbortController();
  // One listener per call that runs under it, taken away when it ends.
  setMaxListeners(0, controller.signal);
  const undo = sources.map((source) => {
    const follow = (): void => {
      controller.abort(source.reason);
    };
    source.addEventListener('abort', follow);
    if (source.aborted) follow();
    return () => source.removeEventListener('abort', follow);
  });
  return {
    signal: controller.signal,
    abort: (reason = DONE) => {
      controller.abort(reason);
    },
    release: () => {
      for (const step of undo) step();
    },
  };
}

/** Settles as `work` does, or rejects with the error of `aborted` as soon as `signal` aborts; the work then goes on unheard. */
export function abortable<T>(work: Promise<T>, signal: AbortSignal | undefined, aborted: () => Error): Promise<T> {
  if (!signal) return work;
  return new Promise((resolve, reject) => {
    const leave = (): void => {
      reject(aborted());
    };
    signal.addEventListener('abort', leave, { once: true });
    work.then(resolve, reject).finally(() => {
      signal.removeEventListener('abort', leave);
    });
    if (signal.aborted) leave();
  });
}
