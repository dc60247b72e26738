/**
 * `npm run test:long` runs what `npm test` has a sample of, whole: more seeds, prompts, rounds and combinations. What is cut from a suite is cut
 * here, so that nothing is in neither run. `test/README.md` says where each promise is kept.
 */
import { test } from 'vitest';

export const isLong = process.env['LONG'] === '1';

/** A test that is in the long run only. */
export const longTest = test.runIf(isLong);

/** How much of something a suite does: in the long run, and in the other. */
export function sized(long: number, short: number): number {
  return isLong ? long : short;
}

/**
 * One of so many items, or all in the long run. `offset` says which: whoever has several lists gives the number of each, so that between
 * them they have every item.
 */
export function sampleOf<T>(items: readonly T[], oneIn: number, offset = 0): T[] {
  return items.filter((_, i) => isLong || i % oneIn === offset % oneIn);
}

/** Every second item, or all in the long run. `offset` chooses which half. */
export function halfOf<T>(items: readonly T[], offset = 0): T[] {
  return sampleOf(items, 2, offset);
}
