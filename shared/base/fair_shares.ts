/**
 * Fair shares of something that several tenants wait for: a virtual counter each (VTC, "Fairness in Serving Large Language Models",
 * arXiv 2401.00588, algorithm 2). A tenant's counter grows by what it was served, in ms, divided by its weight; the tenant with the least
 * counter is next.
 *
 *   begins to wait ──► lifted to the least counter of those that wait ──► charged while it is served ──► nothing left: dropped
 *
 * The lift keeps a tenant from saving up: whoever comes back after a pause has as much as those that waited meanwhile, and not hours of
 * theirs. A tenant that still has requests in service keeps CREDIT_MS of what it has had too little, so that one that asks again as soon
 * as it is answered does not lose its share between two requests. What a tenant has had above the others is kept when it is dropped.
 */

/** Milliseconds of service, for weight 1, that a tenant with requests in service may have had less than those that wait. */
const CREDIT_MS = 2_000;
/** Tenants that were dropped and had more than the others, whose counters are kept (P1); the one that left first is forgotten. */
const MAX_LEFT = 4_096;

/** A tenant that waits or is served. */
interface Share {
  /** Milliseconds of service, divided by the weight. */
  virtualMs: number;
  weight: number;
  numWaiting: number;
  numServed: number;
}

/** Returns a weight that can divide: 1 where none was stated. */
function weightOf(weight: number | undefined): number {
  return weight !== undefined && weight > 0 && Number.isFinite(weight) ? weight : 1;
}

/** Virtual counters of the tenants that have requests waiting or in service: as many as requests at most (P1). */
export class FairShares {
  readonly #shares = new Map<string, Share>();
  readonly #left = new Map<string, number>();
  /** Counter to which a tenant is lifted while no other has requests. */
  #floorMs = 0;

  /** Number of tenants with requests that wait or are served. */
  get numTenants(): number {
    return this.#shares.size;
  }

  /** A request of a tenant comes and waits. `weight`: the tenant's, from now on; 1 where it is 0 or undefined. */
  wait(name: string, weight?: number): void {
    let share = this.#shares.get(name);
    if (!share?.numWaiting) {
      const leastMs = this.#liftMs();
      if (share) share.virtualMs = Math.max(share.virtualMs, leastMs - CREDIT_MS);
      else this.#shares.set(name, (share = this.#returned(name, leastMs)));
    }
    share.weight = weightOf(weight);
    share.numWaiting++;
  }

  /** A request of a tenant is served that did not wait. */
  begin(name: string, weight?: number): void {
    let share = this.#shares.get(name);
    if (!share) this.#shares.set(name, (share = this.#returned(name, this.#liftMs())));
    share.weight = weightOf(weight);
    share.numServed++;
  }

  /** A request that waited is served. */
  serve(name: string): void {
    const share = this.#of(name);
    share.numWaiting--;
    share.numServed++;
  }

  /** A request in service waits again. */
  putBack(name: string): void {
    const share = this.#of(name);
    share.numServed--;
    share.numWaiting++;
  }

  /** A request that waited, or was served, has ended. */
  end(name: string, wasWaiting: boolean): void {
    const share = this.#of(name);
    if (wasWaiting) share.numWaiting--;
    else share.numServed--;
    if (share.numWaiting + share.numServed > 0) return;
    this.#shares.delete(name);
    if (this.#shares.size === 0) this.#forget(share.virtualMs);
    else if (share.virtualMs > this.#liftMs()) this.#keep(name, share.virtualMs);
  }

  /** Charges a tenant for milliseconds of service. One that was dropped meanwhile is charged nothing. */
  charge(name: string, ms: number): void {
    const share = this.#shares.get(name);
    if (share) share.virtualMs += ms / share.weight;
  }

  /** Returns the counter of a tenant with requests, in ms of service for weight 1; that of others is where they would be lifted to. */
  virtualMs(name: string): number {
    return this.#shares.get(name)?.virtualMs ?? Math.max(this.#left.get(name) ?? 0, this.#liftMs());
  }

  weight(name: string): number {
    return this.#shares.get(name)?.weight ?? 1;
  }

  /** Number of requests of a tenant that wait. */
  numWaiting(name: string): number {
    return this.#shares.get(name)?.numWaiting ?? 0;
  }

  #of(name: string): Share {
    const share = this.#shares.get(name);
    if (!share) throw new Error(`the tenant ${JSON.stringify(name)} has no requests`);
    return share;
  }

  /**
   * Returns the counter to which a tenant is lifted: the least of those that wait. While none waits, nobody has had too much, and it is
   * the greatest of those in service.
   */
  #liftMs(): number {
    let leastMs = Infinity;
    let greatestMs = -Infinity;
    for (const { numWaiting, virtualMs } of this.#shares.values()) {
      if (numWaiting > 0) leastMs = Math.min(leastMs, virtualMs);
      greatestMs = Math.max(greatestMs, virtualMs);
    }
    if (leastMs < Infinity) return leastMs;
    return greatestMs > -Infinity ? greatestMs : this.#floorMs;
  }

  #returned(name: string, leastMs: number): Share {
    const virtualMs = Math.max(this.#left.get(name) ?? 0, leastMs);
    this.#left.delete(name);
    return { virtualMs, weight: 1, numWaiting: 0, numServed: 0 };
  }

  /** The last tenant has left: while nobody waits, nobody owes anything. */
  #forget(lastMs: number): void {
    this.#floorMs = Math.max(this.#floorMs, lastMs, ...this.#left.values());
    this.#left.clear();
  }

  #keep(name: string, virtualMs: number): void {
    this.#left.set(name, virtualMs);
    if (this.#left.size <= MAX_LEFT) return;
    const leastMs = this.#liftMs();
    for (const [other, ms] of this.#left) if (ms <= leastMs) this.#left.delete(other);
    const [oldest] = this.#left.keys();
    if (this.#left.size > MAX_LEFT && oldest !== undefined) this.#left.delete(oldest);
  }
}
