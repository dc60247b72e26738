/** Limits of a grammar's text, which are checked before the library reads it. */
import { Failure } from '../../base/failure.ts';

/** Characters of a grammar at most. The library takes about a second for so many. */
const MAX_CHARACTERS = 1 << 20;
/** Parentheses within parentheses at most. The library's parser takes 416 bytes of its 64 KiB of stack for each and checks nothing. */
const MAX_NESTING = 100;

const OPEN = '('.charCodeAt(0);
const CLOSE = ')'.charCodeAt(0);
const QUOTE = '"'.charCodeAt(0);
const BRACKET = '['.charCodeAt(0);
const END_BRACKET = ']'.charCodeAt(0);
const ESCAPE = '\\'.charCodeAt(0);
const COMMENT = '#'.charCodeAt(0);
const NEWLINE = '\n'.charCodeAt(0);

/** @throws Failure `invalid_request` when the text is too long or too deep for the library */
export function checkGrammarText(ebnf: string): void {
  if (ebnf.length > MAX_CHARACTERS) {
    const message = `the grammar has ${ebnf.length} characters once it is written out, over ${MAX_CHARACTERS}: use a smaller one`;
    throw new Failure('invalid_request', message);
  }
  const depth = nestingOf(ebnf);
  if (depth > MAX_NESTING) {
    const message = `the grammar has ${depth} parentheses within each other, over ${MAX_NESTING}: use rules of their own for the inner ones`;
    throw new Failure('invalid_request', message);
  }
}

/** Returns how deep parentheses stand within each other, outside of literals, character classes and comments. */
function nestingOf(ebnf: string): number {
  let depth = 0;
  let deepest = 0;
  for (let at = 0; at < ebnf.length; at++) {
    const unit = ebnf.charCodeAt(at);
    if (unit === OPEN) deepest = Math.max(deepest, ++depth);
    else if (unit === CLOSE) depth = Math.max(0, depth - 1);
    else if (unit === QUOTE) at = endOf(ebnf, at + 1, QUOTE);
    else if (unit === BRACKET) at = endOf(ebnf, at + 1, END_BRACKET);
    else if (unit === COMMENT) at = endOf(ebnf, at + 1, NEWLINE);
  }
  return deepest;
}

/** Returns where the first `end` from `at` on stands that no backslash precedes; the text's length when there is none. */
function endOf(ebnf: string, at: number, end: number): number {
  let i = at;
  while (i < ebnf.length && ebnf.charCodeAt(i) !== end) i += end !== NEWLINE && ebnf.charCodeAt(i) === ESCAPE ? 2 : 1;
  return i;
}
