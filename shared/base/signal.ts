/** Signals that follow others, and let go of them. */
import { setMaxListeners } from 'node:events';

/** Why a signal ends that nobody asks for its reason: one for all, because every other has a stack of its own. */
export const DONE = new Error('nobody waits for it any more');

/** A signal that aborts with the first of its sources, or by `abort`; see linkSignals. */
export interface Link {
  readonly signal: AbortSignal;
  abort(reason?: unknown): void;
  /** Follows its sources no longer. */
  release(): void;
}

/**
 * One signal for several. Unlike AbortSignal.any it is let go of at the end, so that it does not stay with a source that lives as
 * long as the process.
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
