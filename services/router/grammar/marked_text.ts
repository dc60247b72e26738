/** Texts by the markers in them, as automata. */
import { automatonOf, bothOf, othersOf, type Automaton } from '../../../shared/grammar/automaton.ts';
import { ALL_CODE_POINTS, charactersOf } from '../../../shared/grammar/code_points.ts';
import { choice, oneOf, repeat, sequence, text, type Expression } from '../../../shared/grammar/grammar.ts';

const ANY = oneOf(ALL_CODE_POINTS);
const ANY_TEXT = repeat(ANY, 0);
const SPACE = repeat(oneOf(charactersOf(' \t\r\n')), 0);

const oneOfTexts = (texts: readonly string[]): Expression => choice(...texts.map(text));

/** Returns the automaton of the texts that end with a marker, and have none before. */
export function upTo(markers: readonly string[]): Automaton {
  const marker = oneOfTexts(markers);
  return bothOf(
    automatonOf(sequence(ANY_TEXT, marker)),
    othersOf(automatonOf(sequence(ANY_TEXT, marker, ANY, ANY_TEXT))),
  );
}

/** Returns the automaton of the texts without any of the markers; `starts` may not begin a text either, behind white space. */
export function without(markers: readonly string[], starts: readonly string[] = []): Automaton {
  const inside = othersOf(automatonOf(sequence(ANY_TEXT, oneOfTexts(markers), ANY_TEXT)));
  return starts.length === 0
    ? inside
    : bothOf(inside, othersOf(automatonOf(sequence(SPACE, oneOfTexts(starts), ANY_TEXT))));
}
