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

  /** Closes an object that is not whole. */
  end(): void {
    this.#json?.complete();
  }
}
