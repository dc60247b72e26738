/** Sets of code points by Unicode property, as `\p{…}` names them. Each is computed once, by trying every code point. */
import { ALL_CODE_POINTS, type CodePointRange, type CodePoints, codePoints } from './code_points.ts';

/** Sets kept (P1): a set has at most some thousand ranges, and Unicode some hundred properties. */
const MAX_KEPT = 64;
const kept = new Map<string, CodePoints>();

/** Returns the code points with a property, such as `L` or `Script=Greek`. @throws SyntaxError for an unknown one */
export function propertySet(property: string): CodePoints {
  const known = kept.get(property);
  if (known) return known;
  const found = computeSet(new RegExp(`\\p{${property}}+`, 'gu'));
  const [oldest] = kept.keys();
  if (kept.size >= MAX_KEPT && oldest !== undefined) kept.delete(oldest);
  kept.set(property, found);
  return found;
}

/** Code points per text that is searched: one match is one range. */
const CHUNK = 0x1000;

function computeSet(runs: RegExp): CodePoints {
  const ranges: CodePointRange[] = [];
  for (const [first, last] of ALL_CODE_POINTS) {
    for (let start = first; start <= last; start += CHUNK) {
      const codes = Array.from({ length: Math.min(CHUNK, last - start + 1) }, (_, i) => start + i);
      const width = start > 0xffff ? 2 : 1;
      const text = String.fromCodePoint(...codes);
      for (const { index, 0: run } of text.matchAll(runs))
        ranges.push([start + index / width, start + (index + run.length) / width - 1]);
    }
  }
  return codePoints(ranges);
}
