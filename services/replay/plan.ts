/**
 * Searches the cheapest cluster that meets the targets: instances that do any part of a request, and prefill and decode apart.
 *
 *   any part   1, 2, 4 … instances until the targets are met ──► bisection down to the fewest
 *   split      1 + 1, 2 + 2, 4 + 4 … ──► fewest of each with plenty of the other ──► pairs that nothing rules out, the cheapest first
 *
 * The search takes for granted that no cluster is worse for having more instances: one that fails rules out all that have no more of
 * either, one that passes all that cost as much or more.
 */
import type { ClusterSize } from './replay_options.ts';

/**
 * Multiple of `enough` (so many instances of each role meet the targets) that counts as plenty of the other role while the fewest of one
 * role are searched.
 */
const PLENTY = 4;

/** Cost of an instance, in any unit. */
export interface InstanceCosts {
  /** A prefill instance. */
  readonly prefill: number;
  /** A decode instance. */
  readonly decode: number;
  /** An instance that does any part of a request. */
  readonly both: number;
}

/** A cluster that was tried. */
export interface PlanCandidate {
  readonly cluster: ClusterSize;
  /** Cost of all its instances, in the unit of {@link InstanceCosts}. */
  readonly cost: number;
  /** Share of the requests within both targets. */
  readonly attainment: number;
}

/** Limits of a plan, and the runs that it judges by. */
export interface PlanOptions {
  /** Most instances of a cluster. */
  readonly maxInstances: number;
  /** Most runs; the search ends with the best cluster so far. */
  readonly maxRuns: number;
  readonly costs: InstanceCosts;
  /** Share of the requests that must be within both targets, in (0, 1]. */
  readonly targetShare: number;
  /** Returns the share of requests within both targets. */
  readonly run: (cluster: ClusterSize) => Promise<number>;
  /** Called after each run, with the number of runs so far. */
  readonly onTried?: (candidate: PlanCandidate, numRuns: number) => void;
}

/** The cheapest clusters that meet the targets. */
export interface Plan {
  /** Every cluster that was tried, in this order. */
  readonly tried: readonly PlanCandidate[];
  /** Cheapest cluster whose instances do any part; undefined when none was found. */
  readonly aggregated: PlanCandidate | undefined;
  /** Cheapest cluster of prefill and decode instances; undefined when none was found. */
  readonly split: PlanCandidate | undefined;
  /** Whether runs were left: otherwise there may be cheaper ones. */
  readonly isComplete: boolean;
}

/** Returns what a cluster costs. */
export function costOf(cluster: ClusterSize, { prefill, decode, both }: InstanceCosts): number {
  return cluster.kind === 'aggregated'
    ? cluster.numInstances * both
    : cluster.numPrefill * prefill + cluster.numDecode * decode;
}

/** Searches both kinds of clusters. Rejects when a run does. */
export async function planCluster(options: PlanOptions): Promise<Plan> {
  const search = new PlanSearch(options);
  const aggregated = await search.aggregated();
  const split = await search.split();
  return { tried: search.tried, aggregated, split, isComplete: !search.isSpent };
}

class PlanSearch {
  readonly tried: PlanCandidate[] = [];
  readonly #options: PlanOptions;
  #isSpent = false;

  constructor(options: PlanOptions) {
    this.#options = options;
  }

  /** Whether a run was left out because there were too many. */
  get isSpent(): boolean {
    return this.#isSpent;
  }

  async aggregated(): Promise<PlanCandidate | undefined> {
    const { maxInstances } = this.#options;
    const meets = (numInstances: number): Promise<boolean> => this.#meets({ kind: 'aggregated', numInstances });
    const enough = await this.#enough(maxInstances, meets);
    if (enough !== undefined) await fewest(Math.floor(enough / 2), enough, meets);
    return this.#cheapest('aggregated');
  }

