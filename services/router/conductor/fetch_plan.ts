/**
 * Plans which holder each block is fetched from. Each step takes the holder whose next consecutive blocks are worth most, where a
 * block in memory is worth MEMORY_WORTH blocks on disk; long ranges keep the number of holders small.
 */
import type { Source } from '../../../shared/protocol/messages.ts';
import type { HeldSnapshot } from './policy.ts';

/** Worth of a block in memory, counted in blocks that are only on a disk. */
const MEMORY_WORTH = 2;

/** Returns consecutive sources for the blocks from `from` on, up to the first block that nobody holds. */
export function fetchPlan(ranges: readonly HeldSnapshot[], from: number): Source[] {
  const sources: Source[] = [];
  let [next, at] = [from, 0];
  for (;;) {
    let range = ranges[at];
    while (range && range.end <= next) range = ranges[++at];
    if (!range || range.start > next) return sources;
    let best: { address: string; end: number; worth: number } | undefined;
    for (const { address } of range.holders) {
      const { end, worth } = reach(ranges, at, next, address);
      if (!best || worth > best.worth) best = { address, end, worth };
    }
    if (!best) return sources;
    sources.push({ address: best.address, start: next, end: best.end, isComputing: false });
    next = best.end;
  }
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

/**
 * Returns the matched prefix of each holder by id: number of consecutive blocks from the first on. Holders without the first block are
 * left out.
 */
export function matchesOf(ranges: readonly HeldSnapshot[]): Map<string, number> {
  const matches = new Map<string, number>();
  let covered = 0;
  for (const { start, end, holders } of ranges) {
    if (start !== covered) break;
    for (const { id } of holders) if ((matches.get(id) ?? 0) === start) matches.set(id, end);
    covered = end;
  }
  return matches;
}

/**
 * Returns the end of the consecutive blocks that one holder has, and their worth. After blocks in memory, the range ends at blocks
 * that this holder has on disk and another in memory.
 */
function reach(
  ranges: readonly HeldSnapshot[],
  first: number,
  from: number,
  address: string,
): { end: number; worth: number } {
  let [end, worth, wasInMemory] = [from, 0, false];
  for (let at = first; ; at++) {
    const range = ranges[at];
    const its = range?.holders.find((holder) => holder.address === address);
    if (!range || !its || (at > first && range.start !== end)) break;
    if (wasInMemory && !its.isInMemory && range.holders.some(({ isInMemory }) => isInMemory)) break;
    wasInMemory = its.isInMemory;
    worth += (range.end - end) * (its.isInMemory ? MEMORY_WORTH : 1);
    end = range.end;
  }
  return { end, worth };
}
