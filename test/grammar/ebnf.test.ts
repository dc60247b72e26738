/** Printed grammars, as the library reads them, match what their expressions match: to the byte, and in masks of longer tokens. */
import { beforeAll, describe, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { ALL_CODE_POINTS, codePoints, charactersOf, complementOf } from '../../shared/grammar/code_points.ts';
import { toEbnf } from '../../shared/grammar/ebnf.ts';
import {
  choice,
  EMPTY,
  type Expression,
  type Grammar,
  oneOf,
  optional,
  repeat,
  ruleNamed,
  sequence,
  text,
} from '../../shared/grammar/grammar.ts';
import { sized } from '../support/long.ts';
import { LibraryMatcher } from './library_matcher.ts';
import { matches } from './naive_match.ts';
import { TextSampler } from './sample_text.ts';

/**
 * No word has an earlier one in it other than at its beginning: the library then takes the longer one for a continuation of the shorter one,
 * and refuses both where it should refuse the shorter one.
 */
const WORDS = [
  'ab',
  'abc',
  'b"]',
  '",',
  '"}',
  'aaaa',
  'abababababababababababab',
  'é',
  'éa',
  '日本',
  ' b',
  '":',
  '😀a',
  'aa"}',
];

let library: LibraryMatcher;
beforeAll(async () => {
  library = await LibraryMatcher.load(WORDS);
});

const only = (body: Expression): Grammar => ({ root: 'root', rules: new Map([['root', body]]) });
const anyCharacter = oneOf(ALL_CODE_POINTS);
const notQuote = oneOf(complementOf(charactersOf('"')));

test('literals are taken as they are, whatever stands in them', async () => {
  for (const value of [
    '\\x41b "q" \\',
    'A\u0000B',
    '\u0001\n\t\u007f\u0085',
    'é日😀\ufeff\u2028',
    '#[]{}()|*+?',
    '\\u0041',
  ]) {
    const ebnf = toEbnf(only(text(value)));
    expect(await library.accepts(ebnf, value), JSON.stringify(value)).toBe(true);
    expect(await library.accepts(ebnf, `${value}b`)).toBe(false);
  }
});

test('a set matches its characters, whole, and no other', async () => {
  const sets = [
    charactersOf('é'),
    charactersOf('à日😀-]^\\"'),
    codePoints([
      [0x100, 0x4e10],
      [0x1f600, 0x10ffff],
    ]),
    ALL_CODE_POINTS,
  ];
  const tried = Array.from('aA-]^\\"\n\u0000é日Ā\u07ff\u0800\u4e10\u4e11\ud7ff\ue000\uffff😀𐀀\u{10ffff}');
  for (const set of [...sets, ...sets.map(complementOf).filter(({ length }) => length > 0)]) {
    const grammar = only(oneOf(set));
    const ebnf = toEbnf(grammar);
    for (const character of tried)
      expect(
        await library.accepts(ebnf, character),
        `${JSON.stringify(set).slice(0, 60)} ${JSON.stringify(character)}`,
      ).toBe(matches(grammar, character));
  }
});

test('any character is one character in UTF-8: no surrogate, no longer form, no half', async () => {
  const ebnf = toEbnf(only(anyCharacter));
  // Every way to begin a character, and what may follow it, against the decoder of the platform.
  for (let lead = 0; lead < 256; lead++) {
    const second = lead < 0x80 ? [[]] : Array.from({ length: 16 }, (_, i) => [0x80 + 4 * i]);
    for (const more of second) {
      const bytes = Uint8Array.of(lead, ...more, 0x80, 0x80).subarray(
        0,
        lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4,
      );
      let decoded: string | undefined;
      try {
        decoded = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
      } catch {
        decoded = undefined;
      }
      if (decoded !== undefined) expect(await library.accepts(ebnf, decoded), bytes.join()).toBe(true);
    }
  }
  const first = await library.allowedAfter(ebnf, '');
  const leads = first.filter((id) => id > 0 && id <= 256).map((id) => id - 1);
  expect(leads).toEqual([...Array(0x80).keys(), ...Array.from({ length: 0xf5 - 0xc2 }, (_, i) => 0xc2 + i)]);
});

describe('masks of tokens with several characters', () => {
  const quoted = (item: Expression, min: number, max?: number): Expression =>
    sequence(text('{"'), repeat(item, min, max), text('"}'));
  const letters = oneOf(codePoints([[0x61, 0x62]]));
  const cases: [string, Expression, string[]][] = [
    ['a text without bound', quoted(notQuote, 0), ['{"', '{"ab', '{"é']],
    ['few characters', quoted(notQuote, 2, 5), ['{"', '{"a', '{"aaa', '{"aaaa', '{"aaaaa']],
    [
      'many characters',
      quoted(notQuote, 3, 40),
      ['{"', '{"ab', '{"abc', ...[22, 23, 24, 35, 36, 38, 39, 40].map((n) => `{"${'a'.repeat(n)}`)],
    ],
    [
      'a large least number',
      quoted(letters, 38, 40),
      ['{"', ...[10, 23, 24, 35, 37, 38, 39, 40].map((n) => `{"${'a'.repeat(n)}`)],
    ],
    ['at least many', quoted(letters, 40), ['{"', ...[10, 23, 36, 38, 39, 40, 60].map((n) => `{"${'a'.repeat(n)}`)]],
    [
      'many, then one of them',
      sequence(repeat(letters, 2, 40), text('b"]')),
      ['', 'a', ...[23, 24, 38, 39, 40].map((n) => 'a'.repeat(n))],
    ],
    ['many, to the end', repeat(letters, 2, 40), ['', 'a', ...[23, 24, 38, 39, 40].map((n) => 'a'.repeat(n))]],
    [
      'many, then several',
      sequence(repeat(letters, 2, 40), text('",')),
      ['', 'a', ...[23, 24, 38, 39, 40].map((n) => 'a'.repeat(n))],
    ],
  ];
  test.each(cases)('%s: exactly what may follow is allowed', async (_, body, prefixes) => {
    const ebnf = toEbnf(only(body));
    for (const prefix of prefixes) {
      const allowed = new Set(await library.allowedAfter(ebnf, prefix));
      for (const [i, word] of WORDS.entries()) {
        const isPossible = await library.acceptsPrefix(ebnf, prefix + word);
        // Inside a large repetition, a token of more than 17 characters is left to shorter ones.
        if (word.length > 17 && isPossible) continue;
        expect(allowed.has(257 + i), `${JSON.stringify(prefix)} + ${JSON.stringify(word)}`).toBe(isPossible);
      }
    }
  });
});

test('printed grammars match what their expressions match', async () => {
  let [numAccepted, numRefused] = [0, 0];
  for (let seed = 1; seed <= sized(600, 60); seed++) {
    const random = new Random(seed);
    const grammar = randomGrammar(random);
    const ebnf = toEbnf(grammar);
    const sampler = new TextSampler(grammar, random);
    for (let i = 0; i < 12; i++) {
      const sampled = sampler.sample();
      if (sampled.length > 60) continue;
      const tried = i % 2 === 0 ? sampled : mutated(sampled, random);
      const isMatch = matches(grammar, tried);
      if (i % 2 === 0) expect(isMatch).toBe(true);
      expect(await library.accepts(ebnf, tried), `seed ${seed} ${JSON.stringify(tried)}\n${ebnf}`).toBe(isMatch);
      if (isMatch) numAccepted++;
      else numRefused++;
    }
  }
  expect(Math.min(numAccepted, numRefused)).toBeGreaterThan(sized(600, 60));
});

function mutated(value: string, random: Random): string {
  const characters = Array.from(value);
  const at = random.below(characters.length + 1);
  characters.splice(at, random.below(2), ...[random.pick(['a', 'b', 'é', '"', ''])].filter(Boolean));
  return characters.join('');
}

/** Rules refer to later ones, and to themselves after a character. */
function randomGrammar(random: Random): Grammar {
  const names = ['root', 'one', 'two', 'three'].slice(0, 1 + random.below(4));
  const rules = new Map<string, Expression>();
  for (const [i, name] of names.entries()) {
    const later = names.slice(i + 1);
    const body = randomExpression(random, 3, later);
    const more = sequence(text(random.pick(['a', '(', 'é'])), ruleNamed(names[random.below(names.length)]!), text(')'));
    rules.set(name, random.chance(1, 3) ? choice(body, more) : body);
  }
  return { root: 'root', rules };
}

function randomExpression(random: Random, depth: number, later: readonly string[]): Expression {
  const inner = (): Expression => randomExpression(random, depth - 1, later);
  switch (random.below(depth === 0 ? 4 : 8)) {
    case 0:
      return text(random.pick(['a', 'b', 'ab', 'é', '日本', '"', '\\']));
    case 1:
      return oneOf(
        random.pick([
          charactersOf('ab'),
          charactersOf('aé😀'),
          complementOf(charactersOf('a"')),
          codePoints([[0xe0, 0x4e00]]),
        ]),
      );
    case 2:
      return EMPTY;
    case 3:
      return later.length > 0 ? ruleNamed(later[random.below(later.length)]!) : text('c');
    case 4:
      return choice(inner(), inner());
    case 5:
      return optional(inner());
    case 6: {
      const min = random.below(3);
      const max = random.pick([undefined, min + random.below(3), 33 + random.below(5)]);
      return repeat(inner(), min, max);
    }
    default:
      return sequence(inner(), inner());
  }
}
