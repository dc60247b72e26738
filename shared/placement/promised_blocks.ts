/**
 * Blocks that placed requests will leave on their instances: they are not there yet, but will be before a later request is computed on
 * the same instance. Without them a burst of requests with one prefix is spread over the cluster and computes the prefix everywhere, and
 * the next turn of a chat does not find the turn before, which is still in a queue.
 *
 * The index has each block of an instance once, however many open promises contain it. When a promise ends, the blocks that it shares
 * with another open one of its instance stay: equal keys name equal prefixes (K1), so these are the first blocks of both.
 *
 * A later request waits on the instance for blocks that are computed there (engine/admission.ts), but not for those that an earlier one
 * only fetches: these it has to fetch as well.
 */
import { tiers } from '../protocol/block_events.ts';
import { PrefixIndex } from './prefix_index/prefix_index.ts';
import type { PrefixMatches } from './fetch_plan.ts';
import type { PromisedPrefix } from './policy.ts';

/** Most blocks that are promised at once (P1); blocks beyond are left out. The open promises are bounded by the open calls. */
const MAX_PROMISED = 1 << 20;

/** Keys of one open promise, two words per block. */
interface OpenPromise {
  readonly keys: Int32Array;
}

/** Index tiers that mark how a promised block gets there: `device` is computed there, `dram` is fetched there. */
const COMPUTED = 'device';
const FETCHED = 'dram';
/** Bit of the blocks that are computed. */
const COMPUTED_TIER = 1 << tiers.indexOf(COMPUTED);

/** Open promises of one instance by their first key; promises in different groups share no block. */
type Promises = Map<string, Set<OpenPromise>>;

/** Blocks that open placements will compute or fetch, by instance. */
export class PromisedBlocks {
  readonly #index: PrefixIndex;
  /** Instances with open promises, by id. */
  readonly #open = new Map<string, Promises>();
  #numOpen = 0;

  constructor(maxBlocks = MAX_PROMISED) {
    this.#index = new PrefixIndex(maxBlocks);
  }

  /** Number of open promises. */
  get numOpen(): number {
    return this.#numOpen;
  }

  /** Number of different blocks in the index, those of instances that have left included until they are swept out. */
  get numBlocks(): number {
    return this.#index.size;
  }

  /**
   * Records that the instance `id` will have the blocks `keys`, of which it fetches the first `numFetched` and computes the others. Returns
   * the function that ends the promise; a second call does nothing.
   */
  promise(id: string, keys: Int32Array, numFetched = 0): () => void {
    if (keys.length === 0) return () => undefined;
    let promises = this.#open.get(id);
    if (!promises) this.#open.set(id, (promises = new Map<string, Set<OpenPromise>>()));
    const first = `${keys[0]} ${keys[1]}`;
    let sharing = promises.get(first);
    if (!sharing) promises.set(first, (sharing = new Set()));
    const promise: OpenPromise = { keys };
    sharing.add(promise);
    this.#numOpen++;
    const from = 2 * numFetched;
    if (from > 0) this.#index.apply(id, { operation: 'stored', tier: FETCHED, keys: keys.subarray(0, from) });
    this.#index.apply(id, { operation: 'stored', tier: COMPUTED, keys: keys.subarray(from) });
    return () => {
      this.#end(id, first, promise);
    };
  }

  #end(id: string, first: string, promise: OpenPromise): void {
    const promises = this.#open.get(id);
    const sharing = promises?.get(first);
    // The instance may have left, and its promises with it.
    if (!promises || !sharing?.delete(promise)) return;
    this.#numOpen--;
    let numShared = 0;
    for (const other of sharing) {
      numShared = Math.max(numShared, sharedBlocks(promise.keys, other.keys));
      if (2 * numShared === promise.keys.length) break;
    }
    const keys = promise.keys.subarray(2 * numShared);
    for (const tier of [FETCHED, COMPUTED] as const) this.#index.apply(id, { operation: 'removed', tier, keys });
    if (sharing.size === 0) promises.delete(first);
    if (promises.size > 0) return;
    this.#open.delete(id);
    // Keys that collide may have left blocks behind.
    if (this.#numOpen === 0 && this.#index.size > 0) this.#index.removeHolder(id);
  }

  /** Ends all promises of an instance that has left. */
  forget(id: string): void {
    for (const sharing of this.#open.get(id)?.values() ?? []) this.#numOpen -= sharing.size;
    this.#open.delete(id);
    this.#index.removeHolder(id);
  }

  /** Returns, for each instance with promises, the leading blocks that it has or will have, where that is more than it has now. */
  prefixes(keys: Int32Array, matches: PrefixMatches): PromisedPrefix[] {
    if (this.#numOpen === 0) return [];
    const prefixes = new Map<string, { end: number; fetchedTo: number }>();
    for (const { start, end, heldBy } of this.#index.ranges(keys)) {
      for (const { holder, tiers: its } of heldBy) {
        const prefix = prefixes.get(holder) ?? { end: matches.get(holder) ?? 0, fetchedTo: 0 };
        if (prefix.end < start || prefix.end >= end) continue;
        prefix.end = end;
        if ((its & COMPUTED_TIER) === 0) prefix.fetchedTo = end;
        prefixes.set(holder, prefix);
      }
    }
    return [...prefixes].map(([id, prefix]) => ({ id, ...prefix }));
  }
}

/** Returns how many leading blocks two chains share, by binary search: where two keys are equal, so are all before them (K1). */
function sharedBlocks(a: Int32Array, b: Int32Array): number {
  let [shared, different] = [0, Math.min(a.length, b.length) / 2 + 1];
  while (shared + 1 < different) {
    const middle = (shared + different) >> 1;
    const at = 2 * (middle - 1);
    if (a[at] === b[at] && a[at + 1] === b[at + 1]) shared = middle;
    else different = middle;
  }
  return shared;
}
