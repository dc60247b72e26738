/** The control thread's side of the mover thread. */
import type { MethodsOf, Thread, Threads } from '../../base/threads.ts';
import type { TlsTexts } from '../tls_texts.ts';
import type { MoverEvent, start } from './mover_worker.ts';

export interface Mover extends Thread<MethodsOf<typeof start>> {
  /** Those who are told what happens on lanes. */
  readonly listeners: Set<(event: MoverEvent) => void>;
}

export const moverModule = { url: new URL('./mover_worker.js', import.meta.url) };

/** `tls`: lanes are encrypted, with what their ends show each other. */
export function startMover(threads: Threads, onDeath: (error: Error) => void, tls?: TlsTexts): Mover {
  const listeners = new Set<(event: MoverEvent) => void>();
  const thread = threads.spawn<typeof start>(moverModule, tls, {
    onDeath,
    onEvent: (event) => {
      for (const listener of listeners) listener(event);
    },
  });
  return {
    listeners,
    call: (method, argument, signal) => thread.call(method, argument, signal),
    tell: (method, argument) => {
      thread.tell(method, argument);
    },
    close: () => thread.close(),
  };
}
