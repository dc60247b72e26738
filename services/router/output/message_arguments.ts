/** Arguments of a call that are a message of their own, up to a terminal: an object as JSON, any other text as it is. */
import type { CallWriter } from './call_writer.ts';
import { JsonText } from './json_text.ts';

/** Writes the arguments of one call. */
export class MessageArguments {
  readonly #call: CallWriter;
  #json: JsonText | undefined;

  constructor(call: CallWriter) {
    this.#call = call;
  }

  /** Whether the next character stands within a string. */
  get isInString(): boolean {
    return this.#json?.isInString === true;
  }

  /** Reads the next character. White space before the first is left out; text behind an object is none of it. */
  push(char: string): void {
    if (!this.#call.isBegun) {
      if (/\s/.test(char)) return;
      if (char === '{')
        this.#json = new JsonText((text) => {
          this.#call.raw(text);
        });
    }
    if (!this.#json) this.#call.raw(char);
    else if (this.#json.isEnded || !this.#json.push(char)) {
      this.#json.complete();
      this.#call.aside(char);
    }
  }

  /** Writes the plain text of a string up to `end`. Returns where it ends. */
  skip(text: string, at: number, end: number): number {
    return this.#json?.skip(text, at, end) ?? at;
  }

  /** Closes an object that is not whole. */
  end(): void {
    this.#json?.complete();
  }
}
