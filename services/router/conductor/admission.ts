/** Who is let in, by numbers alone: before anything is placed, and until the answer has left this process. */
import { Failure } from '../../../shared/base/failure.ts';

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

  /** Nothing new is let in. */
  drain(): void {
    this.#isDraining = true;
  }

  /** One prompt; whoever enters leaves. @throws Failure `overloaded` */
  enter(): void {
    if (this.#isDraining) throw new Failure('overloaded', 'this router is draining and takes nothing new');
    if (this.#numRequests >= this.#maxRequests) {
      throw new Failure('overloaded', `${this.#maxRequests} requests are in flight: try again later`);
    }
    this.#numRequests++;
  }

  leave(): void {
    this.#numRequests--;
  }

  answering(change: 1 | -1): void {
    this.#numAnswers += change;
  }
}
