/** A matcher that follows the definition of a grammar and nothing else: the measure for all that is made of grammars. */
import { hasCodePoint } from '../../shared/grammar/code_points.ts';
import type { Expression, Grammar } from '../../shared/grammar/grammar.ts';

/** Whether the grammar, which has no left recursion, matches the whole text. */
export function matches(grammar: Grammar, text: string): boolean {
  const characters = Array.from(text);
  return endsOf(grammar, characters, { kind: 'rule', name: grammar.root }, 0, new Map()).has(characters.length);
}

/** Positions at which a match of `expression` that begins at `start` can end. */
function endsOf(
  grammar: Grammar,
  characters: readonly string[],
  expression: Expression,
  start: number,
  known: Map<Expression, Map<number, Set<number>>>,
): Set<number> {
  const byStart = known.get(expression) ?? new Map<number, Set<number>>();
  known.set(expression, byStart);
  const before = byStart.get(start);
  if (before) return before;
  const ends = (part: Expression, from: Iterable<number>): Set<number> =>
    new Set([...from].flatMap((at) => [...endsOf(grammar, characters, part, at, known)]));
  const found = ((): Set<number> => {
    switch (expression.kind) {
      case 'text': {
        const wanted = Array.from(expression.text);
        return new Set(wanted.every((one, i) => one === characters[start + i]) ? [start + wanted.length] : []);
      }
      case 'special':
        throw new Error('a text has no special tokens');
      case 'set': {
        const code = characters[start]?.codePointAt(0);
        return new Set(code !== undefined && hasCodePoint(expression.set, code) ? [start + 1] : []);
      }
      case 'rule':
        return ends(grammar.rules.get(expression.name)!, [start]);
      case 'choice':
        return new Set(expression.items.flatMap((item) => [...ends(item, [start])]));
      case 'sequence':
        return expression.items.reduce((from, item) => ends(item, from), new Set([start]));
      case 'repeat': {
        let from = new Set([start]);
        for (let times = 0; times < expression.min; times++) from = ends(expression.item, from);
        const all = new Set(from);
        // Only positions that are new lead to others: fewer times lead there, too.
        for (let times = expression.min; times < (expression.max ?? Infinity) && from.size > 0; times++) {
          from = new Set([...ends(expression.item, from)].filter((end) => !all.has(end)));
          for (const end of from) all.add(end);
        }
        return all;
      }
    }
  })();
  byStart.set(start, found);
  return found;
}
