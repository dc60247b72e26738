/**
 * Fair shares of an engine above an order of its queue: between tenants by their virtual counters (fair_shares.ts), within a tenant by
 * the order (queue_order.ts).
 *
 *   sequences of tenant a: a1 a2 a3    each by the order of the queue           a's counter: a1's start ─► + a1's cost: a2's start ─► …
 *   sequences of tenant b: b1 b2                                                b's counter: b1's start ─► + b1's cost: b2's start
 *                                                                               the least start comes first: a1 b1 b2 a2 a3
 *
 * The charge is milliseconds of the engine (engine_time.ts): rows that were hit or fetched cost nothing. A sequence that holds device
 * blocks stands with what it is expected to cost still, as in the paper's variant with predicted lengths, so that a tenant with long
 * answers does not take seat after seat before its counter shows it. It also keeps preemption steady: device blocks are taken from the
 * tenant that has had the most with what its other sequences will take, and the least differences of counters move no sequence to and fro.
 *
 * A request's precedence, which its key allows, goes before counters; its priority orders it within its tenant only, and so does its
 * age: no tenant starves, because its counter stands still while it waits and those of the others grow. With the sequences of one tenant
 * the order is that of the queue, and nothing else.
 */
import { FairShares } from '../base/fair_shares.ts';
import type { QueueOrder } from './queue_order.ts';

/** The tenant whose share a sequence takes. */
export interface Sharer {
  readonly tenant: string;
  /** Weight of the tenant; 1 where it is 0 or undefined. */
  readonly weight?: number | undefined;
  /** Levels by which the request goes before other tenants'; 0 by default. */
  readonly precedence?: number | undefined;
}

/** How a FairOrder reads sequences. */
export interface FairReader<S> {
  readonly sharerOf: (sequence: S) => Sharer;
  /** Returns the milliseconds of the engine that the sequence is expected to take from now on. */
  readonly expectedMs: (sequence: S) => number;
}

/** A sequence with its place among those of all tenants. */
interface Placed<S> {
  readonly sequence: S;
  precedence: number;
  readonly startMs: number;
  /** Position of its tenant's first sequence in the list, and its own among those of its tenant. */
  readonly tenant: number;
  readonly at: number;
}

/** Orders the sequences of one engine fairly among their tenants. */
export class FairOrder<S extends object> implements QueueOrder<S> {
  readonly #order: QueueOrder<S>;
  readonly #reader: FairReader<S>;
  readonly #shares = new FairShares();
  /** Whether each sequence waits, or holds device blocks; those of the engine (P1). */
  readonly #isWaiting = new Map<S, boolean>();

  constructor(order: QueueOrder<S>, reader: FairReader<S>) {
    this.#order = order;
    this.#reader = reader;
  }

  /** Number of tenants that have sequences. */
  get numTenants(): number {
    return this.#shares.numTenants;
  }

