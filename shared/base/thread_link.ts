/** A way from one thread to another, past the thread that started both. */
import { MessageChannel, receiveMessageOnPort, type MessagePort, type Transferable } from 'node:worker_threads';

/** What an end is while it is on its way to its thread. */
export type LinkEnd = MessagePort & Transferable;

export function linkEnds(): readonly [LinkEnd, LinkEnd] {
  const { port1, port2 } = new MessageChannel();
  return [port1, port2];
}

export class ThreadLink<Out, In> {
  readonly #port: LinkEnd;

  constructor(end: LinkEnd) {
    this.#port = end;
  }

  post(message: Out): void {
    this.#port.postMessage(message);
  }

  /** What has come, without going back to the event loop; not of a link that serves. */
  *arrived(): Generator<In> {
    for (let got = receiveMessageOnPort(this.#port); got; got = receiveMessageOnPort(this.#port))
      yield got.message as In;
  }

  /** `step` as long as it says that there is more, other work of this thread in between. */
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