  async split(): Promise<PlanCandidate | undefined> {
    const { maxInstances } = this.#options;
    const meets = (numPrefill: number, numDecode: number): Promise<boolean> =>
      this.#meets({ kind: 'split', numPrefill, numDecode });
    const enough = await this.#enough(Math.floor(maxInstances / 2), (count) => meets(count, count));
    if (enough !== undefined) {
      // With plenty of the other role, so that too few of this one are ruled out for all cheaper pairs.
      const plenty = Math.min(maxInstances - enough, PLENTY * enough);
      await fewest(0, enough, (numDecode) => meets(plenty, numDecode));
      await fewest(0, enough, (numPrefill) => meets(numPrefill, plenty));
    }
    for (const [numPrefill, numDecode] of this.#pairs()) {
      const cost = costOf({ kind: 'split', numPrefill, numDecode }, this.#options.costs);
      if (cost >= (this.#cheapest('split')?.cost ?? Infinity) || this.#isSpent) break;
      if (await meets(numPrefill, numDecode)) break;
    }
    return this.#cheapest('split');
  }

  /** Returns the first of 1, 2, 4 … up to `most`, and of `most` itself, that meets the targets. */
  async #enough(most: number, meets: (count: number) => Promise<boolean>): Promise<number | undefined> {
    for (let count = 1; count < most; count *= 2) if (await meets(count)) return count;
    return most > 0 && (await meets(most)) ? most : undefined;
  }

  /** Pairs of at most `maxInstances`, the cheapest first. */
  #pairs(): (readonly [numPrefill: number, numDecode: number])[] {
    const { maxInstances, costs } = this.#options;
    const pairs: (readonly [number, number])[] = [];
    for (let p = 1; p < maxInstances; p++) for (let d = 1; p + d <= maxInstances; d++) pairs.push([p, d]);
    const cost = ([p, d]: readonly [number, number]): number => p * costs.prefill + d * costs.decode;
    // Among pairs of equal cost, balanced ones are likelier to meet the targets.
    return pairs.sort((a, b) => cost(a) - cost(b) || Math.abs(a[0] - a[1]) - Math.abs(b[0] - b[1]));
  }

  /** Whether a cluster meets the targets: known from an earlier run of a smaller or larger one, else by running it. */
  async #meets(cluster: ClusterSize): Promise<boolean> {
    const { run, costs, targetShare, maxRuns, onTried } = this.#options;
    const meets = ({ attainment }: PlanCandidate): boolean => attainment >= targetShare;
    if (this.tried.some((one) => meets(one) && isWithin(one.cluster, cluster))) return true;
    if (this.tried.some((one) => !meets(one) && isWithin(cluster, one.cluster))) return false;
    if (this.tried.length >= maxRuns) {
      this.#isSpent = true;
      return false;
    }
    const candidate = { cluster, cost: costOf(cluster, costs), attainment: await run(cluster) };
    this.tried.push(candidate);
    onTried?.(candidate, this.tried.length);
    return meets(candidate);
  }

  #cheapest(kind: ClusterSize['kind']): PlanCandidate | undefined {
    let best: PlanCandidate | undefined;
    for (const one of this.tried)
      if (
        one.cluster.kind === kind &&
        one.attainment >= this.#options.targetShare &&
        one.cost < (best?.cost ?? Infinity)
      )
        best = one;
    return best;
  }
}

/** Whether `small` has no more instances of any role than `large`, and is of its kind. */
function isWithin(small: ClusterSize, large: ClusterSize): boolean {
  if (small.kind === 'aggregated') return large.kind === 'aggregated' && small.numInstances <= large.numInstances;
  return large.kind === 'split' && small.numPrefill <= large.numPrefill && small.numDecode <= large.numDecode;
}

/** Narrows (fails, meets] down to the fewest that meet the targets. */
async function fewest(fails: number, meets: number, test: (count: number) => Promise<boolean>): Promise<void> {
  let [below, enough] = [fails, meets];
  while (enough - below > 1) {
    const middle = Math.floor((below + enough) / 2);
    if (await test(middle)) enough = middle;
    else below = middle;
  }
}
