/**
 * Admission control: limits the prompts in flight, and counts the answers still leaving this process so that a drain can wait for
 * them.
 *
 * While `maxRequests` prompts are in flight, tenants share the places by their weights: a prompt of a tenant that has fewer than another
 * one takes the place of that one's newest prompt without output, which is refused. So a client that fills the router shuts nobody out,
 * and no prompt waits for a place with its body unread.
 */
import type { Failure } from '../../../shared/base/failure.ts';
import { RejectedFailure } from './rejected_failure.ts';

/** A prompt that asks for a place. */
export interface Entrant {
  /** Tenant, or where there is none the client. */
  readonly tenant: string;
  /** Weight of the tenant's share; 1 by default. */
  readonly weight?: number | undefined;
  /** Whether its answer has begun: then it keeps its place. */
  readonly hasBegun: () => boolean;
  /** Ends the prompt with a failure, because another one takes its place. */
  readonly refuse: (failure: Failure) => void;
}

/** Places of one tenant. */
interface Places {
  weight: number;
  /** In order of their entry. */
  readonly entrants: Set<Entrant>;
}

/** Counts prompts in flight and unsent answers. Refuses a prompt when `maxRequests` are in flight or the router is draining. */
export class Admission {
  readonly #maxRequests: number;
  #isDraining = false;
  #numRequests = 0;
  /** Prompts in flight of each tenant that has some: as many as there are places at most (P1). */
  readonly #places = new Map<string, Places>();
  #numAnswers = 0;

  constructor(maxRequests: number) {
    this.#maxRequests = maxRequests;
  }

  get isDraining(): boolean {
    return this.#isDraining;
  }

  /** Prompts that are in flight. */
  get numRequests(): number {
    return this.#numRequests;
  }

  /** Answers that have not left this process yet; a request ends before its answer does. */
  get numAnswers(): number {
    return this.#numAnswers;
  }

  get isIdle(): boolean {
    return this.#numRequests === 0 && this.#numAnswers === 0;
  }

  /** Refuses every new prompt from now on; prompts already admitted continue. */
  drain(): void {
    this.#isDraining = true;
  }

  /** Returns the prompts of a tenant that are in flight. */
  numOf(tenant: string): number {
    return this.#places.get(tenant)?.entrants.size ?? 0;
  }

  /**
   * Admits one prompt; the caller calls `leave` with it when the prompt has ended. @throws Failure `overloaded` while draining and when
   * `maxRequests` prompts are in flight
   */
  enter(entrant: Entrant): void {
    const { tenant, weight = 1 } = entrant;
    if (this.#isDraining)
      throw new RejectedFailure('overloaded', 'this router is draining and accepts no new requests: try again later', {
        reason: 'draining',
      });
    if (this.#numRequests >= this.#maxRequests) {
      const displaced = this.#displaced(tenant, weight);
      if (!displaced) throw this.#full('');
      this.leave(displaced);
      displaced.refuse(this.#full(', most of them of this client'));
    }
    let places = this.#places.get(tenant);
    if (!places) this.#places.set(tenant, (places = { weight, entrants: new Set() }));
    places.weight = weight;
    places.entrants.add(entrant);
    this.#numRequests++;
  }

  /** Ends one admitted prompt; one that has lost its place is left alone. */
  leave(entrant: Entrant): void {
    const places = this.#places.get(entrant.tenant);
    if (!places?.entrants.delete(entrant)) return;
    this.#numRequests--;
    if (places.entrants.size === 0) this.#places.delete(entrant.tenant);
  }

  #full(whose: string): RejectedFailure {
    return new RejectedFailure('overloaded', `${this.#maxRequests} requests are in flight${whose}: try again later`, {
      reason: 'max_requests',
    });
  }

  /**
   * Returns the prompt that gives its place to one of `tenant`: the newest without output of the tenant that has the most by its weight.
   * Undefined where the newcomer's tenant would then have as many.
   */
  #displaced(tenant: string, weight: number): Entrant | undefined {
    let most = (this.numOf(tenant) + 1) / weight;
    let found: Entrant | undefined;
    for (const [name, { weight: own, entrants }] of this.#places) {
      if (name === tenant || entrants.size / own <= most) continue;
      const newest = [...entrants].findLast((one) => !one.hasBegun());
      if (!newest) continue;
      most = entrants.size / own;
      found = newest;
    }
    return found;
  }

  /** Counts one more (1) or one less (-1) unsent answer. */
  answering(change: 1 | -1): void {
    this.#numAnswers += change;
  }
}
