/** The control thread's side of the transfer thread. */
import type { Current } from '../../base/current.ts';
import type { MethodsOf, Thread, Threads } from '../../base/threads.ts';
import type { TlsTexts } from '../tls_texts.ts';
import type { TransferThreadEvent, start } from './transfer_methods.ts';

/** The transfer thread, with its methods and the listeners of its events. */
export interface TransferThread extends Thread<MethodsOf<typeof start>> {
  /** Functions that receive every data channel event of the transfer thread. */
  readonly listeners: Set<(event: TransferThreadEvent) => void>;
}

/** Module that the transfer thread runs. */
export const transferThreadModule = { url: new URL('./transfer_worker.js', import.meta.url), createsFewObjects: true };

/**
 * Starts the transfer thread; `onDeath` is called when it dies. With `tls`, data channels are encrypted and both ends are verified; what is
 * renewed holds for connections that begin then.
 */
export function startTransferThread(
  threads: Threads,
  onDeath: (error: Error) => void,
  tls?: Current<TlsTexts>,
): TransferThread {
  const listeners = new Set<(event: TransferThreadEvent) => void>();
  const thread = threads.spawn<typeof start>(transferThreadModule, tls?.value, {
    onDeath,
    onEvent: (event) => {
      for (const listener of listeners) listener(event);
    },
  });
  const endRenewal = tls?.onReplace((texts) => {
    thread.notify('renew', texts);
  });
  return {
    listeners,
    call: (method, argument, signal) => thread.call(method, argument, signal),
    notify: (method, argument) => {
      thread.notify(method, argument);
    },
    close: () => {
      endRenewal?.();
      return thread.close();
    },
  };
}
