/**
 * Admission control: limits the prompts in flight, and counts the answers still leaving this process so that a drain can wait for
 * them.
 */
import { RejectedFailure } from './rejected_failure.ts';

/** Counts prompts in flight and unsent answers. Refuses a prompt when `maxRequests` are in flight or the router is draining. */
export class Admission {
  readonly #maxRequests: number;
  #isDraining = false;
  #numRequests = 0;
  /** Prompts in flight of each tenant that has some: as many entries as prompts at most (P1). */
  readonly #numOf = new Map<string, number>();
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
    return this.#numOf.get(tenant) ?? 0;
  }

  /**
   * Admits one prompt of a tenant, of which `most` may be in flight; the caller calls `leave` when the prompt has ended. @throws Failure
   * `overloaded` while draining and when `maxRequests` prompts are in flight, `rate_limit_exceeded` when `most` of the tenant are.
   */
  enter(tenant: string, most = Infinity): void {
    if (this.#isDraining)
      throw new RejectedFailure('overloaded', 'this router is draining and accepts no new requests: try again later', {
        reason: 'draining',
      });
    if (this.#numRequests >= this.#maxRequests) {
      throw new RejectedFailure('overloaded', `${this.#maxRequests} requests are in flight: try again later`, {
        reason: 'max_requests',
      });
    }
    const numOwn = this.numOf(tenant);
    if (numOwn >= most) {
      throw new RejectedFailure(
        'rate_limit_exceeded',
        `${most} requests of this client are in flight: try again later`,
        {
          reason: 'max_requests',
        },
      );
    }
    this.#numOf.set(tenant, numOwn + 1);
    this.#numRequests++;
  }

  /** Ends one admitted prompt of a tenant. */
  leave(tenant: string): void {
    this.#numRequests--;
    const left = this.numOf(tenant) - 1;
    if (left > 0) this.#numOf.set(tenant, left);
    else this.#numOf.delete(tenant);
  }

  /** Counts one more (1) or one less (-1) unsent answer. */
  answering(change: 1 | -1): void {
    this.#numAnswers += change;
  }
}
