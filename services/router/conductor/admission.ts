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

  /**
   * Admits one prompt; the caller calls `leave` when the prompt has ended. @throws Failure `overloaded` while draining, and when
   * `maxRequests` prompts are in flight.
   */
  enter(): void {
    if (this.#isDraining)
      throw new RejectedFailure('overloaded', 'this router is draining and accepts no new requests: try again later', {
        reason: 'draining',
      });
    if (this.#numRequests >= this.#maxRequests) {
      throw new RejectedFailure('overloaded', `${this.#maxRequests} requests are in flight: try again later`, {
        reason: 'max_requests',
      });
    }
    this.#numRequests++;
  }

  /** Ends one admitted prompt. */
  leave(): void {
    this.#numRequests--;
  }

  /** Counts one more (1) or one less (-1) unsent answer. */
  answering(change: 1 | -1): void {
    this.#numAnswers += change;
  }
}
