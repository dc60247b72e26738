/** Reads server-sent events from the bytes of a connection with HTTP/1.1, at little cost: it knows only what such answers have. */

/** Receiver of what an answer has. */
export interface AnswerListener {
  /** Called with status line and headers. */
  onHead(head: string): void;
  /** Called with each event, without the empty line after it. */
  onEvent(event: string): void;
  /** Called after the last chunk. */
  onEnd(): void;
}

/** The answer to one request, in chunks. Characters are bytes (latin1). */
export class EventReader {
  readonly #listener: AnswerListener;
  /** Text received that nothing can be made of yet. */
  #rest = '';
  #hasHead = false;
  /** Characters of the current chunk that have not come. */
  #missing = 0;
  /** Text of the event that has not ended. */
  #event = '';

  constructor(listener: AnswerListener) {
    this.#listener = listener;
  }

  /** Reads the next bytes of the connection. */
  read(bytes: string): void {
    const text = this.#rest + bytes;
    let at = 0;
    if (!this.#hasHead) {
      const end = text.indexOf('\r\n\r\n');
      if (end >= 0) {
        this.#hasHead = true;
        this.#listener.onHead(text.slice(0, end));
        at = end + 4;
      }
    }
    if (this.#hasHead) at = this.#readChunks(text, at);
    this.#rest = text.slice(at);
  }

  /** Reads chunks from `at` on, and returns where it stopped. */
  #readChunks(text: string, at: number): number {
    for (;;) {
      if (this.#missing === 0) {
        // A size follows the line end of the chunk before.
        const start = text.startsWith('\r\n', at) ? at + 2 : at;
        const end = text.indexOf('\r\n', start);
        if (end < 0) return at;
        this.#missing = Number.parseInt(text.slice(start, end), 16);
        at = end + 2;
        if (this.#missing === 0) this.#listener.onEnd();
        if (!(this.#missing > 0)) return text.length;
      }
      const end = Math.min(text.length, at + this.#missing);
      this.#missing -= end - at;
      this.#readEvents(text.slice(at, end));
      at = end;
      if (at === text.length) return at;
    }
  }

  #readEvents(chunk: string): void {
    const text = this.#event + chunk;
    let at = 0;
    for (;;) {
      const end = text.indexOf('\n\n', at);
      if (end < 0) break;
      this.#listener.onEvent(text.slice(at, end));
      at = end + 2;
    }
    this.#event = text.slice(at);
  }
}
