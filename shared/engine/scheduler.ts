/**
 * Decides which sequences wait, which hold device blocks, and which compute rows in the next step (step_plan.ts).
 *
 *   submit ──► waiting ──admit, all blocks or none──► held ──► removed
 *                 ▲                                    │
 *                 └──preempt: the latest arrival───────┘
 *
 * Running sequences grow first, then waiting ones are admitted in order. When blocks run out, the latest arrival is preempted: it
 * keeps its token ids and returns to the head of the queue. A preemption waits until the device has returned every step, so that no
 * block is reassigned while a step still touches it.
 */
import assert from 'node:assert/strict';
import { Failure } from '../base/failure.ts';
import type { BlockPool } from './block_pool.ts';
import type { Sequence } from './sequence.ts';
import { planStep, type Candidate, type PlannedRows, type StepRoom, type StepPlan } from './step_plan.ts';

/** Sizes and bounds of a Scheduler. */
export interface SchedulerLimits {
  readonly blockSize: number;
  /** Rows in a step. */
  readonly chunkTokens: number;
  /** Sequences that hold device blocks; never more than a step has rows. */
  readonly maxNumSeqs: number;
  /** Sequences that wait (P1); more are refused as overload. */
  readonly maxWaiting: number;
}

/** Conditions for planning the next step. */
export interface StepTerms {
  /** Rows of prompts beside so many sequences that need one row. */
  readonly promptRows: (tokenRows: number) => number;
  /** The device has returned every step. */
  readonly isIdle: boolean;
  /** Returns the sequences among these that may be computed now, in order, with the place where each samples. */
  readonly candidatesOf: (sequences: readonly Sequence[]) => readonly Candidate<Sequence>[];
  /** Tokens that the host can sample in a step. */
  readonly maxHostSamples: number;
  /** Tokens that the device can sample in a step with a mask. */
  readonly maxMasks: number;
  /** Sequences that wait for the leader of their group, and may sample in the same step as it. */
  readonly numFollowing: number;
}

/** Rows of the next step, and the sequences that were admitted. */
export interface Schedule {
  readonly work: readonly PlannedRows<Sequence>[];
  /** Took device blocks just now. */
  readonly admitted: readonly Sequence[];
  /** Further samples with a mask that the step has room for. */
  readonly masksLeft: number;
  /** Whether a sequence lacks device blocks; once the device is idle, the latest arrivals are preempted for it. */
  readonly isShort: boolean;
}

/** A device block to copy into another. */
export interface BlockCopy {
  readonly from: number;
  readonly to: number;
}

/** Queue of waiting sequences and list of those that hold device blocks; admits, plans and preempts. */
export class Scheduler {
  readonly #pool: BlockPool;
  readonly #limits: SchedulerLimits;
  readonly #onPreempted: (sequence: Sequence) => void;
  /** Most sequences that hold device blocks. A step must have a row for each, or those at the end would never get one. */
  readonly #maxHeld: number;
  readonly #waiting: Sequence[] = [];
  /** In order of arrival; loading or running. */
  readonly #held: Sequence[] = [];
  numPreemptions = 0;

  /** `onPreempted` is called at once, before another sequence takes the blocks. */
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

  /** Puts a sequence that was checked at the end of the queue. */
  enqueue(sequence: Sequence): void {
    this.#waiting.push(sequence);
  }

  /**
   * `numFollowing`: sequences that wait for others of their group, beside the queue.
   * @throws Failure `overloaded` when the queue is full, `context_too_long` when the sequence could never be admitted.
   */
  check(sequence: Sequence, numFollowing: number): void {
    const { blockSize, maxWaiting } = this.#limits;
    const { maxLength } = sequence.request.request;
    const numBlocks = Math.ceil(Math.max(sequence.tokens.length, maxLength) / blockSize);
    if (numBlocks > this.#pool.numBlocks) {
      throw new Failure(
        'context_too_long',
        `${numBlocks} blocks of ${blockSize} tokens are needed, this instance has ${this.#pool.numBlocks}: raise --kv-blocks or ask for fewer tokens`,
      );
    }
    if (this.#waiting.length + numFollowing >= maxWaiting) {
      throw new Failure('overloaded', `${maxWaiting} sequences wait already on this instance`);
    }
  }

