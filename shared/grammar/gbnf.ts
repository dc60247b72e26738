/**
 * Parses the grammars of llama.cpp (GBNF) and of xgrammar (EBNF, as vLLM and SGLang take it), which are one language but for details:
 *
 *     root  ::= "a" [b-d]* (item | .){2,3}   # the rule root, or the first if there is none
 *
 * A rule goes on to the next `name ::=`. xgrammar's lookahead `(= …)` is only a hint and is read over.
 */
import { ALL_CODE_POINTS, type CodePointRange, codePoints, complementOf } from './code_points.ts';
import {
  choiceOf,
  type Expression,
  type Grammar,
  oneOf,
  repeat,
  ruleNamed,
  sequenceOf,
  text as literal,
} from './grammar.ts';
import { GrammarText } from './grammar_text.ts';

const NAME = /[A-Za-z_][A-Za-z0-9_.-]*/y;
const RULE = /[A-Za-z_][A-Za-z0-9_.-]*[ \t]*::=/y;
/** Parentheses within each other (P1). */
const MAX_DEPTH = 100;

/** Parses a grammar. @throws GrammarError with line and column */
export function parseGbnf(grammar: string): Grammar {
  return new GbnfParser(grammar).parse();
}

class GbnfParser {
  readonly #text: GrammarText;
  readonly #rules = new Map<string, Expression>();
  #depth = 0;

  constructor(grammar: string) {
    this.#text = new GrammarText(grammar);
  }

  parse(): Grammar {
    const text = this.#text;
    text.skipSpace();
    while (!text.isEnd()) {
      const start = text.at;
      const name = text.match(NAME);
      if (name === undefined && text.peek(/[?!%]/y) !== undefined)
        throw text.error(
          "Lark's prefixes and %-directives are not supported: write the grammar as llama.cpp and xgrammar do",
        );
      if (name === undefined) throw text.error(`expected the name of a rule, found ${text.shown()}`);
      text.skipSpace(false);
      if (/^:(?!:)/.test(text.peek(/::?/y) ?? ''))
        throw text.error(`Lark's "${name}: …" is not supported: write "${name} ::= …", as llama.cpp and xgrammar do`);
      if (!text.skip('::=')) throw text.error(`expected ::= after the rule's name "${name}", found ${text.shown()}`);
      if (this.#rules.has(name)) throw text.error(`the rule "${name}" is defined twice`, start);
      this.#rules.set(name, this.#choice());
      if (!text.isEnd() && text.peek(RULE) === undefined)
        throw text.error(`expected | or a new rule, found ${text.shown()}`);
    }
    const [first] = this.#rules.keys();
    if (first === undefined) throw text.error('the grammar has no rule');
    return { root: this.#rules.has('root') ? 'root' : first, rules: this.#rules };
  }

  #choice(): Expression {
    const alternatives = [this.#sequence()];
    while (this.#text.skip('|')) alternatives.push(this.#sequence());
    return choiceOf(alternatives);
  }

  #sequence(): Expression {
    const items: Expression[] = [];
    for (;;) {
      this.#text.skipSpace();
      if (this.#isHint()) continue;
      const item = this.#element();
      if (item === undefined) return sequenceOf(items);
      items.push(this.#repeated(item));
    }
  }

  /** Reads over `(= …)`. */
  #isHint(): boolean {
    if (!this.#text.skip('(=')) return false;
    this.#nested(() => this.#choice());
    return true;
  }

  #nested(read: () => Expression): Expression {
    const text = this.#text;
    const start = text.at - 1;
    if (++this.#depth > MAX_DEPTH) throw text.error(`more than ${MAX_DEPTH} parentheses within each other`);
    const inner = read();
    this.#depth--;
    if (!text.skip(')')) throw text.error('this parenthesis is not closed', start);
    return inner;
  }

  #element(): Expression | undefined {
    const text = this.#text;
    if (text.skip('(')) return this.#nested(() => this.#choice());
    if (text.skip('"')) return this.#literal();
    if (text.skip('[')) return this.#class();
    if (text.skip('.')) return oneOf(ALL_CODE_POINTS);
    if (text.peek(/!?<[^>]*>/y) !== undefined) throw text.error('tokens in <…> are not supported: write their text');
    if (text.peek(RULE) !== undefined) return undefined;
    const name = text.match(NAME);
    if (name === undefined) return undefined;
    if (name === 'TagDispatch' && text.sees('(')) throw text.error('TagDispatch is not supported');
    return ruleNamed(name);
  }

  #literal(): Expression {
    const text = this.#text;
    const start = text.at - 1;
    let value = '';
    while (!text.skip('"')) {
      if (text.isEnd() || text.sees('\n')) throw text.error('this literal is not closed in its line', start);
      value += text.skip('\\') ? text.escape() : text.next();
    }
    return literal(value);
  }

  #class(): Expression {
    const text = this.#text;
    const start = text.at - 1;
    const isNegated = text.skip('^');
    const ranges: CodePointRange[] = [];
    while (!text.skip(']')) {
      const first = this.#classMember(start);
      let last = first;
      if (text.peek(/-[^\]]/y) !== undefined && text.skip('-')) last = this.#classMember(start);
      if (last < first) throw text.error('this range of characters goes backwards', text.at);
      ranges.push([first, last]);
    }
    const set = codePoints(ranges);
    return oneOf(isNegated ? complementOf(set) : set);
  }

  #classMember(start: number): number {
    const text = this.#text;
    if (text.isEnd() || text.sees('\n')) throw text.error('this character class is not closed in its line', start);
    const isEscape = text.skip('\\');
    if (isEscape && text.peek(/[dDwWsSpP]/y) !== undefined)
      throw text.error(`\\${text.next()} is not known in a character class: write the characters`, text.at - 2);
    return (isEscape ? text.escape() : text.next()).codePointAt(0) ?? 0;
  }

  /** Reads the quantifiers after an element. */
  #repeated(element: Expression): Expression {
    const text = this.#text;
    let item = element;
    for (;;) {
      const quantifier = text.match(/[*+?]/y);
      if (quantifier === '*') item = repeat(item, 0);
      else if (quantifier === '+') item = repeat(item, 1);
      else if (quantifier === '?') item = repeat(item, 0, 1);
      else if (text.skip('{')) item = this.#bounded(item);
      else return item;
    }
  }

  #bounded(item: Expression): Expression {
    const text = this.#text;
    const start = text.at - 1;
    const bounds = text.match(/[ \t]*\d{0,9}[ \t]*(,[ \t]*\d{0,9}[ \t]*)?\}/y);
    const [min = '', max] = (bounds ?? '')
      .replace('}', '')
      .split(',')
      .map((part) => part.trim());
    if (bounds === undefined || (min === '' && (max ?? '') === ''))
      throw text.error('a repetition is {n}, {n,}, {n,m} or {,m}', start);
    const most = max === undefined ? Number(min) : max === '' ? undefined : Number(max);
    if (most !== undefined && most < Number(min))
      throw text.error('the first number of a repetition must not be larger', start);
    return repeat(item, Number(min), most);
  }
}
