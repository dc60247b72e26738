/** Regular expressions of tests: some as people write them, and random ones. */
import type { Random } from '../../shared/base/random.ts';

/** Regular expressions as they are found in schemas and requests. */
export const realRegexes: readonly string[] = [
  '\\d{3}-\\d{4}',
  '[A-Z][a-z]+( [A-Z][a-z]+)*',
  '[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\\.[a-zA-Z]{2,}',
  '(https?|ftp)://[^\\s/$.?#].[^\\s]*',
  '#?([a-fA-F0-9]{6}|[a-fA-F0-9]{3})',
  '(?:[01]\\d|2[0-3]):[0-5]\\d(?::[0-5]\\d)?',
  '\\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\\d|3[01])',
  '((25[0-5]|2[0-4]\\d|1?\\d?\\d)\\.){3}(25[0-5]|2[0-4]\\d|1?\\d?\\d)',
  '[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}',
  '[+-]?(?:\\d+\\.?\\d*|\\.\\d+)(?:[eE][+-]?\\d+)?',
  '(yes|no|maybe)',
  '\\$[1-9]\\d{0,2}(,\\d{3})*(\\.\\d\\d)?',
  '[A-Z]{2}\\d{6}[A-Z]?',
  'v?\\d+\\.\\d+\\.\\d+(?:-[0-9A-Za-z.-]+)?(?:\\+[0-9A-Za-z.-]+)?',
  '[^\\s@]+@[^\\s@]+',
  '(?<area>\\d{3})[ .-]?(?<rest>\\d{7})',
  '\\p{L}[\\p{L}\\p{N}_]*',
  '[\\w.-]{1,64}',
  '.{2,50}',
  '.*?,.*',
  'a|b|cd|',
  '(a|ab)(c|bcd)(d*)',
  '[^]{1,3}',
  '\\S+(?:\\s\\S+)*',
  '"(?:[^"\\\\]|\\\\.)*"',
  '[à-ÿ一-龥]+',
  '\\u00e9\\x41\\u{1F600}\\cA?',
  '[\\D\\n]{2}[^\\W_]',
  '(?:(?:a{2}){3}){2}',
  '-?[0-9]{1,3}\\.[0-9]{2,4}',
  '[A-Za-z0-9+/]{4,60}={0,2}',
];

/** Returns a regular expression that both sides should take. */
export function randomRegex(random: Random, depth = 3): string {
  const inner = (): string => randomRegex(random, depth - 1);
  switch (random.below(depth === 0 ? 5 : 9)) {
    case 0:
      return random.pick(['a', 'b', 'é', '日', '😀', '5', '-', ' ', '\\.', '\\n', '\\\\', '"']);
    case 1:
      return random.pick(['[a-c]', '[^a-y\\n]', '[\\d_]', '[à-ü]', '[^\\s]', '[-a]', '[\\w-]', '[😀-😅]', '[\\]^]']);
    case 2:
      return random.pick(['\\d', '\\w', '\\s', '.', '\\D', '\\W', '\\S', '\\p{Lu}', '\\P{L}']);
    case 3:
      return random.pick(['ab', 'foo', '2024', 'x']);
    case 4:
      return '';
    case 5:
      return `(?:${inner()}|${inner()})`;
    case 6:
      return `(${inner()})${random.pick(['*', '+', '?', '{2}', '{1,3}', '{2,}', '*?', '+?', '??', '{0,35}'])}`;
    default:
      return inner() + inner();
  }
}
