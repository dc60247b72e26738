/**
 * Runs of tokens that two lists share in order, as a patience diff finds them: fingerprints that both lists have once are matched, the
 * longest ascending chain of the matches is kept, and each is extended in both directions as far as the tokens are equal. Between two
 * runs the same is done again, with denser fingerprints where little is left.
 */
import { fingerprintsOf, type FingerprintSizes, type Fingerprints } from './fingerprints.ts';

/** Tokens that stand in both lists. */
export interface SharedRun {
  readonly earlierStart: number;
  readonly laterStart: number;
  readonly length: number;
}

/** Tokens [earlierStart, earlierEnd) of one list, [laterStart, laterEnd) of the other. */
interface Gap {
  readonly earlierStart: number;
  readonly earlierEnd: number;
  readonly laterStart: number;
  readonly laterEnd: number;
}

/** A position in both lists, after the tokens of a fingerprint that they share. */
interface Match {
  readonly earlierEnd: number;
  readonly laterEnd: number;
}

/**
 * Fingerprints of a gap, of both lists together, that are matched: so many take some tenths of a millisecond. Smaller gaps within it
 * follow.
 */
const MAX_FINGERPRINTS = 512;
/** Tokens of a fingerprint where all of a gap are looked at, and where some are. */
const [SHORT, LONG] = [8, 16];
/** Gaps that are searched within gaps. Deeper ones share too little to matter. */
const MAX_DEPTH = 3;
/** Position of a fingerprint that a list has several times. */
const REPEATED = -1;

/** Returns how many tokens from the first on are the same in both lists. */
export function commonPrefix(one: Uint32Array, other: Uint32Array): number {
  const end = Math.min(one.length, other.length);
  let at = 0;
  while (at < end && one[at] === other[at]) at++;
  return at;
}

/** Returns the runs of tokens after `start` that stand in both lists, in ascending order in both; none overlaps another. */
export function sharedRuns(earlier: Uint32Array, later: Uint32Array, start: number): SharedRun[] {
  const all = { earlierStart: start, earlierEnd: earlier.length, laterStart: start, laterEnd: later.length };
  const runs: SharedRun[] = [];
  search(earlier, later, all, 0, runs);
  return runs;
}

/** Appends the runs of a gap to `runs`, in order. */
function search(earlier: Uint32Array, later: Uint32Array, gap: Gap, depth: number, runs: SharedRun[]): void {
  const [numEarlier, numLater] = [gap.earlierEnd - gap.earlierStart, gap.laterEnd - gap.laterStart];
  const droppedBits = Math.max(0, Math.ceil(Math.log2((numEarlier + numLater) / MAX_FINGERPRINTS)));
  const sizes = { length: droppedBits === 0 ? SHORT : LONG, droppedBits };
  if (depth > MAX_DEPTH || Math.min(numEarlier, numLater) < sizes.length) return;
  const found: SharedRun[] = [];
  let { earlierStart, laterStart } = gap;
  for (const { earlierEnd, laterEnd } of ascending(matches(earlier, later, gap, sizes))) {
    // The fingerprint ends within the run before: it was extended over it, or crosses its end.
    if (earlierEnd - sizes.length < earlierStart || laterEnd - sizes.length < laterStart) continue;
    let back = 0;
    const maxBack = Math.min(earlierEnd - earlierStart, laterEnd - laterStart);
    while (back < maxBack && earlier[earlierEnd - 1 - back] === later[laterEnd - 1 - back]) back++;
    // Equal hashes of different tokens.
    if (back < sizes.length) continue;
    let ahead = 0;
    const maxAhead = Math.min(gap.earlierEnd - earlierEnd, gap.laterEnd - laterEnd);
    while (ahead < maxAhead && earlier[earlierEnd + ahead] === later[laterEnd + ahead]) ahead++;
    found.push({ earlierStart: earlierEnd - back, laterStart: laterEnd - back, length: back + ahead });
    [earlierStart, laterStart] = [earlierEnd + ahead, laterEnd + ahead];
  }
  if (found.length === 0) return;
  [earlierStart, laterStart] = [gap.earlierStart, gap.laterStart];
  for (const run of found) {
    search(
      earlier,
      later,
      { earlierStart, earlierEnd: run.earlierStart, laterStart, laterEnd: run.laterStart },
      depth + 1,
      runs,
    );
    runs.push(run);
    [earlierStart, laterStart] = [run.earlierStart + run.length, run.laterStart + run.length];
  }
  search(earlier, later, { ...gap, earlierStart, laterStart }, depth + 1, runs);
}

/** Returns the positions of fingerprints that each list has once within the gap, in ascending order in the later list. */
function matches(earlier: Uint32Array, later: Uint32Array, gap: Gap, sizes: FingerprintSizes): Match[] {
  const earlierEnds = endsByHash(fingerprintsOf(earlier, gap.earlierStart, gap.earlierEnd, sizes));
  const laterEnds = endsByHash(fingerprintsOf(later, gap.laterStart, gap.laterEnd, sizes));
  const found: Match[] = [];
  for (const [hash, laterEnd] of laterEnds) {
    const earlierEnd = earlierEnds.get(hash);
    if (earlierEnd !== undefined && earlierEnd !== REPEATED && laterEnd !== REPEATED)
      found.push({ earlierEnd, laterEnd });
  }
  return found;
}

function endsByHash({ hashes, ends }: Fingerprints): Map<number, number> {
  const byHash = new Map<number, number>();
  hashes.forEach((hash, i) => byHash.set(hash, byHash.has(hash) ? REPEATED : (ends[i] ?? 0)));
  return byHash;
}

/** Returns a longest chain of matches that ascends in both lists; `all` ascends in the later one. */
function ascending(all: readonly Match[]): Match[] {
  interface Link extends Match {
    readonly before: Link | undefined;
  }
  // lasts[n] is the last match of a chain of n + 1 matches: of those chains, the one that ends first in the earlier list.
  const lasts: Link[] = [];
  for (const match of all) {
    let [low, high] = [0, lasts.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((lasts[middle]?.earlierEnd ?? 0) < match.earlierEnd) low = middle + 1;
      else high = middle;
    }
    lasts[low] = { ...match, before: lasts[low - 1] };
  }
  const chain: Match[] = [];
  for (let link = lasts.at(-1); link; link = link.before) chain.push(link);
  return chain.reverse();
}
