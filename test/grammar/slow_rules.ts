/** Regular expressions that take long to convert or to try, and are refused then; each number makes another one. */
import type { TextRule } from '../../shared/text/grammar/text_rule.ts';

const LETTERS = 'abcdefghijklmnop';

/** A rule whose conversion finds after `numLooks` looks ahead, 400 of which took 3 s of CPU time, that it needs too many states. */
export function slowToConvert(i: number, numLooks = 400): TextRule & { readonly kind: 'regex' } {
  const looks = Array.from({ length: numLooks }, (_, k) => `(?!.*${k}[a-z]{1,20}x)`);
  return { kind: 'regex', param: 'guided_regex', pattern: `${looks.join('')}.*${i}` };
}

/** A rule that is converted at once and whose trial takes over 4 s of CPU time. */
export function slowToTry(i: number): TextRule & { readonly kind: 'regex' } {
  const parts = Array.from({ length: 6_000 }, (_, k) => `${LETTERS[k % LETTERS.length]}?`);
  return { kind: 'regex', param: 'guided_regex', pattern: `${parts.join('')}${i}` };
}
