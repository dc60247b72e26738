/**
 * Patterns with looks ahead and behind, word boundaries and anchors anywhere, against the JavaScript engine: every text over a few
 * characters is judged alike, as a whole and in a part. Budget: 20 s.
 */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { acceptsText, automatonOf, isAutomaton } from '../../shared/grammar/automaton.ts';
import { GrammarError } from '../../shared/grammar/grammar.ts';
import { regexGrammar, regexLanguage } from '../../shared/grammar/regex.ts';
import { sized } from '../support/long.ts';
import { matches } from './naive_match.ts';
import { lookRegexes, randomLookRegex } from './regexes.ts';
import { TextSampler } from './sample_text.ts';

const MAX_LENGTH = 5;

/** All texts over the characters, up to MAX_LENGTH. */
function textsOver(characters: readonly string[]): readonly string[] {
  const all = [''];
  for (let from = 0, length = 0; length < MAX_LENGTH; length++) {
    const to = all.length;
    for (const text of all.slice(from, to)) for (const character of characters) all.push(text + character);
    from = to;
  }
  return all;
}

const engineOf = (pattern: string, mode: 'whole' | 'search'): RegExp =>
  new RegExp(mode === 'whole' ? `^(?:${pattern})$` : pattern, 'u');

function compare(pattern: string, texts: readonly string[]): number {
  let numMatching = 0;
  for (const mode of ['whole', 'search'] as const) {
    const automaton = automatonOf(regexLanguage(pattern, mode));
    const engine = engineOf(pattern, mode);
    for (const text of texts) {
      const isMatch = engine.test(text);
      if (acceptsText(automaton, text) !== isMatch)
        assert.fail(`${pattern} (${mode}) ${isMatch ? 'matches' : 'does not match'} ${JSON.stringify(text)}`);
      if (isMatch) numMatching++;
    }
  }
  return numMatching;
}

test('random patterns: all short texts are judged as the engine judges them', () => {
  const random = new Random(1);
  const texts = textsOver(['a', 'b', '-', '\n']);
  let [numCompared, numMatching, numRefused] = [0, 0, 0];
  const numPatterns = sized(2_000, 400);
  while (numCompared < numPatterns) {
    const pattern = randomLookRegex(random);
    try {
      if (!isAutomaton(regexLanguage(pattern, 'search'))) continue;
      numMatching += compare(pattern, texts);
      numCompared++;
    } catch (error) {
      if (!(error instanceof GrammarError)) throw error;
      // These are refused by name, or by their size.
      expect(error.message, pattern).toMatch(/within a lookbehind|more than 1000 states/);
      numRefused++;
    }
  }
  expect(numRefused).toBeLessThan(numPatterns / 2);
  expect(numMatching).toBeGreaterThan(numPatterns * 100);
});

test('patterns of many characters and of many words have as many states as they need', () => {
  const characters = (count: number): string[] =>
    Array.from({ length: count }, (_, i) => String.fromCodePoint(0x4e00 + i));
  const words = Array.from({ length: 300 }, (_, i) => `w${((i * 7919) % 10_007).toString(36)}`);
  const statesOf = (pattern: string): number => automatonOf(regexLanguage(pattern, 'search')).states.length;
  assert.equal(statesOf(`\\b${characters(900).join('')}`), 902);
  assert(statesOf(`^(?!.*\\b(?:${words.join('|')})\\b).*$`) < 100);
  for (const pattern of [`\\b${characters(6_000).join('?')}?`, `\\b(?:${characters(4_000).join('|')})\\b`])
    assert.throws(() => statesOf(pattern), /more than 1000 states/);
});

test.each(lookRegexes)('as people write them: $pattern', ({ pattern, examples }) => {
  const random = new Random(2);
  const pieces = examples.flatMap((text) => Array.from(text));
  const changed = (text: string): string => {
    const characters = Array.from(text);
    characters.splice(
      random.below(characters.length + 1),
      random.below(3),
      ...(random.below(4) > 0 ? [pieces[random.below(pieces.length)] ?? ''] : []),
    );
    return characters.join('');
  };
  const texts = examples.flatMap((text) => {
    let at = text;
    return [text, ...Array.from({ length: 200 }, (_, i) => (at = changed(i % 5 === 0 ? text : at)))];
  });
  const numMatching = compare(pattern, texts);
  expect(numMatching).toBeGreaterThan(0);
  expect(numMatching).toBeLessThan(2 * texts.length);
  // A text of the grammar matches.
  const grammar = regexGrammar(pattern);
  const sampler = new TextSampler(grammar, random);
  for (let i = 0; i < 50; i++) {
    const text = sampler.sample();
    expect(engineOf(pattern, 'whole').test(text), JSON.stringify(text)).toBe(true);
    expect(matches(grammar, text)).toBe(true);
  }
});