  /** A sequence waits: it has come, or was preempted. */
  waits(sequence: S): void {
    const { tenant, weight } = this.#reader.sharerOf(sequence);
    if (this.#isWaiting.get(sequence) === false) this.#shares.putBack(tenant);
    else if (!this.#isWaiting.has(sequence)) this.#shares.wait(tenant, weight);
    this.#isWaiting.set(sequence, true);
  }

  /** A sequence has device blocks. */
  admitted(sequence: S): void {
    const { tenant, weight } = this.#reader.sharerOf(sequence);
    if (this.#isWaiting.get(sequence) === true) this.#shares.serve(tenant);
    else if (!this.#isWaiting.has(sequence)) this.#shares.begin(tenant, weight);
    this.#isWaiting.set(sequence, false);
  }

  /** A sequence has ended; one that never came is left alone. */
  ended(sequence: S): void {
    const wasWaiting = this.#isWaiting.get(sequence);
    if (wasWaiting === undefined) return;
    this.#isWaiting.delete(sequence);
    this.#shares.end(this.#reader.sharerOf(sequence).tenant, wasWaiting);
  }

  /** Charges the tenant of a sequence for milliseconds of the engine. */
  charge(sequence: S, ms: number): void {
    this.#shares.charge(this.#reader.sharerOf(sequence).tenant, ms);
  }

  /** Charges a tenant for milliseconds of the engine. */
  chargeTenant(tenant: string, ms: number): void {
    this.#shares.charge(tenant, ms);
  }

  /**
   * Returns the sequences of a list, which is in order of arrival, sorted. `held`: sequences that hold device blocks; those that are not
   * in the list count before their tenant's first one.
   */
  sorted(list: readonly S[], nowMs: number, held: readonly S[] = []): readonly S[] {
    const groups = this.#byTenant(list);
    return groups
      ? this.#merged(groups, list, held, nowMs).map(({ sequence }) => sequence)
      : this.#order.sorted(list, nowMs);
  }

  /**
   * Returns the waiting sequence that gives its place in a full queue to a new one: of those that may be refused, the last one of the
   * tenant that waits with the most by its weight. Undefined where the new one's own tenant would then wait with as many.
   */
  displaced(waiting: readonly S[], newest: S, nowMs: number): S | undefined {
    const groups = this.#byTenant(waiting);
    const { tenant: own, weight = 1 } = this.#reader.sharerOf(newest);
    const shares = this.#shares;
    const lengthOf = (tenant: string): number => shares.numWaiting(tenant) / shares.weight(tenant);
    let most = (shares.numWaiting(own) + 1) / (weight > 0 ? weight : 1);
    let found: readonly S[] | undefined;
    for (const [tenant, sequences] of groups ?? [[this.#tenantOf(waiting), waiting] as const]) {
      if (tenant === own || tenant === undefined || lengthOf(tenant) <= most) continue;
      most = lengthOf(tenant);
      found = sequences;
    }
    return found && this.#order.sorted(found, nowMs).at(-1);
  }

  #tenantOf([first]: readonly S[]): string | undefined {
    return first && this.#reader.sharerOf(first).tenant;
  }

  /** Returns the sequences of each tenant of a list; undefined when there is one tenant only. */
  #byTenant(list: readonly S[]): Map<string, S[]> | undefined {
    if (this.#shares.numTenants < 2) return undefined;
    const groups = new Map<string, S[]>();
    for (const sequence of list) {
      const { tenant } = this.#reader.sharerOf(sequence);
      const others = groups.get(tenant);
      if (others) others.push(sequence);
      else groups.set(tenant, [sequence]);
    }
    return groups.size < 2 ? undefined : groups;
  }

  #merged(groups: Map<string, S[]>, list: readonly S[], held: readonly S[], nowMs: number): Placed<S>[] {
    const heldMs = this.#heldMs(list, held);
    const merged: Placed<S>[] = [];
    let numGroups = 0;
    for (const [tenant, sequences] of groups) {
      const weight = this.#shares.weight(tenant);
      let startMs = this.#shares.virtualMs(tenant) + (heldMs.get(tenant) ?? 0) / weight;
      const from = merged.length;
      for (const [at, sequence] of this.#order.sorted(sequences, nowMs).entries()) {
        const { precedence = 0 } = this.#reader.sharerOf(sequence);
        merged.push({ sequence, precedence, startMs, tenant: numGroups, at });
        startMs += this.#reader.expectedMs(sequence) / weight;
      }
      // Those before a request in its tenant's order go with it, so that the order within the tenant stays.
      for (let i = merged.length - 2; i >= from; i--)
        merged[i]!.precedence = Math.max(merged[i]!.precedence, merged[i + 1]!.precedence);
      numGroups++;
    }
    return merged.sort(compare);
  }

  /** Returns the milliseconds that the held sequences of each tenant which are not in the list are expected to take. */
  #heldMs(list: readonly S[], held: readonly S[]): Map<string, number> {
    const heldMs = new Map<string, number>();
    if (held.length === 0) return heldMs;
    const listed = new Set(list);
    for (const sequence of held) {
      if (listed.has(sequence)) continue;
      const { tenant } = this.#reader.sharerOf(sequence);
      heldMs.set(tenant, (heldMs.get(tenant) ?? 0) + this.#reader.expectedMs(sequence));
    }
    return heldMs;
  }
}

function compare<S>(a: Placed<S>, b: Placed<S>): number {
  return b.precedence - a.precedence || a.startMs - b.startMs || a.tenant - b.tenant || a.at - b.at;
}
