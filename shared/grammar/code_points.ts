/**
 * Sets of Unicode code points, without the surrogates: a text of a model is UTF-8, which has none. A set is a list of inclusive ranges,
 * sorted, with a gap between any two of them, so equal sets are equal lists.
 */

/** One inclusive range: its first and its last code point. */
export type CodePointRange = readonly [first: number, last: number];
/** A set of code points, as sorted ranges that neither overlap nor touch. */
export type CodePoints = readonly CodePointRange[];

const LAST_CODE_POINT = 0x10ffff;
const FIRST_SURROGATE = 0xd800;
const LAST_SURROGATE = 0xdfff;

/** Every code point that UTF-8 can express. */
export const ALL_CODE_POINTS: CodePoints = [
  [0, FIRST_SURROGATE - 1],
  [LAST_SURROGATE + 1, LAST_CODE_POINT],
];

/** Returns the set of the code points in `ranges`, which may overlap and have any order. Surrogates are left out. */
export function codePoints(ranges: Iterable<CodePointRange>): CodePoints {
  const sorted = [...withoutSurrogates(ranges)].sort(([a], [b]) => a - b);
  const merged: [number, number][] = [];
  for (const [first, last] of sorted) {
    const before = merged.at(-1);
    if (before && first <= before[1] + 1) before[1] = Math.max(before[1], last);
    else merged.push([first, last]);
  }
  return merged;
}

function* withoutSurrogates(ranges: Iterable<CodePointRange>): Iterable<CodePointRange> {
  for (const [first, last] of ranges) {
    if (first < FIRST_SURROGATE) yield [first, Math.min(last, FIRST_SURROGATE - 1)];
    if (last > LAST_SURROGATE) yield [Math.max(first, LAST_SURROGATE + 1), Math.min(last, LAST_CODE_POINT)];
  }
}

/** Returns the set of the characters of a text. */
export function charactersOf(text: string): CodePoints {
  return codePoints(Array.from(text, (character) => singleOf(character.codePointAt(0) ?? 0)));
}

function singleOf(codePoint: number): CodePointRange {
  return [codePoint, codePoint];
}

/** Returns what is in any of the sets. */
export function unionOf(...sets: readonly CodePoints[]): CodePoints {
  return codePoints(sets.flat());
}

/** Returns what is in both sets. */
export function intersectionOf(a: CodePoints, b: CodePoints): CodePoints {
  const both: CodePointRange[] = [];
  for (let [i, j] = [0, 0]; ;) {
    const [left, right] = [a[i], b[j]];
    if (!left || !right) return both;
    const [first, last] = [Math.max(left[0], right[0]), Math.min(left[1], right[1])];
    if (first <= last) both.push([first, last]);
    if (left[1] < right[1]) i++;
    else j++;
  }
}

/** Returns every code point that the set does not have. */
export function complementOf(set: CodePoints): CodePoints {
  const gaps: CodePointRange[] = [];
  let next = 0;
  for (const [first, last] of set) {
    if (first > next) gaps.push([next, first - 1]);
    next = last + 1;
  }
  if (next <= LAST_CODE_POINT) gaps.push([next, LAST_CODE_POINT]);
  return codePoints(gaps);
}

/** Returns disjoint sets, such that each of `sets` is a union of some of them, in the order of their first code points. */
export function classesOf(sets: readonly CodePoints[]): CodePoints[] {
  const distinct = [...new Map(sets.map((set) => [JSON.stringify(set), set])).values()];
  // Where sets begin and end, which ones are told apart by their numbers.
  const changes = distinct
    .flatMap((set, id) =>
      set.flatMap(([first, last]) => [
        { at: first, id },
        { at: last + 1, id },
      ]),
    )
    .sort((a, b) => a.at - b.at);
  const open = new Set<number>();
  const classes = new Map<string, CodePointRange[]>();
  for (const [i, { at, id }] of changes.entries()) {
    if (!open.delete(id)) open.add(id);
    const next = changes[i + 1]?.at ?? at;
    if (next === at || open.size === 0) continue;
    const key = [...open].sort((a, b) => a - b).join();
    const ranges = classes.get(key);
    if (ranges) ranges.push([at, next - 1]);
    else classes.set(key, [[at, next - 1]]);
  }
  return [...classes.values()].map(codePoints);
}

/** Whether the set has this code point. */
export function hasCodePoint(set: CodePoints, codePoint: number): boolean {
  let [low, high] = [0, set.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    const range = set[middle];
    if (!range) return false;
    if (codePoint < range[0]) high = middle;
    else if (codePoint > range[1]) low = middle + 1;
    else return true;
  }
  return false;
}

/** Returns how many code points the set has. */
export function sizeOf(set: CodePoints): number {
  return set.reduce((sum, [first, last]) => sum + last - first + 1, 0);
}
