/** Reads a grammar's text character by character: positions for messages, white space, comments, escapes. */
import { GrammarError } from './grammar.ts';

/** Characters of a grammar's text (P1). */
const MAX_LENGTH = 1_000_000;

const CONTROL: Readonly<Record<string, string>> = {
  n: '\n',
  r: '\r',
  t: '\t',
  f: '\f',
  v: '\v',
  a: '\u0007',
  b: '\b',
  e: '\u001b',
  '0': '\0',
};
/** Hexadecimal digits after an escape's letter. */
const HEX_DIGITS: Readonly<Record<string, number>> = { x: 2, u: 4, U: 8 };

/** A position in a text that only moves forward. */
export class GrammarText {
  readonly #text: string;
  at = 0;

  constructor(text: string) {
    if (text.length > MAX_LENGTH)
      throw new GrammarError(`the grammar has ${text.length} characters, at most ${MAX_LENGTH} are possible`);
    this.#text = text;
  }

  isEnd(): boolean {
    return this.at >= this.#text.length;
  }

  /** Whether the text goes on with `wanted`. */
  sees(wanted: string): boolean {
    return this.#text.startsWith(wanted, this.at);
  }

  /** Moves over `wanted` if the text goes on with it. */
  skip(wanted: string): boolean {
    const isThere = this.sees(wanted);
    if (isThere) this.at += wanted.length;
    return isThere;
  }

  /** Returns what a sticky pattern matches here, without moving. */
  peek(pattern: RegExp): string | undefined {
    pattern.lastIndex = this.at;
    return pattern.exec(this.#text)?.[0];
  }

  /** Returns what a sticky pattern matches here, and moves over it. */
  match(pattern: RegExp): string | undefined {
    const found = this.peek(pattern);
    if (found !== undefined) this.at += found.length;
    return found;
  }

  /** Returns one character, and moves over it. */
  next(): string {
    const character = String.fromCodePoint(this.#text.codePointAt(this.at) ?? 0);
    this.at += character.length;
    return character;
  }

  /** Moves over white space and comments; line ends only if `lines`. */
  skipSpace(lines = true): void {
    const space = lines ? /[ \t\r\n]+|#[^\n]*/y : /[ \t\r]+|#[^\n]*/y;
    while (this.match(space) !== undefined);
  }

  /** Reads what follows a backslash. Punctuation stands for itself. */
  escape(): string {
    const start = this.at - 1;
    const letter = this.next();
    const digits = HEX_DIGITS[letter];
    if (digits !== undefined) {
      const hex = this.match(new RegExp(`[0-9a-fA-F]{${digits}}`, 'y'));
      const code = Number.parseInt(hex ?? '', 16);
      if (Number.isNaN(code) || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
        throw this.error(`\\${letter} needs ${digits} hexadecimal digits of a character`, start);
      return String.fromCodePoint(code);
    }
    const control = CONTROL[letter];
    if (control !== undefined) return control;
    if (/[^A-Za-z0-9]/.test(letter)) return letter;
    throw this.error(`the escape \\${letter} is not known`, start);
  }

  /** Returns an error that says what is wrong, with its line and column. */
  error(what: string, at = this.at): GrammarError {
    const before = this.#text.slice(0, at);
    const line = before.split('\n').length;
    return new GrammarError(`line ${line}, column ${at - before.lastIndexOf('\n')} of the grammar: ${what}`);
  }

  /** Returns the character here as it is shown in a message. */
  shown(): string {
    return this.isEnd() ? 'the end' : JSON.stringify(String.fromCodePoint(this.#text.codePointAt(this.at) ?? 0));
  }
}
