/** Texts by the markers in them, as automata. */
import { automatonOf, bothOf, othersOf, type Automaton } from '../../grammar/automaton.ts';
import { ALL_CODE_POINTS, charactersOf, complementOf } from '../../grammar/code_points.ts';
import {
  choice,
  isNever,
  oneOf,
  repeat,
  sequence,
  specialToken,
  text,
  type Expression,
} from '../../grammar/grammar.ts';

const ANY = oneOf(ALL_CODE_POINTS);
const ANY_TEXT = repeat(ANY, 0);
const SPACE = repeat(oneOf(charactersOf(' \t\r\n')), 0);

const oneOfTexts = (texts: readonly string[]): Expression => choice(...texts.map(text));

/** Returns the expression of a marker in which the special tokens of these names may be. */
export function markerExpression(literal: string, specialTokens: readonly string[]): Expression {
  const parts: Expression[] = [];
  let begin = 0;
  for (let at = 0; at < literal.length;) {
    const name = longest(specialTokens.filter((one) => one !== '' && literal.startsWith(one, at)));
    if (name === undefined) at++;
    else {
      parts.push(text(literal.slice(begin, at)), specialToken(name));
      begin = at += name.length;
    }
  }
  return sequence(...parts, text(literal.slice(begin)));
}

function longest(names: readonly string[]): string | undefined {
  return names.reduce<string | undefined>((best, one) => (one.length > (best?.length ?? 0) ? one : best), undefined);
}

/** Characters of a marker after which a text must go on with the rest of it: each further one costs a mask of the whole vocabulary. */
const MAX_HEAD = 12;

/**
 * Returns the automaton of the texts that end with a marker, and have neither one before nor any of the texts `never`. Nor do they have
 * the first MAX_HEAD characters of a long marker without the others.
 */
export function upTo(markers: readonly string[], never: readonly string[]): Automaton {
  const early = automatonOf(sequence(ANY_TEXT, oneOfTexts([...markers, ...never]), ANY, ANY_TEXT));
  const ends = bothOf(automatonOf(sequence(ANY_TEXT, oneOfTexts(markers))), othersOf(early));
  const broken = choice(...markers.map(brokenOff));
  return isNever(broken) ? ends : bothOf(ends, othersOf(automatonOf(sequence(ANY_TEXT, broken, ANY_TEXT))));
}

/** Returns the expression of a marker's first characters with another character in its rest. */
function brokenOff(marker: string): Expression {
  const characters = Array.from(marker);
  const wrong = characters.slice(MAX_HEAD).map((character, i) => {
    const others = oneOf(complementOf(charactersOf(character)));
    return sequence(text(characters.slice(0, MAX_HEAD + i).join('')), others);
  });
  return choice(...wrong);
}

/** Returns the automaton of the texts without any of the markers; `starts` may not begin a text either, after white space. */
export function without(markers: readonly string[], starts: readonly string[] = []): Automaton {
  const inside = othersOf(automatonOf(sequence(ANY_TEXT, oneOfTexts(markers), ANY_TEXT)));
  return starts.length === 0
    ? inside
    : bothOf(inside, othersOf(automatonOf(sequence(SPACE, oneOfTexts(starts), ANY_TEXT))));
}
