/** Message link between two threads that bypasses the thread that started them. */
import { MessageChannel, receiveMessageOnPort, type MessagePort, type Transferable } from 'node:worker_threads';

/** One end of a link, which can be transferred to the thread that will use it. */
export type LinkEnd = MessagePort & Transferable;

/** Returns the two ends of a new link, one for each thread. */
export function linkEnds(): readonly [LinkEnd, LinkEnd] {
  const { port1, port2 } = new MessageChannel();
  return [port1, port2];
}

/** One end of a link between two threads: sends messages of type `Out` and receives messages of type `In`. */
export class ThreadLink<Out, In> {
  readonly #port: LinkEnd;

  constructor(end: LinkEnd) {
    this.#port = end;
  }

  post(message: Out): void {
    this.#port.postMessage(message);
  }

  /** Yields the messages that have arrived, without returning to the event loop. Not for a link whose messages go to serve(). */
  *arrived(): Generator<In> {
    for (let got = receiveMessageOnPort(this.#port); got; got = receiveMessageOnPort(this.#port))
      yield got.message as In;
  }

  /** Calls `begin` for each message, then the step that it returns until the step returns false, one turn of the event loop apart. */
  serve(begin: (message: In) => () => boolean): void {
    this.#port.on('message', (message: In) => {
      const step = begin(message);
      const turn = (): void => {
        if (step()) setImmediate(turn);
      };
      turn();
    });
  }

  close(): void {
    this.#port.close();
  }
}
