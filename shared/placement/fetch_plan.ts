/**
 * Plans which holder each block is fetched from. Each step takes the holder whose next consecutive blocks are worth most, where a
 * block in memory is worth MEMORY_WORTH blocks on disk; long ranges keep the number of holders small.
 */
import type { Source } from '../protocol/messages.ts';
import type { HeldSnapshot } from './policy.ts';

/** Worth of a block in memory, counted in blocks that are only on a disk. */
const MEMORY_WORTH = 2;

/**
 * Plans by the ranges of a snapshot, which never change: entry i is the plan from the start of range i. Matched prefixes end where ranges
 * do, so one decision reuses them for many instances.
 */
const known = new WeakMap<readonly HeldSnapshot[], (readonly Source[] | undefined)[]>();

/** Returns consecutive sources for the blocks from `from` on, up to the first block that nobody holds. */
export function fetchPlan(ranges: readonly HeldSnapshot[], from: number): readonly Source[] {
  let plans = known.get(ranges);
  if (!plans) known.set(ranges, (plans = []));
  // Steps in front of the cached rest. `at`: index of the range at whose start the step begins; undefined inside a range, where plans are
  // not cached.
  const steps: { readonly source: Source; readonly at: number | undefined }[] = [];
  let [next, at, rest]: [number, number, readonly Source[]] = [from, 0, []];
  for (;;) {
    let range = ranges[at];
    while (range && range.end <= next) range = ranges[++at];
    if (!range || range.start > next) break;
    const isWhole = range.start === next;
    const plan = isWhole ? plans[at] : undefined;
    if (plan) {
      rest = plan;
      break;
    }
    const best = furthest(ranges, at, next);
    if (!best) break;
    steps.push({
      source: { address: best.address, start: next, end: best.end, isComputing: false },
      at: isWhole ? at : undefined,
    });
    next = best.end;
  }
  for (const step of steps.reverse()) {
    rest = [step.source, ...rest];
    if (step.at !== undefined) plans[step.at] = rest;
  }
  return rest;
}

/** Returns the first block from `from` on that no holder can be asked for. */
export function coveredTo(ranges: readonly HeldSnapshot[], from: number): number {
  let covered = from;
  for (const { start, end, holders } of ranges) {
    if (end <= covered) continue;
    if (start > covered || holders.length === 0) break;
    covered = end;
  }
  return covered;
}

/** Leading blocks that each holder has, by its id. */
export type PrefixMatches = ReadonlyMap<string, number>;

/** Matches of ranges that were asked for: a policy and what surrounds it ask for the same. */
const knownMatches = new WeakMap<readonly HeldSnapshot[], PrefixMatches>();

/**
 * Returns the matched prefix of each holder by id: number of consecutive blocks from the first on. Holders without the first block are
 * left out.
 */
export function matchesOf(ranges: readonly HeldSnapshot[]): PrefixMatches {
  const found = knownMatches.get(ranges);
  if (found) return found;
  const matches = new Map<string, number>();
  knownMatches.set(ranges, matches);
  let covered = 0;
  for (const { start, end, holders } of ranges) {
    if (start !== covered) break;
    for (const { id } of holders) if ((matches.get(id) ?? 0) === start) matches.set(id, end);
    covered = end;
  }
  return matches;
}

/** Returns how many leading blocks an instance has on its device, where it needs no fetch for them. */
export function deviceMatchOf(ranges: readonly HeldSnapshot[], id: string): number {
  let covered = 0;
  for (const { start, end, holders } of ranges) {
    if (start !== covered || !holders.some((holder) => holder.id === id && holder.isOnDevice)) break;
    covered = end;
  }
  return covered;
}

/** Consecutive blocks of one holder while they are followed from range to range. */
interface Reach {
  readonly address: string;
  end: number;
  worth: number;
  wasInMemory: boolean;
}

/**
 * Returns the holder whose consecutive blocks from `from` on, in range `first` and after it, are worth most; undefined when the range has
 * no holder. A holder's run ends where it has the next range only on disk while another holder has it in memory.
 */
function furthest(ranges: readonly HeldSnapshot[], first: number, from: number): Reach | undefined {
  const reaches = new Map<string, Reach>();
  let best: Reach | undefined;
  let numReaching = 1;
  for (let at = first; numReaching > 0; at++) {
    const range = ranges[at];
    if (!range || (at > first && range.start !== ranges[at - 1]?.end)) break;
    const { end, holders } = range;
    const start = Math.max(from, range.start);
    const hasMemory = holders.some(({ isInMemory }) => isInMemory);
    numReaching = 0;
    for (const { address, isInMemory } of holders) {
      let reach = reaches.get(address);
      if (!reach && at === first) reaches.set(address, (reach = { address, end: start, worth: 0, wasInMemory: false }));
      if (reach?.end !== start || (reach.wasInMemory && !isInMemory && hasMemory)) continue;
      reach.worth += (end - start) * (isInMemory ? MEMORY_WORTH : 1);
      reach.end = end;
      reach.wasInMemory = isInMemory;
      numReaching++;
    }
  }
  // The first in the order of the range, among equals.
  for (const reach of reaches.values()) if (!best || reach.worth > best.worth) best = reach;
  return best;
}
