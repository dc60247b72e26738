/**
 * Rewrites a regular expression as clients send it, most of them from Python, to one that JavaScript parses with the `u` flag: named groups
 * `(?P<n>…)`, `\A`, `\Z`, escapes of characters that need none, braces that are no quantifier. Meanings are those of JavaScript.
 */
import { GrammarError } from './grammar.ts';

/** Characters that may be escaped outside a class with the `u` flag. */
const SYNTAX = '^$\\.*+?()[]{}|/';
/** Letters and digits whose escape has a meaning. Others are refused, because no two languages agree on them. */
const ESCAPES = 'dDwWsSbBfnrtvcxupPk0123456789';
/** Characters of a property's name. */
const MAX_NAME = 80;
const QUANTIFIER = /^\{(\d*)(?:(,)(\d*))?\}/;

/** Returns the source for `new RegExp(source, 'u')`. @throws GrammarError for what has no equal in JavaScript */
export function regexSource(pattern: string): string {
  return new Rewriter(pattern).run();
}

class Rewriter {
  readonly #pattern: string;
  #at = 0;
  #out = '';
  #isInClass = false;

  constructor(pattern: string) {
    this.#pattern = pattern;
  }

  run(): string {
    while (this.#at < this.#pattern.length) {
      const character = this.#pattern[this.#at] ?? '';
      if (character === '\\') this.#escape();
      else if (this.#isInClass) this.#inClass(character);
      else if (character === '(') this.#group();
      else this.#plain(character);
    }
    return this.#out;
  }

  #emit(text: string, length: number): void {
    this.#out += text;
    this.#at += length;
  }

  #escape(): void {
    const character = String.fromCodePoint(this.#pattern.codePointAt(this.#at + 1) ?? 0x5c);
    const length = 1 + character.length;
    if (this.#at + 1 >= this.#pattern.length) throw new GrammarError('the regular expression ends with a backslash');
    const braced = /^\\[pPu]\{[^}]*\}/.exec(this.#pattern.slice(this.#at, this.#at + MAX_NAME))?.[0];
    if (braced !== undefined) this.#emit(braced, braced.length);
    else if (!this.#isInClass && character === 'A') this.#emit('^', length);
    else if (!this.#isInClass && (character === 'Z' || character === 'z')) this.#emit('$', length);
    else if (character === 'a') this.#emit('\\x07', length);
    else if (SYNTAX.includes(character) || ESCAPES.includes(character) || (character === '-' && this.#isInClass))
      this.#emit(`\\${character}`, length);
    else if (/[A-Za-z]/.test(character))
      throw new GrammarError(
        `the escape \\${character} at ${this.#at} is not known in regular expressions: write the character`,
      );
    else this.#emit(character, length);
  }

  #inClass(character: string): void {
    if (character === '[' && /^\[:\^?\w+:\]/.test(this.#pattern.slice(this.#at, this.#at + 20)))
      throw new GrammarError(
        `POSIX classes as [:alpha:] at ${this.#at} are not supported: write the ranges, or \\p{L}`,
      );
    if (character === ']') this.#isInClass = false;
    this.#emit(character, 1);
  }

  #group(): void {
    const rest = this.#pattern.slice(this.#at, this.#at + 8);
    if (rest.startsWith('(?P<')) this.#emit('(?<', 4);
    else if (rest.startsWith('(?P='))
      throw new GrammarError(
        `the backreference (?P=…) at ${this.#at} cannot be enforced: no grammar can repeat a match`,
      );
    else if (rest.startsWith('(?>'))
      throw new GrammarError(`the atomic group (?>…) at ${this.#at} is not supported: use (?:…)`);
    else if (rest.startsWith('(?#')) this.#comment();
    else if (/^\(\?[a-zA-Z]*i/.test(rest))
      throw new GrammarError(`the flag i (ignore case) at ${this.#at} is not supported: write both cases, as [aA]`);
    else if (/^\(\?-?[a-zA-Z]/.test(rest))
      throw new GrammarError(
        `the flags ${/^\(\?[-a-zA-Z]*/.exec(rest)?.[0] ?? ''}… at ${this.#at} are not supported: leave them out`,
      );
    else this.#emit('(', 1);
  }

  #comment(): void {
    const end = this.#pattern.indexOf(')', this.#at);
    this.#at = end < 0 ? this.#pattern.length : end + 1;
  }

  #plain(character: string): void {
    if (character === '[') {
      this.#isInClass = true;
      const start = /^\[\^?/.exec(this.#pattern.slice(this.#at, this.#at + 2))?.[0] ?? '[';
      this.#emit(start, start.length);
    } else if (character === '{') {
      const [quantifier, min = '', comma, max] = QUANTIFIER.exec(this.#pattern.slice(this.#at, this.#at + 40)) ?? [];
      // Python's {,n} is {0,n}.
      if (quantifier !== undefined && (min !== '' || (comma !== undefined && max !== '')))
        this.#emit(quantifier.replace('{,', '{0,'), quantifier.length);
      else this.#emit('\\{', 1);
    } else if (character === '}' || character === ']') this.#emit(`\\${character}`, 1);
    else this.#emit(character, 1);
  }
}