  /**
   * Gives `follower` the blocks of the prompt that it shares with `leader`: the full ones themselves, and a block of its own for the
   * one that the prompt fills in part, which the caller copies. Returns the copies to make; undefined, and nothing changed, when there is no room.
   */
  fork(leader: Sequence, follower: Sequence): readonly BlockCopy[] | undefined {
    if (this.#held.length >= this.#maxHeld) return undefined;
    const { blockSize } = this.#limits;
    const { length } = follower.tokens;
    const numFull = Math.floor(length / blockSize);
    const isPartial = length % blockSize > 0;
    const to = isPartial ? this.#pool.grow() : undefined;
    if (isPartial && to === undefined) return undefined;
    const numPassed = leader.blocks.length - leader.heldBlocks.length;
    for (const block of leader.blocks.slice(numPassed, numFull)) this.#pool.reference(block);
    follower.forkFrom(leader, to);
    this.#held.push(follower);
    const from = leader.blocks[numFull];
    return from === undefined || to === undefined ? [] : [{ from, to }];
  }

  /** Takes a sequence out, wherever it is; its blocks go back when nothing touches them. */
  remove(sequence: Sequence): void {
    const { passedHashes } = sequence;
    this.#pool.release(sequence.end());
    this.#pool.renew(passedHashes);
    for (const list of [this.#waiting, this.#held]) {
      const at = list.indexOf(sequence);
      if (at >= 0) list.splice(at, 1);
    }
  }

  schedule(terms: StepTerms): Schedule {
    let plan = this.#plan(terms);
    // Each round preempts one sequence, in the end the short one itself, so the loop ends.
    while (plan.short && terms.isIdle) {
      this.#preemptLatest();
      plan = this.#plan(terms);
    }
    this.#grow(plan);
    if (plan.short) return { work: plan.work, admitted: [], isShort: true, masksLeft: plan.left.masks };
    const admitted = this.#admit();
    const later = planStep(
      terms.candidatesOf(admitted.filter(isRunning)),
      { ...plan.left, freeBlocks: this.#pool.numAvailable },
      this.#limits.blockSize,
      () => Infinity,
    );
    this.#grow(later);
    const work = [...plan.work, ...later.work];
    return { work, admitted, isShort: later.short !== undefined, masksLeft: later.left.masks };
  }

  #plan({ candidatesOf, promptRows, maxHostSamples, maxMasks, numFollowing }: StepTerms): StepPlan<Sequence> {
    const { maxNumSeqs, chunkTokens, blockSize } = this.#limits;
    const budget: StepRoom = {
      rows: chunkTokens,
      // Rows that are asked for besides the one that each sequence may sample from, those that may be admitted included.
      spareSamples: maxNumSeqs - Math.min(this.#maxHeld, this.#held.length + this.#waiting.length + numFollowing),
      hostSamples: maxHostSamples,
      masks: maxMasks,
      freeBlocks: this.#pool.numAvailable,
    };
    return planStep(candidatesOf(this.#held.filter(isRunning)), budget, blockSize, promptRows);
  }

  /** Takes the blocks that the plan needs. */
  #grow({ work }: StepPlan<Sequence>): void {
    for (const { sequence, newBlocks } of work) {
      assert(sequence.state.kind === 'running', 'only a running sequence grows');
      for (let i = 0; i < newBlocks; i++) {
        const block = this.#pool.grow();
        assert(block !== undefined, 'the plan counted the free blocks');
        sequence.state.blocks.push(block);
      }
    }
  }

  #admit(): Sequence[] {
    const { blockSize } = this.#limits;
    const admitted: Sequence[] = [];
    for (let head = this.#waiting[0]; head && this.#held.length < this.#maxHeld; head = this.#waiting[0]) {
      const hashes = head.chain.hashes.slice(0, head.hittableBlocks);
      const acquired = this.#pool.acquire(hashes, Math.ceil(head.target / blockSize));
      if (!acquired) break;
      this.#waiting.shift();
      this.#held.push(head);
      head.admit(acquired.blocks, acquired.numHits);
      admitted.push(head);
    }
    return admitted;
  }

  #preemptLatest(): void {
    const sequence = this.#held.pop();
    assert(sequence, 'a sequence that is short is held');
    this.numPreemptions++;
    const { passedHashes } = sequence;
    this.#pool.release(sequence.preempt());
    this.#pool.renew(passedHashes);
    this.#waiting.unshift(sequence);
    this.#onPreempted(sequence);
  }
}

function isRunning({ state }: Sequence): boolean {
  return state.kind === 'running';
}
