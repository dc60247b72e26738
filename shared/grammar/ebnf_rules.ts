/** The rules of a printed grammar, and how texts and bytes are written so that xgrammar's parser reads exactly them. */
import { type Expression, GrammarError } from './grammar.ts';
import { SPECIAL_END, SPECIAL_START } from './special_token_bytes.ts';
import type { ByteRange } from './utf8_bytes.ts';

/** The expression after another, or `end` where the whole text ends; undefined: not known. */
export type Following = Expression | 'end' | undefined;

/** Prints expressions with a continuation: the name of the rule that matches what follows, or `''` at the end of a rule. */
export interface ExpressionPrinter {
  readonly rules: EbnfRules;
  /** Returns the alternatives of `expression` followed by rule `next`, which begins with `following`. */
  alternatives(expression: Expression, next: string, following?: Following): string[];
  /** Returns the alternatives of `min` to `max` times the item, with a rule for each time. */
  steps(item: Expression, min: number, max: number, next: string): string[];
  /** Returns the body of a grammar's rule. */
  bodyOf(rule: string): Expression | undefined;
}

const LAST_ASCII = 0x7f;

/** Rules and characters of a printed grammar (P1): repetitions within repetitions multiply. */
const MAX_PRINTED = 60_000;
const MAX_CHARACTERS = 8_000_000;

/** Printed rules in order. Rules with the same alternatives are printed once. */
export class EbnfRules {
  readonly #lines: string[] = [];
  readonly #shared = new Map<string, string>();
  #numNames = 0;
  #numCharacters = 0;

  newName(prefix: string): string {
    return `${prefix}${this.#numNames++}`;
  }

  /** Adds a rule. `lookahead`: what follows each use of it, which only makes masks faster. */
  define(name: string, alternatives: readonly string[], lookahead?: string): void {
    const body = bodyOf(alternatives);
    this.#add(lookahead === undefined ? `${name} ::= ${body}` : `${name} ::= (${body}) (= ${lookahead})`);
  }

  #add(line: string): void {
    this.#numCharacters += line.length;
    if (this.#lines.push(line) > MAX_PRINTED || this.#numCharacters > MAX_CHARACTERS)
      throw new GrammarError(
        'the grammar becomes too large: use fewer repetitions within repetitions, and smaller ones',
      );
  }

  /** Returns the name of a rule with these alternatives, a new one if there is none. */
  shared(alternatives: readonly string[]): string {
    const body = bodyOf(alternatives);
    const known = this.#shared.get(body);
    if (known !== undefined) return known;
    const name = this.newName('s');
    this.#shared.set(body, name);
    this.#add(`${name} ::= ${body}`);
    return name;
  }

  /** Returns the name that `make` gave when it was first called with this key. */
  once(key: string, make: () => string): string {
    const name = this.#shared.get(key) ?? make();
    this.#shared.set(key, name);
    return name;
  }

  /** Whether the rule was made for exactly these alternatives. */
  isShared(name: string, alternatives: readonly string[]): boolean {
    return this.#shared.get(bodyOf(alternatives)) === name;
  }

  /** Returns the alternatives as a continuation: `''`, a name, or the name of a rule made for them. */
  continuation(alternatives: readonly string[]): string {
    const [only = ''] = alternatives;
    return alternatives.length === 1 && /^\w*$/.test(only) ? only : this.shared(alternatives);
  }

  text(): string {
    // A text is known by its first rule, and the order of the others does not matter.
    const root = this.#lines.findIndex((line) => line.startsWith('root ::='));
    const [first = ''] = this.#lines.splice(root, 1);
    return `${[first, ...this.#lines].join('\n')}\n`;
  }
}

function bodyOf(alternatives: readonly string[]): string {
  return [...new Set(alternatives)].map((one) => (one === '' ? '""' : one)).join(' | ');
}

/** Returns two parts one after the other; either may be `''`. */
export function joinParts(first: string, second: string): string {
  return first === '' ? second : second === '' ? first : `${first} ${second}`;
}

/** Returns a text as literals; `''` for the empty text. NUL, which a literal cannot hold, is a class. */
export function literal(text: string): string {
  return text
    .split('\0')
    .map((part) => (part === '' ? '' : `"${Array.from(part, inLiteral).join('')}"`))
    .join(' [\\u0000] ')
    .trim();
}

/** Returns a special token as the parts of an alternative. */
export function specialTokenParts(name: string): string {
  const [start, end] = [SPECIAL_START, SPECIAL_END].map((byte) => byteClass([[byte, byte]]));
  return `${start} ${literal(name)} ${end}`;
}

function inLiteral(character: string): string {
  const isPlain =
    character >= ' ' && character !== '"' && character !== '\\' && !(character >= '\u007f' && character < '\u00a0');
  return isPlain ? character : escapedCode(character.charCodeAt(0));
}

/** `\x` takes any number of digits, `\u` exactly four. */
function escapedCode(code: number): string {
  return `\\u${code.toString(16).padStart(4, '0')}`;
}

/**
 * Returns a class that matches one byte. A class of a single character would be read as its UTF-8, so a single byte beyond ASCII
 * is written twice.
 */
export function byteClass(ranges: readonly ByteRange[]): string {
  const [[first, last] = [0, 0]] = ranges;
  if (ranges.length === 1 && first === last && first > LAST_ASCII) return `[${inClass(first)}${inClass(first)}]`;
  const printed = ranges.map(([first, last]) =>
    first === last ? inClass(first) : `${inClass(first)}${last > first + 1 ? '-' : ''}${inClass(last)}`,
  );
  return `[${printed.join('')}]`;
}

function inClass(byte: number): string {
  const character = String.fromCharCode(byte);
  return /^[0-9A-Za-z]$/.test(character) ? character : escapedCode(byte);
}
