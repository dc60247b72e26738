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

/** Patterns with looks as libraries and people write them, and texts that are near to matching. */
export const lookRegexes: readonly { readonly pattern: string; readonly examples: readonly string[] }[] = [
  // Zod 4: z.email(), z.base64(), z.cuid(); Pydantic 2: Decimal, constrained decimals.
  {
    pattern: "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$",
    examples: ['a.b@c.de', '.a..b@c-d.efg'],
  },
  { pattern: '^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$', examples: ['-01.50', '+.'] },
  {
    pattern: '^(?!^[-+.]*$)[+-]?0*(?:\\d{0,6}|(?=[\\d.]{1,9}0*$)\\d{0,6}\\.\\d{0,2}0*$)',
    examples: ['123456.78', '-0.500'],
  },
  {
    pattern: '^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$',
    examples: ['YWI=', 'YWJj'],
  },
  // Passwords, names, slugs, hosts, versions.
  { pattern: '^(?=.*[A-Z])(?=.*[a-z])(?=.*\\d).{6,12}$', examples: ['Abcde1', 'abcdef12'] },
  { pattern: '^(?=[^ ]*$)(?!.*(?:admin|root))[a-z]\\w{2,15}$', examples: ['adminis', 'some_name1'] },
  { pattern: '^(?!(?:con|prn|aux|nul)$)[a-z]{1,8}$', examples: ['con', 'cone'] },
  { pattern: '^(?!.*--)[a-z0-9-]+(?<!-)$', examples: ['a-b', 'a--b-'] },
  { pattern: '^(?!-)[a-z0-9-]{1,20}(?<!-)(?:\\.(?!-)[a-z0-9-]{1,20}(?<!-))*$', examples: ['a-b.c', '-a.b-'] },
  { pattern: '^v?(?!0\\d)\\d+\\.(?!0\\d)\\d+$', examples: ['v1.20', '01.0'] },
  { pattern: '^(?!000|666)[0-8]\\d{2}-(?!00)\\d{2}-(?!0000)\\d{4}$', examples: ['123-45-6789', '666-00-0000'] },
  { pattern: '(?<![\\w-])foo(?![\\w-])', examples: ['a foo b', 'xfoo-foo'] },
  { pattern: '\\b[A-Z]\\w*\\b', examples: ['An Apple', 'xY z'] },
  { pattern: '^(?:(?!-->)[^])*$', examples: ['a -- b', 'x --> y'] },
  { pattern: '^<!--(?:(?!-->)[^])*-->$', examples: ['<!-- a -->', '<!----> -->'] },
  { pattern: '^\\d{1,3}(?=(?:,\\d{3})*$)(?:,\\d{3})*$', examples: ['1,234', '12,34'] },
  { pattern: '^(?=.*x)(?=.*y)[xyz]*(?<=[xy])$', examples: ['zxzy', 'xyz'] },
  { pattern: '^(?!.*(?:^|\\/)\\.\\.?(?:\\/|$))[\\w./]+$', examples: ['a/b.c', 'a/../b'] },
  { pattern: '^(?!\\s)(?!.*\\s$).+$', examples: ['a b', ' a '] },
  { pattern: '(?=^.{3}$)(?!abc)|^x', examples: ['abd', 'xyzw'] },
  { pattern: '^(?!.*(?=[^a])[a-c])a*$', examples: ['aaa', 'ab'] },
];

/** Returns a pattern of conditions on places between a few characters. */
export function randomLookRegex(random: Random, depth = 3): string {
  const inner = (): string => randomLookRegex(random, depth - 1);
  switch (random.below(depth === 0 ? 6 : 14)) {
    case 0:
    case 1:
      return random.pick(['a', 'b', '-', 'ab', 'ba']);
    case 2:
      return random.pick(['[ab]', '[^a]', '\\w', '\\W', '.', '[^]', '\\s']);
    case 3:
      return random.pick(['^', '$', '\\b', '\\B']);
    case 4:
      return random.pick(['a*', '.*', '[ab]{1,2}', 'b?', '[^]+']);
    case 5:
      return '';
    case 6:
      return `(?=${inner()})`;
    case 7:
      return `(?!${inner()})`;
    case 8:
      return `(?<=${inner()})`;
    case 9:
      return `(?<!${inner()})`;
    case 10:
      return `(?:${inner()}|${inner()})`;
    case 11:
      return `(?:${inner()})${random.pick(['*', '+', '?', '{2}', '{1,2}', '{2,}'])}`;
    default:
      return inner() + inner();
  }
}
