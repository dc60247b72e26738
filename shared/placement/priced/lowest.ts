/** The items of the lowest costs, where a cheap estimate says of which items the cost is worth computing. */

/** Items whose costs are computed, those of the lowest estimates; of fewer items all costs are. */
const MAX_COSTED = 32;

/** An item with its cost. */
export interface Costed<T> {
  readonly item: T;
  readonly cost: number;
}

/**
 * Returns the `most` items of the lowest costs, the lowest first; among equals, the first. `costOf` computes the cost, undefined where
 * the item does not count.
 */
export function lowest<T, R>(
  items: readonly T[],
  most: number,
  estimateOf: (item: T) => number,
  costOf: (item: T) => Costed<R> | undefined,
): R[] {
  const costed = estimated(items, estimateOf).flatMap((item) => costOf(item) ?? []);
  return costed
    .sort((a, b) => a.cost - b.cost)
    .slice(0, most)
    .map(({ item }) => item);
}

/** Returns the items of the lowest estimates, in their order. */
function estimated<T>(items: readonly T[], estimateOf: (item: T) => number): readonly T[] {
  if (items.length <= MAX_COSTED) return items;
  const estimates = Float64Array.from(items, estimateOf);
  const highest = Float64Array.from(estimates).sort()[MAX_COSTED - 1] ?? Infinity;
  return items.filter((_, i) => (estimates[i] ?? Infinity) <= highest).slice(0, MAX_COSTED);
}
