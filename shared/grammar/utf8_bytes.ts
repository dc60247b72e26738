/**
 * UTF-8 of a set of code points, as an acyclic automaton over bytes. The library for masks compares character classes byte by byte, so a
 * set beyond ASCII is spelled in these. Equal parts are one node, which keeps the letters of all scripts at some hundred nodes.
 */
import type { CodePoints } from './code_points.ts';

/** An inclusive range of bytes. */
export type ByteRange = readonly [first: number, last: number];

/** A state between two bytes of a character. */
export interface ByteNode {
  /** Equal nodes of one set are the same object with the same id. */
  readonly id: number;
  /** Disjoint. `next` undefined: the character is complete. */
  readonly edges: readonly { readonly ranges: readonly ByteRange[]; readonly next: ByteNode | undefined }[];
}

/** The last code point with 1, 2, 3 and 4 bytes. */
const LAST_BY_LENGTH = [0x7f, 0x7ff, 0xffff, 0x10ffff];
const CONTINUATION_BITS = 6;

/** Returns the automaton of the UTF-8 of a set that is not empty. */
export function byteAutomaton(set: CodePoints): ByteNode {
  const sequences: ByteRange[][] = [];
  for (const [first, last] of set) addSequences(first, last, sequences);
  const nodes = new Map<string, ByteNode>();
  return nodeOf(sequences, 0, nodes);
}

/** Splits a range of code points until each part is one range per byte. */
function addSequences(first: number, last: number, out: ByteRange[][]): void {
  for (const end of LAST_BY_LENGTH) {
    if (first <= end && end < last) {
      addSequences(first, end, out);
      addSequences(end + 1, last, out);
      return;
    }
  }
  for (let bits = CONTINUATION_BITS; bits <= 3 * CONTINUATION_BITS; bits += CONTINUATION_BITS) {
    const mask = (1 << bits) - 1;
    if (last <= 0x7f || (first & ~mask) === (last & ~mask)) continue;
    const cut = (first & mask) !== 0 ? (first | mask) + 1 : (last & mask) !== mask ? last & ~mask : undefined;
    if (cut === undefined) continue;
    addSequences(first, cut - 1, out);
    addSequences(cut, last, out);
    return;
  }
  const [low, high] = [utf8Of(first), utf8Of(last)];
  out.push(low.map((byte, i): ByteRange => [byte, high[i] ?? byte]));
}

function utf8Of(codePoint: number): readonly number[] {
  return [...new TextEncoder().encode(String.fromCodePoint(codePoint))];
}

/** Merges sequences, which are sorted and disjoint, from their byte `at` on. */
function nodeOf(sequences: readonly ByteRange[][], at: number, nodes: Map<string, ByteNode>): ByteNode {
  const byFirst: { range: ByteRange; tails: ByteRange[][] }[] = [];
  for (const one of sequences) {
    const range = one[at];
    if (!range) continue;
    const last = byFirst.at(-1);
    if (last && last.range[0] === range[0] && last.range[1] === range[1]) last.tails.push(one);
    else byFirst.push({ range, tails: [one] });
  }
  const edges = new Map<number, { ranges: ByteRange[]; next: ByteNode | undefined }>();
  for (const { range, tails } of byFirst) {
    const next = tails.some((tail) => tail.length > at + 1) ? nodeOf(tails, at + 1, nodes) : undefined;
    const edge = edges.get(next?.id ?? -1);
    if (!edge) edges.set(next?.id ?? -1, { ranges: [range], next });
    else appendRange(edge.ranges, range);
  }
  const key = [...edges].map(([id, { ranges }]) => `${id}:${ranges.join()}`).join(';');
  const known = nodes.get(key);
  if (known) return known;
  const node = { id: nodes.size, edges: [...edges.values()] };
  nodes.set(key, node);
  return node;
}

function appendRange(ranges: ByteRange[], [first, last]: ByteRange): void {
  const before = ranges.at(-1);
  if (before && before[1] + 1 === first) ranges[ranges.length - 1] = [before[0], last];
  else ranges.push([first, last]);
}
