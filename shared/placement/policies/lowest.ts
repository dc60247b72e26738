/** Choice of the instance with the lowest cost, and of one among equals. */
import assert from 'node:assert/strict';

/** Chooses one of `count` equal instances, by its index. */
type TieBreak = (count: number) => number;

/** Returns a tie-break by a random number in [0, 1). */
export function atRandom(random: number): TieBreak {
  return (count) => Math.min(count - 1, Math.floor(random * count));
}

/** Returns a tie-break by a number that differs among routers. */
export function inTurn(number: number): TieBreak {
  return (count) => number % count;
}

/** Returns the one with the lowest cost. Costs with several numbers are compared by the first that differs. */
export function lowest<One>(all: readonly One[], costOf: (one: One) => readonly number[], tieBreak: TieBreak): One {
  const costs = all.map((one) => ({ one, cost: costOf(one) }));
  const least = costs.reduce((best, { cost }) => (compare(cost, best) < 0 ? cost : best), costs[0]?.cost ?? []);
  const equals = costs.filter(({ cost }) => compare(cost, least) === 0);
  const chosen = equals[tieBreak(equals.length)];
  assert(chosen, 'a rule chooses from at least one instance');
  return chosen.one;
}

function compare(a: readonly number[], b: readonly number[]): number {
  for (const [at, value] of a.entries()) {
    const difference = value - (b[at] ?? 0);
    if (difference !== 0) return difference;
  }
  return 0;
}
