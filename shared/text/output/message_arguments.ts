/** Arguments of a call that are a message of their own, up to a terminal: an object as JSON; any other text is none of them. */
import type { CallWriter } from './call_writer.ts';
import { JsonText } from './json_text.ts';

/** Beginning of a code block, and the whole of it with the brace after it. */
const FENCE_BEGIN = /^`{0,3}(?:j|js|jso|json)?\s{0,8}$/;
const FENCE = /^(?:```(?:json)?\s*)?\{$/;

/** Writes the arguments of one call. */
export class MessageArguments {
  readonly #call: CallWriter;
  #json: JsonText | undefined;
  /** Text before an object. */
  #head = '';

  constructor(call: CallWriter) {
    this.#call = call;
  }

  /** Whether the next character stands within a string. */
  get isInString(): boolean {
    return this.#json?.isInString === true;
  }

  /** Reads the next character. White space before the first is left out; text after an object is none of it. */
  push(char: string): void {
    if (!this.#json) this.#begin(char);
    else if (this.#json.isEnded || !this.#json.push(char)) {
      this.#json.complete();
      // The end of the code block is no text.
      if (char !== '`' || this.#head === '') this.#call.aside(char);
    }
  }

  /** Reads a character before the object, which may stand in a code block. */
  #begin(char: string): void {
    const head = (this.#head + char).trimStart();
    if (char === '{' && FENCE.test(head)) {
      this.#json = new JsonText((text) => {
        this.#call.raw(text);
      });
      this.#json.push(char);
    } else if (FENCE_BEGIN.test(head) || 'null'.startsWith(head)) this.#head = head;
    else {
      this.#call.raw('');
      this.#call.aside(head);
      this.#head = '';
    }
  }

  /** Writes the plain text of a string up to `end`. Returns where it ends. */
  skip(text: string, at: number, end: number): number {
    return this.#json?.skip(text, at, end) ?? at;
  }

  /** Closes an object that is not whole. */
  end(): void {
    if (this.#json) this.#json.complete();
    else {
      this.#call.raw('{}');
      if (this.#head !== '' && !/^(?:null\s*|`*)$/.test(this.#head)) this.#call.aside(this.#head);
    }
  }
}
