/**
 * Who computes how many rows in the next step. A prefill chunk and a decode step are the same thing with different counts.
 *
 * Running sequences that need one token come first, then chunks in order of arrival, then admissions from the head of the
 * queue. When blocks run out, the latest arrival is preempted: it keeps its token ids and comes back to the queue's head.
 */
import assert from 'node:assert/strict';
import { Failure } from '../base/failure.ts';
import type { BlockPool } from './block_pool.ts';
import type { Sequence } from './sequence.ts';

export interface SchedulerLimits {
  readonly blockSize: number;
  /** Rows in a step. */
  readonly chunkTokens: number;
  /** Sequences that hold device blocks; never more than a step has rows. */
  readonly maxNumSeqs: number;
  /** Sequences that wait (P1); more are refused as overload. */
  readonly maxWaiting: number;
}

export class Scheduler {
  readonly #pool: BlockPool;
  readonly #limits: SchedulerLimits;
  readonly #onPreempted: (sequence: Sequence) => void;
  /** A step has a row for each: with more, those at the end would never have one. */
  readonly #maxHeld: number;
  readonly #waiting: Sequence[] = [];
  /** In order of arrival; loading or running. */
  readonly #held: Sequence[] = [];
  numPreemptions = 0;

  constructor(pool: BlockPool, limits: SchedulerLimits, onPreempted: (sequence: Sequence) => void) {
    this.#pool = pool;
    this.#limits = limits;
    this.#onPreempted = onPreempted;
    this.#maxHeld = Math.min(limits.maxNumSeqs, limits.chunkTokens);
  }

  get numWaiting(): number {
    return this.#waiting.length;
  }

  get numHeld(): number {
    return this.#held.length;
  }

  /** @throws Failure `overloaded` when the queue is full, `context_too_long` when it could never be admitted. */
  submit(sequence: Sequence): void {
    const { blockSize, maxWaiting } = this.#limits;
    const numBlocks = Math.ceil(Math.max(sequence.tokens.length, sequence.request.maxLength) / blockSize);
    if (numBlocks > this.#pool.numBlocks) {
      throw new Failure(
        'context_too_long',
        `${numBlocks} blocks of ${blockSize} tokens are needed, this instance has ${this.#pool.numBlocks}: raise --kv-blocks or ask for fewer tokens`,
      );
    }
    if (this.#waiting.length >= maxWaiting) {
      throw new Failure('overloaded', `${maxWaiting} sequences wait already on this instance`);
    }
    this.#waiting.push(sequence);
  }

  /** Takes a sequence out, wherever it is; its blocks go back. */
  remove(sequence: Sequence): void {
    this.#releaseBlocks(sequence);
    for (const list of [this.#waiting, this.#held]) {
      const at = list.indexOf(sequence);
      if (at >= 0) list.splice(at, 1);
    }
  }

  /** Who computes in the next step, each its `numPlanned` rows, at most `chunkTokens` in all; and who was admitted on the way. */
  schedule(): { readonly work: Sequence[]; readonly admitted: Sequence[] } {
    const work: Sequence[] = [];
    let budget = this.#limits.chunkTokens;
    const plan = (sequence: Sequence): void => {
      const ahead = sequence.nextStop(this.#limits.blockSize) - sequence.numComputed;
      const count = Math.min(budget, this.#remaining(sequence), ahead);
      if (count === 0 || !this.#ensureBlocks(sequence, sequence.numComputed + count, work)) return;
      sequence.numPlanned = count;
      work.push(sequence);
      budget -= count;
    };
    const running = this.#held.filter(({ phase }) => phase.kind === 'running');
    for (const sequence of running) if (this.#remaining(sequence) === 1) plan(sequence);
    for (const sequence of running) if (this.#remaining(sequence) > 1) plan(sequence);
    const admitted = this.#admit();
    for (const sequence of admitted) plan(sequence);
    return { work, admitted };
  }

  #remaining(sequence: Sequence): number {
    return sequence.phase.kind === 'running' ? sequence.target(this.#limits.blockSize) - sequence.numComputed : 0;
  }

  #admit(): Sequence[] {
    const { blockSize } = this.#limits;
    const admitted: Sequence[] = [];
    for (let head = this.#waiting[0]; head && this.#held.length < this.#maxHeld; head = this.#waiting[0]) {
      const hashes = head.chain.hashes.slice(0, head.hittableBlocks(blockSize));
      const acquired = this.#pool.acquire(hashes, Math.ceil(head.target(blockSize) / blockSize));
      if (!acquired) break;
      this.#waiting.shift();
      this.#held.push(head);
      head.numComputed = acquired.numHits * blockSize;
      head.phase = { kind: head.isFetching ? 'loading' : 'running', blocks: acquired.blocks };
      admitted.push(head);
    }
    return admitted;
  }

  /** Blocks for tokens [0, end); preempts later arrivals, at last the sequence itself (false). */
  #ensureBlocks(sequence: Sequence, end: number, work: Sequence[]): boolean {
    assert(sequence.phase.kind === 'running', 'only a running sequence grows');
    const { blocks } = sequence.phase;
    while (blocks.length * this.#limits.blockSize < end) {
      const block = this.#pool.grow();
      if (block !== undefined) {
        blocks.push(block);
        continue;
      }
      const victim = this.#held.at(-1);
      assert(victim, 'a running sequence is held');
      const at = work.indexOf(victim);
      if (at >= 0) work.splice(at, 1);
      this.#preempt(victim);
      if (victim === sequence) return false;
    }
    return true;
  }

  #preempt(sequence: Sequence): void {
    this.numPreemptions++;
    this.#releaseBlocks(sequence);
    this.#held.splice(this.#held.indexOf(sequence), 1);
    this.#waiting.unshift(sequence);
    this.#onPreempted(sequence);
  }

  #releaseBlocks(sequence: Sequence): void {
    this.#pool.release(sequence.blocks);
    sequence.phase = { kind: 'waiting' };
    sequence.numComputed = 0;
    sequence.delivered.clear();
  }
}
