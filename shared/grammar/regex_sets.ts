/** Sets of characters that regular expressions of JavaScript write. */
import type { AST } from '@eslint-community/regexpp';
import { propertySet } from './code_point_properties.ts';
import { type CodePoints, charactersOf, codePoints, complementOf, unionOf } from './code_points.ts';
import { GrammarError } from './grammar.ts';

const DIGITS = codePoints([[0x30, 0x39]]);
/** Characters of `\w`. */
export const WORD = unionOf(
  DIGITS,
  codePoints([
    [0x41, 0x5a],
    [0x5f, 0x5f],
    [0x61, 0x7a],
  ]),
);
const SPACES = unionOf(
  charactersOf('\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff'),
  codePoints([[0x2000, 0x200a]]),
);
const LINE_ENDS = charactersOf('\n\r\u2028\u2029');

/** @throws GrammarError that names a part of a regular expression, where it is, and what to write instead */
export function refuse(what: string, { start }: AST.Node, remedy: string): never {
  throw new GrammarError(`${what} at ${start} of the regular expression cannot be enforced: ${remedy}`);
}

/** Returns the characters of a character, a class or a part of a class. @throws GrammarError */
export function setOf(element: AST.CharacterSet | AST.CharacterClass | AST.CharacterClassElement): CodePoints {
  switch (element.type) {
    case 'Character':
      return characterOf(element);
    case 'CharacterClassRange':
      return codePoints([[element.min.value, element.max.value]]);
    case 'CharacterClass':
      return negatedIf(element.negate, unionOf(...element.elements.map(setOf)));
    case 'CharacterSet':
      return characterSet(element);
    case 'ExpressionCharacterClass':
    case 'ClassStringDisjunction':
      return refuse('the class', element, 'write it without && and --');
  }
}

/** Returns a character on its own. @throws GrammarError for half a surrogate pair */
export function singleCharacter(element: AST.Character): CodePoints {
  const { value, start } = element;
  if (value >= 0xd800 && value <= 0xdfff)
    throw new GrammarError(`the regular expression has half a surrogate pair at ${start}, which UTF-8 cannot express`);
  return characterOf(element);
}

function characterOf({ value }: AST.Character): CodePoints {
  return codePoints([[value, value]]);
}

function characterSet(element: AST.CharacterSet): CodePoints {
  switch (element.kind) {
    case 'any':
      return complementOf(LINE_ENDS);
    case 'digit':
      return negatedIf(element.negate, DIGITS);
    case 'word':
      return negatedIf(element.negate, WORD);
    case 'space':
      return negatedIf(element.negate, SPACES);
    case 'property':
      return negatedIf(
        element.negate,
        propertySet(element.value === null ? element.key : `${element.key}=${element.value}`),
      );
  }
}

function negatedIf(isNegated: boolean, set: CodePoints): CodePoints {
  return isNegated ? complementOf(set) : set;
}
