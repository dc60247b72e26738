/** Regular expressions as grammars: what is written by the grammar matches, and what matches is taken. Run by the JavaScript engine itself. */
import assert from 'node:assert/strict';
import { describe, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { isAutomaton } from '../../shared/grammar/automaton.ts';
import { type Expression, GrammarError } from '../../shared/grammar/grammar.ts';
import { regexGrammar, regexLanguage } from '../../shared/grammar/regex.ts';
import { sized } from '../support/long.ts';
import { matches } from './naive_match.ts';
import { randomRegex, realRegexes } from './regexes.ts';
import { TextSampler } from './sample_text.ts';

const expressionOf = (pattern: string): Expression => {
  const language = regexLanguage(pattern, 'search');
  assert(!isAutomaton(language), pattern);
  return language;
};
const whole = (pattern: string): RegExp => new RegExp(`^(?:${pattern})$`, 'u');

test('500 regular expressions: every text of the grammar matches, and texts nearby are judged alike', () => {
  const random = new Random(1);
  const patterns = [
    ...realRegexes,
    ...Array.from({ length: sized(500, 120) - realRegexes.length }, () => randomRegex(random)),
  ];
  let [numMatching, numOthers] = [0, 0];
  for (const pattern of patterns) {
    const expected = whole(pattern);
    const grammar = regexGrammar(pattern);
    const sampler = new TextSampler(grammar, random);
    for (let i = 0; i < 4; i++) {
      const sampled = sampler.sample();
      expect(expected.test(sampled), `${pattern} ${JSON.stringify(sampled)}`).toBe(true);
      // The engine may take exponential time to refuse a long text.
      if (sampled.length > 16) continue;
      const changed = mutated(sampled, random);
      const isMatch = expected.test(changed);
      expect(matches(grammar, changed), `${pattern} ${JSON.stringify(changed)}`).toBe(isMatch);
      if (isMatch) numMatching++;
      else numOthers++;
    }
  }
  expect(Math.min(numMatching, numOthers)).toBeGreaterThan(patterns.length / 8);
});

function mutated(value: string, random: Random): string {
  const characters = Array.from(value);
  const other = random.pick([
    'a',
    'Z',
    '5',
    '-',
    ' ',
    'é',
    '\n',
    '',
    characters[random.below(characters.length)] ?? '',
  ]);
  characters.splice(random.below(characters.length + 1), random.below(2), ...Array.from(other));
  return characters.join('');
}

test('a search takes any text around what is not anchored', () => {
  const random = new Random(2);
  const patterns = [
    'b',
    '^b',
    'b$',
    '^b$',
    '^a|b$',
    '(^a|b)c',
    'a(b$|c)',
    '',
    '^',
    '$',
    '(?:^|x)y',
    '^(a|b)$',
    '^(?:a$|b)',
  ];
  for (const pattern of patterns) {
    const grammar = { root: 'root', rules: new Map([['root', expressionOf(pattern)]]) };
    const expected = new RegExp(pattern, 'u');
    const sampler = new TextSampler(grammar, random);
    for (let i = 0; i < 20; i++) expect(sampler.sample(), pattern).toMatch(expected);
    for (let i = 0; i < 100; i++) {
      const tried = Array.from({ length: random.below(5) }, () => random.pick(['a', 'b', 'c', 'x', 'y', '\n'])).join(
        '',
      );
      expect(matches(grammar, tried), `${pattern} ${JSON.stringify(tried)}`).toBe(expected.test(tried));
    }
  }
});

describe('spellings of Python', () => {
  test.each([
    ['(?P<year>\\d{4})-(?P<month>\\d\\d)', '2024-05', '2024-5'],
    ['\\Aab\\Z', 'ab', 'abb'],
    ['\\"\\_\\-\\:\\@\\ ', '"_-:@ ', '\\"'],
    ['{"a": \\d+}', '{"a": 12}', '"a": 12'],
    ['a{,2}', 'aa', 'aaa'],
    ['[\\-\\_a]+', '-_a', '\\'],
    ['a(?#comment)b', 'ab', 'a'],
    ['a]}', 'a]}', 'a'],
  ])('%s', (pattern, matching, other) => {
    expect(matches(regexGrammar(pattern), matching)).toBe(true);
    expect(matches(regexGrammar(pattern), other)).toBe(false);
  });
});

test.each([
  ['(a)\\1', /backreference \\1 at 3/],
  ['(?P<x>a)(?P=x)', /backreference/],
  ['a^b', /no text matches/],
  ['a\\bc', /no text matches/],
  ['(?=a)b', /no text matches/],
  ['(?<=a(?=b))b', /\(\?=b\) within a lookbehind at 5 of/],
  ['(?<=\\bfoo)b', /\\b within a lookbehind at 4/],
  ['(?=(a))\\1', /backreference \\1 at 7/],
  ['(?!.*(a)\\1)b', /backreference/],
  ['(?=.*a.{300})(?=.*b.{300}).*', /more than 1000 states/],
  ['(?i)abc', /flag i/],
  ['(?i:abc)', /flag i/],
  ['(?s).', /flags \(\?s/],
  ['(?>a)', /atomic/],
  ['[[:alpha:]]', /POSIX/],
  ['a**', /invalid at \d/],
  ['(', /invalid/],
  ['[z-a]', /invalid/],
  ['\\h', /escape \\h/],
  ['\\p{Nope}', /invalid/],
  ['\\', /backslash/],
  ['a'.repeat(1_000_000), /1000000 characters/],
  ['('.repeat(5000) + ')'.repeat(5000), /within each other|too deep/],
])('what cannot be enforced is refused by name: %.20s', (pattern, message) => {
  expect(() => regexGrammar(pattern)).toThrow(GrammarError);
  expect(() => regexGrammar(pattern)).toThrow(message);
});

test('properties are sets of code points', () => {
  const random = new Random(3);
  for (const property of ['L', 'Lu', 'Script=Greek', 'Nd', 'Emoji', 'ASCII']) {
    const grammar = regexGrammar(`\\p{${property}}`);
    const negated = regexGrammar(`[^\\p{${property}}a]`);
    for (let i = 0; i < 300; i++) {
      const character = String.fromCodePoint(
        random.pick([random.below(0x250), random.below(0xd800), 0x1f300 + random.below(0x400)]),
      );
      expect(matches(grammar, character)).toBe(whole(`\\p{${property}}`).test(character));
      expect(matches(negated, character)).toBe(whole(`[^\\p{${property}}a]`).test(character));
    }
  }
});
