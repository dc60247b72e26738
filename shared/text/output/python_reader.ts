/** Reader of calls in Python's syntax: `f(a=1, b="x")`. */
import { isToolName, type CallWriter } from './call_writer.ts';
import type { Reader, Reading } from './json_reader.ts';
import { pythonCall } from './python_literal.ts';

/** UTF-16 units of a call (P1). */
const MAX_CALL = 1 << 18;

/** Reads one call, which is written when it is whole: its arguments are no JSON. */
export class PythonCallReader implements Reader {
  readonly #call: CallWriter;
  readonly #isKnown: boolean;
  #text = '';
  #depth = 0;
  #quote = '';
  #isEscaped = false;

  /** @param isKnown whether only calls of the request's tools count */
  constructor(call: CallWriter, isKnown: boolean) {
    this.#call = call;
    this.#isKnown = isKnown;
  }

  read(char: string): Reading {
    if (this.#depth === 0) return this.#readName(char);
    this.#text += char;
    if (this.#text.length > MAX_CALL) return 'fail';
    if (this.#quote !== '') this.#readString(char);
    else if (char === '"' || char === "'") this.#quote = char;
    else if ('([{'.includes(char)) this.#depth++;
    else if (')]}'.includes(char)) this.#depth--;
    return this.#depth === 0 ? this.#finish() : 'more';
  }

  #readName(char: string): Reading {
    if (this.#text === '' && /\s/.test(char)) return 'more';
    if (char === '(') {
      if (!isToolName(this.#text) || (this.#isKnown && !this.#call.isKnown(this.#text))) return 'fail';
      this.#depth = 1;
    } else if (!isToolName(this.#text + char) || (this.#isKnown && !this.#call.mayBeKnown(this.#text + char)))
      return 'fail';
    this.#text += char;
    return 'more';
  }

  #readString(char: string): void {
    if (this.#isEscaped) this.#isEscaped = false;
    else if (char === '\\') this.#isEscaped = true;
    else if (char === this.#quote) this.#quote = '';
  }

  #finish(): Reading {
    const call = pythonCall(this.#text);
    // The last bracket has been added to the text; as no part of a call it is read again.
    if (!call) return 'fail';
    this.#call.prepare(call.name);
    this.#call.raw(call.json);
    this.#call.end();
    return 'end';
  }
}
