/**
 * Character classes and splits as in the Rust tokenizers, which follow Unicode. JavaScript's `\s` has U+FEFF and lacks U+0085, and its
 * `\w` and `\d` know ASCII only.
 */
import { byteLetters } from '../../model/byte_letters.ts';

/** White space as Unicode defines it; every such character is one code unit. */
const WHITE = /\p{White_Space}/u;
/** The class `\w` of Rust's regular expressions. */
export const WORD = '\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}';
const WORD_CHARACTER = new RegExp(`[${WORD}]`, 'u');

function isWhite(text: string, at: number): boolean {
  return WHITE.test(text.charAt(at));
}

/** Returns the text without leading white space, as Unicode's White_Space defines it. */
export function trimmedStart(text: string): string {
  let at = 0;
  while (at < text.length && isWhite(text, at)) at++;
  return text.slice(at);
}

/** Returns the text without trailing white space, as Unicode's White_Space defines it. */
export function trimmedEnd(text: string): string {
  let end = text.length;
  while (end > 0 && isWhite(text, end - 1)) end--;
  return text.slice(0, end);
}

/** Whether the character that begins at `at` is a word character; false at the end of the text. */
export function isWordAt(text: string, at: number): boolean {
  return at < text.length && WORD_CHARACTER.test(String.fromCodePoint(text.codePointAt(at) ?? 0));
}

/** Whether the character that ends at `at` is a word character; false at the start of the text. */
export function isWordBefore(text: string, at: number): boolean {
  if (at === 0) return false;
  const isLowHalf = /[\udc00-\udfff]/.test(text.charAt(at - 1)) && at > 1;
  return isWordAt(text, isLowHalf ? at - 2 : at - 1);
}

/** A match of a pattern, or the text between two matches. */
interface Range {
  readonly start: number;
  end: number;
  readonly isMatch: boolean;
}

/** Returns the matches that Oniguruma would find: an empty match directly after another one is left out. */
function matchesOf(text: string, pattern: RegExp): { readonly start: number; readonly end: number }[] {
  const matches: { readonly start: number; readonly end: number }[] = [];
  for (const { index, 0: part } of text.matchAll(pattern)) {
    if (part !== '' || matches.at(-1)?.end !== index) matches.push({ start: index, end: index + part.length });
  }
  return matches;
}

/** Replaces each match of a global pattern by `content`, which is inserted literally. Matches are found as Oniguruma finds them. */
export function replaced(text: string, pattern: RegExp, content: string): string {
  let [result, from] = ['', 0];
  for (const { start, end } of matchesOf(text, pattern)) {
    result += text.slice(from, start) + content;
    from = end;
  }
  return result + text.slice(from);
}

function rangesOf(text: string, pattern: RegExp, isInverted: boolean): Range[] {
  const ranges: Range[] = [];
  let from = 0;
  for (const { start, end } of matchesOf(text, pattern)) {
    if (from !== start) ranges.push({ start: from, end: start, isMatch: isInverted });
    ranges.push({ start, end, isMatch: !isInverted });
    from = end;
  }
  if (from !== text.length) ranges.push({ start: from, end: text.length, isMatch: isInverted });
  return ranges;
}

/** How a split treats the matches of its pattern: drop them, keep them as parts of their own, or merge them with a neighbour. */
export type Behavior = 'removed' | 'isolated' | 'mergedwithprevious' | 'mergedwithnext' | 'contiguous';

/** Returns the behaviour for its name in tokenizer.json. @throws Error for an unknown name */
export function behaviorOf(name: string): Behavior {
  const plain = name.toLowerCase().replaceAll('_', '');
  const known: readonly string[] = ['removed', 'isolated', 'mergedwithprevious', 'mergedwithnext', 'contiguous'];
  if (!known.includes(plain)) throw new Error(`unknown behavior of a split: ${name}`);
  return plain as Behavior;
}

/** Joins a range with the one before when `isOneWith` says so, by whether each of the two is a match. */
function merged(ranges: readonly Range[], isOneWith: (isMatch: boolean, wasMatch: boolean) => boolean): Range[] {
  const all: Range[] = [];
  let wasMatch = false;
  for (const range of ranges) {
    const last = all.at(-1);
    if (last && isOneWith(range.isMatch, wasMatch)) last.end = range.end;
    else all.push({ ...range });
    wasMatch = range.isMatch;
  }
  return all;
}

/** Joins each range with the match before it; of several adjacent matches only the last is joined. */
function mergedWithNext(ranges: readonly Range[]): Range[] {
  const mirrored = ranges.map(({ start, end, isMatch }) => ({ start: -end, end: -start, isMatch })).reverse();
  return merged(mirrored, (isMatch, wasMatch) => isMatch && !wasMatch)
    .map(({ start, end, isMatch }) => ({ start: -end, end: -start, isMatch }))
    .reverse();
}

/** Returns the parts of a text that a pattern splits, without empty ones. */
export function split(text: string, pattern: RegExp, behavior: Behavior, isInverted = false): string[] {
  const ranges = rangesOf(text, pattern, isInverted);
  return partsOf(ranges, behavior)
    .map(({ start, end }) => text.slice(start, end))
    .filter((part) => part !== '');
}

function partsOf(ranges: readonly Range[], behavior: Behavior): readonly Range[] {
  switch (behavior) {
    case 'removed':
      return ranges.filter(({ isMatch }) => !isMatch);
    case 'isolated':
      return ranges;
    case 'contiguous':
      return merged(ranges, (isMatch, wasMatch) => isMatch === wasMatch);
    case 'mergedwithprevious':
      return merged(ranges, (isMatch, wasMatch) => isMatch && !wasMatch);
    case 'mergedwithnext':
      return mergedWithNext(ranges);
  }
}

const encoder = new TextEncoder();

/** Returns the UTF-8 bytes of a text, each as its letter of `byteLetters`. */
export function spelledBytes(text: string): string {
  return Array.from(encoder.encode(text), (byte) => byteLetters[byte]).join('');
}

/** Returns the byte token of a byte, such as `<0xE2>`, which vocabularies with byte fallback have. */
export function byteToken(byte: number): string {
  return `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`;
}

/** Returns one byte token (such as `<0xE2>`) for each UTF-8 byte of the text. */
export function byteTokensOf(text: string): string[] {
  return Array.from(encoder.encode(text), byteToken);
}
