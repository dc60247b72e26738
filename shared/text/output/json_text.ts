/** A JSON object that a model writes, as JSON: what it left out or wrote otherwise is mended while it is read, so that the result can always be parsed. */
import { escaped, quotable } from './argument_types.ts';
import { pythonValue } from './python_literal.ts';

const SPACE = /\s/;
/** Characters that end a number or a word. */
const DELIMITER = /[\s,:}\]]/;
/** Text of a string that is JSON as it is; a longer one is read in parts. */
// eslint-disable-next-line no-control-regex -- control characters need an escape
const PLAIN = /(?:[^"\\\u0000-\u001f]|\\["\\/bfnrt]){1,8192}/y;
const WORDS = ['true', 'false', 'null'];
/** Depth of brackets (P1). */
const MAX_DEPTH = 512;
/** UTF-16 units of a number or word (P1). */
const MAX_SCALAR = 4_096;

/** Part of an object that comes next; `more` is a comma or the closing bracket. */
type Expected = 'key' | 'colon' | 'value' | 'more';

/**
 * Reads the text of an object character by character, and writes it. It writes line ends in strings, words of Python and unknown escapes as
 * JSON has them, and leaves out a comma before a closing bracket.
 */
export class JsonText {
  readonly #write: (text: string) => void;
  readonly #open: ('{' | '[')[] = [];
  #expected: Expected = 'value';
  #string: 'key' | 'value' | undefined;
  /** An escape that is not whole. */
  #escape = '';
  /** A number or word that may go on. */
  #scalar = '';
  /** A comma that waits for what follows, and the white space after it. */
  #comma = '';

  constructor(write: (text: string) => void) {
    this.#write = write;
  }

  /** Whether the outermost bracket has been closed. */
  get isEnded(): boolean {
    return this.#open.length === 0 && this.#expected === 'more';
  }

  /** Whether a value can come next. */
  get expectsValue(): boolean {
    return this.#string === undefined && this.#scalar === '' && this.#expected === 'value';
  }

  /** Whether the next character stands within a string. */
  get isInString(): boolean {
    return this.#string !== undefined;
  }

  /** Reads a character. Returns false, and writes nothing, where JSON cannot have it. */
  push(char: string): boolean {
    if (this.#string !== undefined) {
      this.#pushString(char);
      return true;
    }
    if (this.#scalar !== '') {
      if (!DELIMITER.test(char)) return this.#pushScalar(char);
      this.#endScalar(false);
    }
    if (SPACE.test(char)) {
      if (this.#comma === '') this.#write(char);
      else this.#comma += char;
      return true;
    }
    return this.#pushStructure(char);
  }

  /** Writes the plain text of a string up to `end`. Returns where it ends. */
  skip(text: string, at: number, end = text.length): number {
    if (this.#string === undefined || this.#escape !== '') return at;
    PLAIN.lastIndex = at;
    const { length } = PLAIN.exec(text)?.[0] ?? '';
    const to = Math.min(at + length, end);
    if (to > at) this.#write(text.slice(at, to));
    return to;
  }

  /** Writes text of a string that has no escapes. */
  writeText(text: string): void {
    this.#write(quotable(text));
  }

  /** Closes everything that is open. */
  complete(): void {
    if (this.isEnded) return;
    if (this.#string !== undefined) {
      this.#escape = '';
      this.#pushString('"');
    } else if (this.#scalar !== '') this.#endScalar(true);
    if (this.#expected === 'colon') this.#write(': null');
    else if (this.#expected === 'value' && this.#comma === '' && this.#open.at(-1) === '{') this.#write('null');
    this.#comma = '';
    this.#expected = 'more';
    for (let bracket = this.#open.pop(); bracket; bracket = this.#open.pop()) this.#write(bracket === '{' ? '}' : ']');
  }

  #pushString(char: string): void {
    if (this.#escape !== '') {
      this.#pushEscape(char);
    } else if (char === '\\') this.#escape = char;
    else if (char === '"') {
      this.#write(char);
      this.#expected = this.#string === 'key' ? 'colon' : 'more';
      this.#string = undefined;
    } else this.#write(escaped(char));
  }

  #pushEscape(char: string): void {
    const seen = this.#escape + char;
    if (/^\\u[0-9a-fA-F]{0,3}$/.test(seen)) {
      this.#escape = seen;
      return;
    }
    const before = this.#escape;
    this.#escape = '';
    if (/^\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})$/.test(seen)) this.#write(seen);
    else if (seen === "\\'") this.#write(char);
    else {
      // It is no escape of JSON: the backslash stands for itself.
      this.#write(`\\${before}`);
      this.#pushString(char);
    }
  }

  #pushScalar(char: string): boolean {
    if (/["'{[]/.test(char) || this.#scalar.length >= MAX_SCALAR) return false;
    this.#scalar += char;
    return true;
  }

  #endScalar(isCut: boolean): void {
    const scalar = this.#scalar;
    this.#scalar = '';
    this.#expected = 'more';
    const word = isCut ? WORDS.find((one) => one.startsWith(scalar)) : undefined;
    const number = isCut ? pythonValue(scalar.replace(/[-+.eE]+$/, '')) : undefined;
    this.#write(word ?? pythonValue(scalar) ?? number ?? JSON.stringify(scalar));
  }

  #pushStructure(char: string): boolean {
    switch (char) {
      case '"':
        this.#separate();
        if (this.#expected !== 'key' && this.#expected !== 'value') return false;
        this.#string = this.#expected;
        return this.#put(char);
      case '{':
      case '[':
        if (this.#open.at(-1) === '[') this.#separate();
        if (this.#expected !== 'value' || this.#open.length >= MAX_DEPTH) return false;
        this.#open.push(char);
        this.#expected = char === '{' ? 'key' : 'value';
        return this.#put(char);
      case '}':
      case ']':
        return this.#close(char);
      case ':':
        if (this.#expected !== 'colon') return false;
        this.#expected = 'value';
        return this.#put(char);
      case ',':
        if (this.#expected !== 'more' || this.#open.length === 0) return false;
        this.#expected = this.#open.at(-1) === '{' ? 'key' : 'value';
        this.#comma = char;
        return true;
      default:
        if (this.#expected !== 'value' || this.#open.length === 0 || !/[-+.\w]/.test(char)) return false;
        this.#put('');
        this.#scalar = char;
        return true;
    }
  }

  /** Takes a comma that was left out as written. */
  #separate(): void {
    if (this.#expected !== 'more' || this.#open.length === 0) return;
    this.#expected = this.#open.at(-1) === '{' ? 'key' : 'value';
    this.#comma = ', ';
  }

  #close(char: string): boolean {
    const isObject = char === '}';
    const isBetween = this.#expected === 'more' || (this.#expected === 'key') === isObject;
    const hasValue = this.#expected !== 'colon' && isBetween;
    if (!hasValue || this.#open.at(-1) !== (isObject ? '{' : '[')) return false;
    // A comma before it is left out.
    this.#comma = '';
    this.#open.pop();
    this.#expected = 'more';
    return this.#put(char);
  }

  /** Writes text after a comma that waits for it. */
  #put(text: string): boolean {
    this.#write(this.#comma + text);
    this.#comma = '';
    return true;
  }
}
