/** Where text is cut before it is encoded: no token lies across a cut, so that a piece has the same tokens wherever it stands. */
import type { LibraryPreTokenizer } from './library.ts';

export interface Pieces {
  /** Whether pieces from an end of one on are the same, whatever was in front of it. */
  readonly canBeCut: boolean;
  /** The end of the piece that begins at `from`. */
  endOf(text: string, from: number): number;
}

/** As a byte-level tokenizer's patterns say, which are the library's; undefined for a kind that is not known here. */
export function patternPieces(preTokenizer: LibraryPreTokenizer, type: string): Pieces | undefined {
  const parts = type === 'Sequence' ? (preTokenizer.tokenizers ?? []) : [preTokenizer];
  const patterns: RegExp[] = [];
  for (const part of parts) {
    const pattern = patternOf(part);
    if (pattern === undefined) return undefined;
    if (pattern !== null) patterns.push(pattern);
  }
  // What is behind a piece is seen by its own pattern only.
  if (patterns.some(({ source }) => source.includes('(?<') || source.includes('^)') || source.includes('\\b')))
    return undefined;
  const isByteLevel = parts.at(-1)?.add_prefix_space === false;
  if (!isByteLevel || patterns.length === 0 || patterns.length > 2) return undefined;
  const [outer, inner] = patterns.map((pattern) => new RegExp(pattern.source, `${pattern.flags.replace('g', '')}y`));
  if (!outer) return undefined;
  if (!inner) return { canBeCut: true, endOf: (text, from) => matchEnd(outer, text, from) };
  return nested(outer, inner);
}

/** null: the part cuts nothing; undefined: it is not known. */
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

/** Sticky: a pattern of these tokenizers matches everywhere; where one does not, what is left until it does is a piece. */
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

/** Pieces of pieces: the inner pattern sees the outer piece and nothing else. */
function nested(outer: RegExp, inner: RegExp): Pieces {
  let [known, start, end, part] = ['', -1, -1, ''];
  return {
    // An end within an outer piece is none of what begins there.
    canBeCut: false,
    endOf: (text, from) => {
      if (text !== known || from < start || from >= end) {
        [known, start, end] = [text, from, matchEnd(outer, text, from)];
        part = text.slice(start, end);
      }
      return start + matchEnd(inner, part, from - start);
    },
  };
}

const ASCII = 128;

/** Of tokenizers that cut nothing: between two characters that no token has side by side. */
export class NeighbourPieces implements Pieces {
  readonly canBeCut = true;
  readonly #ascii = new Uint8Array(ASCII * ASCII);
  readonly #others = new Set<number>();

  /** `tokens`: by id, some of which may be nobody's. */
  constructor(tokens: Iterable<string | undefined>) {
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
      if (!isTogether) return at;
      a = b;
    }
    return text.length;
  }
}
