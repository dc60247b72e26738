/** Lexer of templates: splits a source into Jinja's tokens, with `trim_blocks` and `lstrip_blocks` as in Hugging Face's environment. */
import { PythonError, quoted } from './values.ts';

/** A token of a template's source. `line` counts from 1. */
export interface Token {
  /** Type of the token. An operator is its own type. */
  readonly type: string;
  readonly value: string;
  readonly line: number;
}

/** Python's white space characters, for use inside a regular expression's character class. */
export const SPACE = '\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000';
const S = `[${SPACE}]*`;

const BEGIN = new RegExp(`\\{%([-+]?)${S}raw${S}(?:-%\\}${S}|%\\})|\\{[%{#]([-+]?)`, 'g');
const END_OF_RAW = new RegExp(`\\{%([-+]?)${S}endraw${S}(?:\\+%\\}|-%\\}${S}|%\\}\\n?)`, 'g');
const END_OF_COMMENT = new RegExp(`\\+#\\}|-#\\}${S}|#\\}\\n?`, 'g');
const END_OF_BLOCK = new RegExp(`\\+%\\}|-%\\}${S}|%\\}\\n?`, 'y');
const END_OF_VARIABLE = new RegExp(`-\\}\\}${S}|\\}\\}`, 'y');
const STRING = /'[^'\\]*(?:\\[^][^'\\]*)*'|"[^"\\]*(?:\\[^][^"\\]*)*"/y;
/** Token rules, tried in this order. A float comes before an integer, because `1` is the beginning of `1.5`. */
const RULES: readonly (readonly [type: string, rule: RegExp])[] = [
  ['space', new RegExp(`[${SPACE}]+`, 'y')],
  ['float', /(?<!\.)(?:\d+_)*\d+(?:(?:\.(?:\d+_)*\d+)?e[+-]?(?:\d+_)*\d+|\.(?:\d+_)*\d+)/iy],
  ['integer', /0b(?:_?[01])+|0o(?:_?[0-7])+|0x(?:_?[\da-f])+|[1-9](?:_?\d)*|0(?:_?0)*/iy],
  ['name', /[\p{L}\p{M}\p{N}_]+/uy],
  ['string', STRING],
  ['operator', /\*\*|\/\/|==|!=|>=|<=|[-+/*%~[\](){}><=.:|,;]/y],
];
const CLOSING: Readonly<Record<string, string>> = { '{': '}', '(': ')', '[': ']' };

/** Splits a template's source into tokens. @throws PythonError `TemplateSyntaxError` */
export function tokensOf(source: string): Token[] {
  return new Lexer(source.replace(/\r\n?/g, '\n').replace(/\n$/, '')).tokens();
}

class Lexer {
  readonly #source: string;
  readonly #tokens: Token[] = [];
  #at = 0;
  #line = 1;
  #counted = 0;

  constructor(source: string) {
    this.#source = source;
  }

  tokens(): Token[] {
    let startsLine = true;
    while (this.#at < this.#source.length) {
      const begin = this.#find(BEGIN);
      const text = this.#source.slice(this.#at, begin?.index);
      if (!begin) {
        this.#add('data', text);
        this.#at = this.#source.length;
        break;
      }
      const opening = begin[0];
      const isVariable = opening.startsWith('{{');
      this.#addText(text, begin[1] ?? begin[2] ?? '', !isVariable, startsLine);
      this.#at = begin.index + opening.length;
      if (opening.startsWith('{#')) this.#comment();
      else if (isVariable) this.#inside('variable', END_OF_VARIABLE);
      else if (begin[1] !== undefined) this.#raw(opening.endsWith('\n'));
      else this.#inside('block', END_OF_BLOCK);
      startsLine = this.#source[this.#at - 1] === '\n';
    }
    this.#add('eof', '');
    return this.#tokens;
  }

  #find(rule: RegExp): RegExpExecArray | null {
    rule.lastIndex = this.#at;
    return rule.exec(this.#source);
  }

  #add(type: string, value: string): void {
    for (; this.#counted < this.#at; this.#counted++) if (this.#source[this.#counted] === '\n') this.#line++;
    if (type !== 'data' || value !== '') this.#tokens.push({ type, value, line: this.#line });
  }

  /** Text before a tag, less the white space that the tag takes away. */
  #addText(text: string, sign: string, isStripped: boolean, startsLine: boolean): void {
    const line = text.lastIndexOf('\n') + 1;
    if (sign === '-') this.#add('data', text.replace(new RegExp(`[${SPACE}]+$`), ''));
    else if (sign !== '+' && isStripped && (line > 0 || startsLine) && /^[^\S\ufeff]+$/.test(text.slice(line))) {
      this.#add('data', text.slice(0, line));
    } else this.#add('data', text);
  }

  #comment(): void {
    const end = this.#find(END_OF_COMMENT);
    if (!end && this.#at < this.#source.length) this.#fail('Missing end of comment tag');
    this.#at = end ? end.index + end[0].length : this.#source.length;
  }

  #raw(startsLine: boolean): void {
    const end = this.#find(END_OF_RAW);
    if (!end && this.#at < this.#source.length) this.#fail('Missing end of raw directive');
    this.#addText(this.#source.slice(this.#at, end?.index), end?.[1] ?? '+', true, startsLine);
    this.#at = end ? end.index + end[0].length : this.#source.length;
  }

  /** Reads the tokens of a statement or of a printed expression. While a bracket is open, the tag's end is read as operators. */
  #inside(kind: 'block' | 'variable', end: RegExp): void {
    this.#add(`${kind}_begin`, '');
    const open: string[] = [];
    while (this.#at < this.#source.length) {
      const closed = open.length === 0 ? this.#find(end) : null;
      if (closed) {
        this.#add(`${kind}_end`, '');
        this.#at += closed[0].length;
        return;
      }
      this.#next(open);
    }
  }

  #next(open: string[]): void {
    for (const [type, rule] of RULES) {
      const found = this.#find(rule)?.[0];
      if (found === undefined) continue;
      if (type === 'operator') this.#balance(found, open);
      if (type === 'name' && !/^[\p{ID_Start}_]\p{ID_Continue}*$/u.test(found)) {
        this.#fail('Invalid character in identifier');
      }
      if (type === 'operator') this.#add(found, found);
      else if (type === 'string') this.#add(type, unescaped(found.slice(1, -1)));
      else if (type !== 'space') this.#add(type, found.replaceAll('_', type === 'name' ? '_' : ''));
      this.#at += found.length;
      return;
    }
    this.#fail(`unexpected char ${quoted(this.#source[this.#at] ?? '')} at ${this.#at}`);
  }

  #balance(operator: string, open: string[]): void {
    const closing = CLOSING[operator];
    if (closing !== undefined) open.push(closing);
    else if ('})]'.includes(operator)) {
      const expected = open.pop();
      if (expected === undefined) this.#fail(`unexpected '${operator}'`);
      if (expected !== operator) this.#fail(`unexpected '${operator}', expected '${expected}'`);
    }
  }

  #fail(message: string): never {
    throw new PythonError('TemplateSyntaxError', message);
  }
}

const ESCAPES: Readonly<Record<string, string>> = {
  '\n': '',
  '\\': '\\',
  "'": "'",
  '"': '"',
  a: '\x07',
  b: '\b',
  f: '\f',
  n: '\n',
  r: '\r',
  t: '\t',
  v: '\v',
};
const ESCAPED = /\\(?:([0-7]{1,3})|x([\da-fA-F]{2})|u([\da-fA-F]{4})|U([\da-fA-F]{8})|([^]))/gu;

/** Returns the text of a string literal as Python reads it. An unknown escape stays, with its backslash. */
function unescaped(literal: string): string {
  return literal.replace(ESCAPED, (whole, octal?: string, x?: string, u?: string, long?: string, other?: string) => {
    const hex = x ?? u ?? long;
    if (octal !== undefined) return String.fromCodePoint(parseInt(octal, 8));
    if (hex !== undefined) return codePoint(parseInt(hex, 16));
    if (other !== undefined && 'xuUN'.includes(other)) {
      throw new PythonError('TemplateSyntaxError', `truncated or unknown \\${other} escape`);
    }
    return ESCAPES[other ?? ''] ?? (whole > '\\\x7f' ? spelledOut(whole) : whole);
  });
}

/**
 * Returns the text of a backslash and a non-ASCII character after it. Jinja first replaces such a character by an escape, so the
 * backslash in front escapes the escape's own one.
 */
function spelledOut(escape: string): string {
  const code = escape.codePointAt(1) ?? 0;
  const [letter, digits] = code < 0x100 ? ['x', 2] : code < 0x10000 ? ['u', 4] : ['U', 8];
  return `\\${letter}${code.toString(16).padStart(digits, '0')}`;
}

function codePoint(code: number): string {
  if (code > 0x10ffff) throw new PythonError('TemplateSyntaxError', 'illegal Unicode character');
  return String.fromCodePoint(code);
}
