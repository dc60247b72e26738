/** Reads a template's tokens one by one, and words its syntax errors as Jinja does. */
import type { Token } from './lexer.ts';
import { PythonError } from './values.ts';

const DESCRIPTIONS: Readonly<Record<string, string>> = {
  block_begin: 'begin of statement block',
  block_end: 'end of statement block',
  variable_begin: 'begin of print statement',
  variable_end: 'end of print statement',
  data: 'template data / text',
  eof: 'end of template',
};

/** A cursor over a template's tokens, for parsers to extend. Failed expectations throw PythonError `TemplateSyntaxError`. */
export class TokenReader {
  readonly #tokens: readonly Token[];
  protected at = 0;

  constructor(tokens: readonly Token[]) {
    this.#tokens = tokens;
  }

  protected get token(): Token {
    return this.#tokens[this.at] ?? { type: 'eof', value: '', line: 0 };
  }

  protected look(ahead: number): Token | undefined {
    return this.#tokens[this.at + ahead];
  }

  protected next(): Token {
    const token = this.token;
    this.at++;
    return token;
  }

  protected is(type: string): boolean {
    return this.token.type === type;
  }

  protected isName(...names: readonly string[]): boolean {
    return this.token.type === 'name' && names.includes(this.token.value);
  }

  protected skip(type: string): boolean {
    if (!this.is(type)) return false;
    this.at++;
    return true;
  }

  protected skipName(name: string): boolean {
    if (!this.isName(name)) return false;
    this.at++;
    return true;
  }

  protected expect(type: string): Token {
    if (this.is(type)) return this.next();
    const expected = DESCRIPTIONS[type] ?? type;
    if (this.is('eof')) this.fail(`unexpected end of template, expected '${expected}'.`);
    return this.fail(`expected token '${expected}', got '${this.described()}'`);
  }

  protected expectName(name: string): void {
    if (this.skipName(name)) return;
    if (this.is('eof')) this.fail(`unexpected end of template, expected '${name}'.`);
    this.fail(`expected token '${name}', got '${this.described()}'`);
  }

  protected described(): string {
    const { type, value } = this.token;
    return type === 'name' ? value : (DESCRIPTIONS[type] ?? type);
  }

  protected fail(message: string): never {
    throw new PythonError('TemplateSyntaxError', message);
  }
}
