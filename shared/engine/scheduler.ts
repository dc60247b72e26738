/**
 * Who computes how many rows in the next step. A prefill chunk and a decode step are the same thing with different counts.
 *
 * Running sequences that need one token come first, then chunks in order of arrival, then admissions from the head of the
 * queue. When blocks run out, the latest arrival is preempted: it keeps its token ids and comes back to the queue's head. That waits
 * until the device has returned every step, so that nobody is given a block which one of them touches.
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

/** What the next step may be. */
export interface Terms {
  /** Rows of prompts beside so many of sequences that wait for their next token. */
  readonly promptRows: (tokenRows: number) => number;
  /** The device has returned every step. */
  readonly isIdle: boolean;
  /** Not one that waits for a token, or has all of them on their way. */
  readonly mayPlan: (sequence: Sequence) => boolean;
  /** Asked when its next rows end where it draws: only so many rows a step can be drawn from by the host. */
  readonly mayDraw: (sequence: Sequence) => boolean;
}

/** Who computes, each its `numPlanned` rows, and who was admitted on the way. */
export interface Plan {
  readonly work: readonly Sequence[];
  readonly admitted: readonly Sequence[];
  /** Blocks ran out for somebody: once the device is idle others will be preempted for it. */
  readonly isShort: boolean;
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

  /** Takes a sequence out, wherever it is; its blocks go back when no step touches them. */
  remove(sequence: Sequence): void {
    if (sequence.numInFlight > 0 || sequence.isBeginning) sequence.retired = sequence.heldBlocks;
    else this.#pool.release(sequence.heldBlocks);
    this.#pool.renew(sequence.chain.hashes.slice(0, sequence.firstHeld));
    reset(sequence);
    for (const list of [this.#waiting, this.#held]) {
      const at = list.indexOf(sequence);
      if (at >= 0) list.splice(at, 1);
    }
  }

  schedule({ promptRows, isIdle, mayPlan, mayDraw }: Terms): Plan {
    const { maxNumSeqs, chunkTokens, blockSize } = this.#limits;
    const work: Sequence[] = [];
    let budget = chunkTokens;
    // Rows that are asked for besides the one that each sequence may draw from, those that may be admitted included.
    let spareSamples = maxNumSeqs - Math.min(this.#maxHeld, this.#held.length + this.#waiting.length);
    const short: Sequence[] = [];
    const plan = (sequence: Sequence): void => {
      const ahead = sequence.nextStop(blockSize) - sequence.numSubmitted;
      let count = Math.min(budget, this.#remaining(sequence), ahead);
      if (sequence.isReadingPrompt) count = Math.min(count, 1 + spareSamples);
      // Computed up to the row that it would draw from, when nobody can draw.
      if (count > 0 && sequence.drawsAt(sequence.numSubmitted + count) && !mayDraw(sequence)) count--;
      if (count <= 0) return;
      const has = this.#ensureBlocks(sequence, sequence.numSubmitted + count, work, isIdle);
      if (has === 'short') short.push(sequence);
      if (has !== 'enough') return;
      sequence.numPlanned = count;
      work.push(sequence);
      budget -= count;
      if (sequence.isReadingPrompt) spareSamples -= count - 1;
    };
    const running = this.#held.filter((sequence) => sequence.phase.kind === 'running' && mayPlan(sequence));
    for (const sequence of running) if (this.#remaining(sequence) === 1) plan(sequence);
    budget = Math.min(budget, promptRows(work.length));
    for (const sequence of running) if (this.#remaining(sequence) > 1) plan(sequence);
    const admitted = short.length > 0 ? [] : this.#admit();
    for (const sequence of admitted) if (sequence.phase.kind === 'running' && mayPlan(sequence)) plan(sequence);
    return { work, admitted, isShort: short.length > 0 };
  }

  #remaining(sequence: Sequence): number {
    return sequence.phase.kind === 'running' ? sequence.target(this.#limits.blockSize) - sequence.numSubmitted : 0;
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
      head.numSubmitted = head.numComputed;
      head.phase = { kind: head.isFetching ? 'loading' : 'running', blocks: acquired.blocks };
      admitted.push(head);
    }
    return admitted;
  }

  /** Blocks for tokens [0, end); preempts later arrivals, at last the sequence itself ('gone'), once the device is idle. */
  #ensureBlocks(sequence: Sequence, end: number, work: Sequence[], isIdle: boolean): 'enough' | 'short' | 'gone' {
    assert(sequence.phase.kind === 'running', 'only a running sequence grows');
    const { blocks } = sequence.phase;
    while (blocks.length * this.#limits.blockSize < end) {
      const block = this.#pool.grow();
      if (block !== undefined) {
        blocks.push(block);
        continue;
      }
      if (!isIdle) return 'short';
      const victim = this.#held.at(-1);
      assert(victim, 'a running sequence is held');
      const at = work.indexOf(victim);
      if (at >= 0) work.splice(at, 1);
      this.#preempt(victim);
      if (victim === sequence) return 'gone';
    }
    return 'enough';
  }

  #preempt(sequence: Sequence): void {
    this.numPreemptions++;
    this.#pool.release(sequence.heldBlocks);
    this.#pool.renew(sequence.chain.hashes.slice(0, sequence.firstHeld));
    reset(sequence);
    this.#held.splice(this.#held.indexOf(sequence), 1);
    this.#waiting.unshift(sequence);
    this.#onPreempted(sequence);
  }
}

/** It has no device blocks any more. */
function reset(sequence: Sequence): void {
  sequence.phase = { kind: 'waiting' };
  sequence.numComputed = 0;
  sequence.numSubmitted = 0;
  sequence.firstHeld = 0;
  sequence.delivered.clear();
  sequence.framesIn.clear();
}
