/** Boundaries of pretokens. No token lies across a boundary, so a pretoken has the same tokens wherever it stands. */
import type { LibraryPreTokenizer, LibraryTokenizer } from './library_tokenizer.ts';

/** Finds where the pretokens of a text end. Positions are in UTF-16 code units. */
export interface Pretokens {
  /** Returns the end of the pretoken that begins at `from`. */
  endOf(text: string, from: number): number;
  /** Whether the text from `at` on has the same pretokens without the text before it. `at` is the end that `endOf` returned last. */
  isCut(text: string, at: number): boolean;
}

const isAlwaysCut = (): boolean => true;

/** Returns the pretokens of a byte-level tokenizer, found with the library's own patterns; undefined for an unsupported pre-tokenizer. */
export function patternPretokens(preTokenizer: LibraryPreTokenizer, type: string): Pretokens | undefined {
  const parts = type === 'Sequence' ? (preTokenizer.tokenizers ?? []) : [preTokenizer];
  const patterns: RegExp[] = [];
  for (const part of parts) {
    const pattern = patternOf(part);
    if (pattern === undefined) return undefined;
    if (pattern !== null) patterns.push(pattern);
  }
  if (patterns.some(({ source }) => seesFar(source))) return undefined;
  const isByteLevel = parts.at(-1)?.add_prefix_space === false;
  if (!isByteLevel || patterns.length === 0 || patterns.length > 2) return undefined;
  const [outer, inner] = patterns.map((pattern) => new RegExp(pattern.source, `${pattern.flags.replace('g', '')}y`));
  if (!outer) return undefined;
  if (!inner) return { endOf: (text, from) => matchEnd(outer, text, from), isCut: isAlwaysCut };
  return nested(outer, inner);
}

/**
 * Whether a pattern depends on more than its match and the check that no non-space character follows. Text cannot be cut for such a
 * pattern.
 */
function seesFar(source: string): boolean {
  const rest = source.replaceAll(/\(\?!\\(?:S|P\{White_Space\})\)/g, '');
  return /\(\?(?:[<=!])|\^\)|\\b/.test(rest);
}

/** Returns the pattern by which a part cuts; null when the part cuts nothing, undefined when it is not supported. */
function patternOf({
  config,
  pattern,
  add_prefix_space: hasPrefix,
  use_regex: usesRegex,
}: LibraryPreTokenizer): RegExp | null | undefined {
  switch (config?.type) {
    case 'ByteLevel':
      if (hasPrefix) return undefined;
      return usesRegex ? (pattern ?? undefined) : null;
    case 'Digits':
      return pattern ?? undefined;
    case 'Split':
      return config.behavior?.toLowerCase() === 'isolated' && !config.invert ? (pattern ?? undefined) : undefined;
    case undefined:
    default:
      return undefined;
  }
}

/**
 * Returns the end of the pretoken at `from`. `pattern` is sticky and normally matches everywhere; where it does not, the text up to
 * its next match is one pretoken.
 */
function matchEnd(pattern: RegExp, text: string, from: number): number {
  pattern.lastIndex = from;
  if (pattern.test(text) && pattern.lastIndex > from) return pattern.lastIndex;
  let at = from;
  do {
    at += text.codePointAt(at)! > 0xffff ? 2 : 1;
    pattern.lastIndex = at;
  } while (at < text.length && !pattern.test(text));
  return at;
}

/** Code units after a position from which is decided whether an outer pretoken that begins there has the same end. */
const SEEN = 256;

/**
 * Returns the pretokens of two nested patterns: the outer one cuts the text, the inner one cuts each outer pretoken without seeing the
 * text around it.
 */
function nested(outer: RegExp, inner: RegExp): Pretokens {
  let [known, start, end, part] = ['', -1, -1, ''];
  return {
    endOf: (text, from) => {
      if (text !== known || from < start || from >= end) {
        [known, start, end] = [text, from, matchEnd(outer, text, from)];
        part = text.slice(start, end);
      }
      return start + matchEnd(inner, part, from - start);
    },
    isCut: (text, at) => {
      if (at <= start || at >= end) return true;
      // Outer pretokens without a bound may be as long as a text.
      const some = text.slice(at, at + SEEN);
      return matchEnd(outer, some, 0) === Math.min(end - at, some.length);
    },
  };
}

const ASCII = 128;

/** Pretokens for tokenizers that do not cut text: a boundary lies between two code units that no token contains side by side. */
class NeighbourPretokens implements Pretokens {
  readonly isCut = isAlwaysCut;
  readonly #ascii = new Uint8Array(ASCII * ASCII);
  readonly #others = new Set<number>();
  /** Code unit of the mark, or -1 when there is none. */
  readonly #mark: number;

  /**
   * `tokens`: the vocabulary by id, undefined for unused ids. `mark`: text is cut in front of each mark, even where a token has the
   * mark inside.
   */
  constructor(tokens: Iterable<string | undefined>, mark?: string) {
    this.#mark = mark?.charCodeAt(0) ?? -1;
    for (const token of tokens) {
      if (token === undefined) continue;
      for (let i = 1; i < token.length; i++) {
        const [a, b] = [token.charCodeAt(i - 1), token.charCodeAt(i)];
        if (a < ASCII && b < ASCII) this.#ascii[a * ASCII + b] = 1;
        else this.#others.add(a * 65_536 + b);
      }
    }
  }

  endOf(text: string, from: number): number {
    let a = text.charCodeAt(from);
    for (let at = from + 1; at < text.length; at++) {
      const b = text.charCodeAt(at);
      const isLowHalf = b >= 0xdc00 && b <= 0xdfff;
      const isTogether =
        a < ASCII && b < ASCII ? this.#ascii[a * ASCII + b] === 1 : isLowHalf || this.#others.has(a * 65_536 + b);
      if (!isTogether || b === this.#mark) return at;
      a = b;
    }
    return text.length;
  }
}

/**
 * Returns the pretokens of a Unigram tokenizer: the text is cut in front of each mark, or nowhere without one. Elsewhere a cut could
 * change the ids, because Unigram's choice between equal scores depends on all text before.
 */
function markPretokens(mark: string | undefined): Pretokens {
  const endOf = (text: string, from: number): number => {
    const at = mark === undefined ? -1 : text.indexOf(mark, from + 1);
    return at < 0 ? text.length : at;
  };
  return { endOf, isCut: isAlwaysCut };
}

/** Pretokens of tokenizers that cut nothing, or in front of marks only; undefined for others. */
export function unspacedPretokens(library: LibraryTokenizer): Pretokens | undefined {
  const { pre_tokenizer: preTokenizer, tokenizer, model } = library;
  const { type, pattern } = tokenizer.pre_tokenizer ?? {};
  let mark: string | undefined;
  if (type === 'Metaspace') mark = preTokenizer?.split ? preTokenizer.replacement : undefined;
  // Gemma's splits at spaces, of which its normaliser leaves none.
  else if (type !== undefined && !(type === 'Split' && pattern?.String === ' ' && hasNoSpaces(library)))
    return undefined;
  // A mark without a token of its own could be fused with unknown characters before it, across the cut.
  if (mark !== undefined && (mark.length !== 1 || !model.tokens_to_ids.has(mark))) return undefined;
  return tokenizer.model.type === 'Unigram' ? markPretokens(mark) : new NeighbourPretokens(model.vocab, mark);
}

function hasNoSpaces({ normalizer }: LibraryTokenizer): boolean {
  return normalizer !== null && !normalizer(' a  b ').includes(' ');
}
