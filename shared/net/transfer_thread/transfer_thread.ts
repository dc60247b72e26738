/** The control thread's side of the transfer thread. */
import type { MethodsOf, Thread, Threads } from '../../base/threads.ts';
import type { TlsTexts } from '../tls_texts.ts';
import type { TransferThreadEvent, start } from './transfer_methods.ts';

/** The transfer thread, with its methods and the listeners of its events. */
export interface TransferThread extends Thread<MethodsOf<typeof start>> {
  /** Functions that receive every data channel event of the transfer thread. */
  readonly listeners: Set<(event: TransferThreadEvent) => void>;
}

/** Module that the transfer thread runs. */
export const transferThreadModule = { url: new URL('./transfer_worker.js', import.meta.url) };

/** Starts the transfer thread; `onDeath` is called when it dies. With `tls`, data channels are encrypted and both ends are verified. */
export function startTransferThread(threads: Threads, onDeath: (error: Error) => void, tls?: TlsTexts): TransferThread {
  const listeners = new Set<(event: TransferThreadEvent) => void>();
  const thread = threads.spawn<typeof start>(transferThreadModule, tls, {
    onDeath,
    onEvent: (event) => {
      for (const listener of listeners) listener(event);
    },
  });
  return {
    listeners,
    call: (method, argument, signal) => thread.call(method, argument, signal),
    notify: (method, argument) => {
      thread.notify(method, argument);
    },
    close: () => thread.close(),
  };
}
