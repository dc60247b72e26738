/**
 * How far a sequence is computed. Token positions:
 *
 *   0 ──── computed ──── submitted ──── tokens ──── tokens + pending
 *   │  KV there   │ KV there when the │            │ sampled by those steps: they come
 *   │             │ steps that run end │            │ after the tokens that are known
 */
import assert from 'node:assert/strict';

/** Counts how many tokens of one sequence are computed, submitted and being sampled. */
export class Cursor {
  #computed = 0;
  #submitted = 0;
  #pending = 0;
  #numInFlight = 0;
  #hasSection = false;

  /** Tokens [0, computed) have their KV in the sequence's blocks. */
  get computed(): number {
    return this.#computed;
  }

  /** Tokens [computed, submitted) have their KV once the submitted steps are complete. */
  get submitted(): number {
    return this.#submitted;
  }

  /** Number of tokens that the submitted steps sample. */
  get pending(): number {
    return this.#pending;
  }

  /** Whether a step, or a section of one, may touch the sequence's blocks because it has not returned. */
  get isTouching(): boolean {
    return this.#numInFlight > 0 || this.#hasSection;
  }

  /** The sequence begins with `numTokens` whose blocks were hit, or anew with none. Steps that are in flight stay counted. */
  startAt(numTokens: number): void {
    this.#computed = numTokens;
    this.#submitted = numTokens;
  }

  /** The device was given a step that computes `count` tokens and samples `numSampled` after them. */
  submit(count: number, numSampled: number): void {
    this.#submitted += count;
    this.#pending += numSampled;
    this.#numInFlight++;
  }

  /** The KV of the next `count` tokens arrived from elsewhere. */
  skip(count: number): void {
    this.#submitted += count;
    if (this.#numInFlight === 0) this.#computed = this.#submitted;
  }

  /** A step has returned, whatever became of the sequence. */
  stepReturned(): void {
    assert(this.#numInFlight > 0, 'a step returns that was submitted');
    this.#numInFlight--;
  }

  /** Sets whether the device computes a section of a step. Blocks that arrive meanwhile count as computed all the same. */
  setSection(hasSection: boolean): void {
    this.#hasSection = hasSection;
  }

  /** Tokens [0, end) have their KV: the step that ended there is complete. So have fetched ones after it when no other step runs. */
  complete(end: number): void {
    this.#computed = this.#numInFlight === 0 ? this.#submitted : end;
  }

  /** A sampled token came back, or none could be sampled. */
  sampleReturned(): void {
    this.#pending--;
  }
}
