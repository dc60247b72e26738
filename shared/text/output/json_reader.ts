/** Readers of JSON texts: the object of a call's arguments, and the object that names a call and has its arguments. */
import { isJson } from './argument_types.ts';
import type { CallWriter } from './call_writer.ts';
import { JsonText } from './json_text.ts';

/**
 * Result of reading a character: it belongs to the value (`more`), it is the value's last (`end`), it is after the value (`over`), or
 * the text is no such value (`fail`). After `over` and `fail` the character is still to be read.
 */
export type Reading = 'more' | 'end' | 'over' | 'fail';

/** Reads a value that ends by itself, character by character. */
export interface Reader {
  /** Reads the next character. */
  read(char: string): Reading;
  /**
   * Reads the end of the answer, where the value is not whole: what is open is closed, unless the answer `isCut` by a limit. Returns `over` where the
   * value had ended before.
   */
  end?(isCut: boolean): Reading;
  /** Reads text that has no meaning of its own, as `read` would do for each character. Returns where it ends. */
  skip?(text: string, at: number): number;
  /** Text that is still to be read after `over`; undefined: the last character. */
  readonly rest?: string;
}

const SPACE = /\s/;
const VALUE_START = /[-\w"{[]/;
/** UTF-16 units of a value that is neither name nor arguments (P1). */
const MAX_VALUE = 1 << 18;
/** Follows strings and brackets of JSON text. */
class Nesting {
  #depth = 0;
  #isInString = false;
  #isEscaped = false;

  get depth(): number {
    return this.#depth;
  }

  get isInString(): boolean {
    return this.#isInString;
  }

  /** Takes the next character. Returns whether it closes the outermost bracket or string. */
  push(char: string): boolean {
    if (this.#isInString) {
      if (this.#isEscaped) this.#isEscaped = false;
      else if (char === '\\') this.#isEscaped = true;
      else if (char === '"') this.#isInString = false;
      return !this.#isInString && this.#depth === 0;
    }
    if (char === '"') this.#isInString = true;
    else if (char === '{' || char === '[') this.#depth++;
    else if (char === '}' || char === ']') return --this.#depth === 0;
    return false;
  }
}

/**
 * Reads an object and hands its text on as JSON, as soon as a key or its end follows the brace. A character that no JSON has there ends it;
 * what is open then is closed.
 */
export class ObjectReader implements Reader {
  readonly #json: JsonText;
  /** The brace and white space before the first key. */
  #head: string | undefined = '';

  constructor(write: (text: string) => void) {
    this.#json = new JsonText(write);
  }

  read(char: string): Reading {
    if (this.#head !== undefined) return this.#open(char);
    if (!this.#json.push(char)) {
      this.#json.complete();
      return 'over';
    }
    return this.#json.isEnded ? 'end' : 'more';
  }

  skip(text: string, at: number): number {
    return this.#head === undefined ? this.#json.skip(text, at) : at;
  }

  /** Closes what is open, where the answer ends. */
  end(isCut: boolean): Reading {
    if (this.#head === undefined && !isCut) this.#json.complete();
    return 'end';
  }

  #open(char: string): Reading {
    const head = this.#head ?? '';
    if (SPACE.test(char)) {
      if (head !== '') this.#head = head + char;
      return 'more';
    }
    if (head === '') {
      this.#head = '{';
      return char === '{' ? 'more' : 'fail';
    }
    if (char !== '"' && char !== '}') return 'fail';
    this.#head = undefined;
    for (const one of head + char) this.#json.push(one);
    return this.#json.isEnded ? 'end' : 'more';
  }
}

const ARGUMENTS = ['arguments', 'parameters'];
/** Keys that an object without a marker before it may have: one with others is an answer in JSON. */
const CALL_KEYS = ['name', 'type', 'id', ...ARGUMENTS];

/** Part of an object that comes next. */
type Expected = 'brace' | 'key' | 'colon' | 'value' | 'comma';

/**
 * Reads `{"name": …, "arguments": {…}}`, in any order and with `parameters` for `arguments`. The call begins as soon as its name is
 * known and its arguments begin. Arguments may also be an object in a string, or null.
 */
export class CallReader implements Reader {
  readonly #call: CallWriter;
  readonly #isKnown: boolean;
  #expected: Expected = 'brace';
  /** The key or value that is being read, and where its brackets stand; undefined between them. */
  #nesting: Nesting | undefined;
  #text = '';
  #key = '';
  #object: ObjectReader | undefined;
  /** Arguments that stand before the name. */
  #early: string | undefined;
  #hasArguments = false;

  /** @param isKnown whether only calls of the request's tools, with arguments, count */
  constructor(call: CallWriter, isKnown: boolean) {
    this.#call = call;
    this.#isKnown = isKnown;
  }

  read(char: string): Reading {
    if (this.#object) return this.#readArguments(this.#object, char);
    if (this.#nesting) return this.#readText(this.#nesting, char);
    if (SPACE.test(char)) return 'more';
    switch (this.#expected) {
      case 'brace':
        return this.#expect(char === '{', 'key');
      case 'colon':
        return this.#expect(char === ':', 'value');
      case 'comma':
        return char === '}' ? this.#finish() : this.#expect(char === ',', 'key');
      case 'key':
        if (char === '}') return this.#finish();
        return char === '"' ? this.#begin(char) : this.#bad();
      case 'value':
        if (!VALUE_START.test(char)) return this.#bad();
        if (char !== '{' || !ARGUMENTS.includes(this.#key) || this.#hasArguments) return this.#begin(char);
        return this.#readArguments(this.#openArguments(), char);
    }
  }

  skip(text: string, at: number): number {
    return this.#object?.skip(text, at) ?? at;
  }

  /** Closes arguments that are open, where the answer ends. */
  end(isCut: boolean): Reading {
    return this.#object?.end(isCut) ?? 'end';
  }

  #expect(isThere: boolean, next: Expected): Reading {
    if (!isThere) return this.#bad();
    this.#expected = next;
    return 'more';
  }

  #begin(char: string): Reading {
    this.#nesting = new Nesting();
    this.#text = '';
    return this.#readText(this.#nesting, char);
  }

  #openArguments(): ObjectReader {
    this.#hasArguments = true;
    const write = this.#call.isOpen
      ? (text: string) => {
          this.#call.raw(text);
        }
      : (text: string) => {
          this.#early = (this.#early ?? '') + text;
        };
    this.#object = new ObjectReader(write);
    return this.#object;
  }

  #readArguments(object: ObjectReader, char: string): Reading {
    const reading = object.read(char);
    if (reading === 'more') return 'more';
    this.#object = undefined;
    this.#expected = 'comma';
    return reading === 'end' ? 'more' : this.#bad();
  }

  #readText(nesting: Nesting, char: string): Reading {
    const isScalarOver = nesting.depth === 0 && !nesting.isInString && this.#text !== '' && /[\s,}\]]/.test(char);
    if (isScalarOver) return this.#take() ? this.read(char) : this.#bad();
    this.#text += char;
    if (this.#text.length > MAX_VALUE) return this.#bad();
    if (!nesting.push(char)) return 'more';
    return this.#take() ? 'more' : this.#bad();
  }

  /** Takes the key or value that has ended. Returns whether it can be part of a call. */
  #take(): boolean {
    this.#nesting = undefined;
    const text = this.#text;
    if (!isJson(text)) return false;
    if (this.#expected === 'key') {
      this.#key = JSON.parse(text) as string;
      this.#expected = 'colon';
      return !this.#isKnown || CALL_KEYS.includes(this.#key);
    }
    this.#expected = 'comma';
    if (this.#key === 'name') return this.#named(JSON.parse(text));
    return !ARGUMENTS.includes(this.#key) || this.#hasArguments || this.#argumentsAre(JSON.parse(text));
  }

  #named(name: unknown): boolean {
    if (this.#call.isOpen) return true;
    if (typeof name !== 'string' || !this.#call.accepts(name) || (this.#isKnown && !this.#call.isKnown(name)))
      return false;
    this.#call.prepare(name);
    if (this.#early !== undefined) this.#call.raw(this.#early);
    return true;
  }

  /** Takes arguments that are no object by themselves. */
  #argumentsAre(value: unknown): boolean {
    const json = value === null ? '{}' : typeof value === 'string' ? value.trim() : '';
    if (!json.startsWith('{') || !isJson(json)) return false;
    this.#hasArguments = true;
    if (this.#call.isOpen) this.#call.raw(json);
    else this.#early = json;
    return true;
  }

  #finish(): Reading {
    if (!this.#call.isOpen || (this.#isKnown && !this.#hasArguments)) return 'fail';
    this.#call.end();
    return 'end';
  }

  /** The text is no call; one that has begun ends here. */
  #bad(): Reading {
    if (!this.#call.isBegun) return 'fail';
    this.#call.end();
    return 'over';
  }
}
