/** Server-sent events, read as their bytes arrive. */
import { StringDecoder } from 'node:string_decoder';

/** Most characters of an event that is not complete yet (P1); a larger one is no event of a language model. */
const MAX_EVENT_LENGTH = 2 ** 24;

/** Splits a stream of bytes into the data of its events. Comments and other fields are skipped. */
export class EventStreamReader {
  readonly #decoder = new StringDecoder('utf8');
  readonly #onData: (data: string) => void;
  /** Characters after the last line end. */
  #rest = '';
  /** Data of the event whose empty line has not come, its lines joined. */
  #data: string | undefined;

  /** `onData` is called with the data of each event, within the push that completes it. */
  constructor(onData: (data: string) => void) {
    this.#onData = onData;
  }

  /** Reads further bytes. @throws Error when an event is larger than MAX_EVENT_LENGTH, and whatever `onData` throws */
  push(bytes: Uint8Array): void {
    const text = this.#decoder.write(bytes);
    let start = 0;
    // Line ends are looked for in the new bytes alone, so that a long event costs its length and not the square of it.
    for (let end = text.indexOf('\n'); end >= 0; end = text.indexOf('\n', start)) {
      const line = this.#rest + text.slice(start, end);
      this.#rest = '';
      this.#line(line.endsWith('\r') ? line.slice(0, -1) : line);
      start = end + 1;
    }
    this.#rest += text.slice(start);
    if (this.#rest.length > MAX_EVENT_LENGTH) throw new Error(`an event has more than ${MAX_EVENT_LENGTH} characters`);
  }

  /** Ends the stream: the event before its end counts though no empty line follows it. */
  end(): void {
    if (this.#rest !== '') this.#line(this.#rest);
    this.#rest = '';
    this.#line('');
  }

  #line(line: string): void {
    if (line === '') {
      const data = this.#data;
      this.#data = undefined;
      if (data !== undefined) this.#onData(data);
    } else if (line.startsWith('data:')) {
      const value = line.slice(line[5] === ' ' ? 6 : 5);
      this.#data = this.#data === undefined ? value : `${this.#data}\n${value}`;
    }
  }
}
