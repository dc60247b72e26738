/**
 * Decides which sequences wait, which hold device blocks, and which compute rows in the next step (step_plan.ts).
 *
 *   submit ──► waiting ──admit, all blocks or none──► held ──► removed
 *                 ▲                                    │
 *                 └──preempt: the last by the order────┘
 *
 * Running sequences grow first, then waiting ones are admitted in the queue's order (queue_order.ts); those that wait for blocks or
 * rows of others are passed (admission.ts). When blocks run out, the last sequence by that order, by default the latest arrival, is
 * preempted: it keeps its token ids and returns to the head of the queue. A preemption waits until the device has returned every step, so that no block is reassigned while a step still touches it.
 *
 * A sequence may load for ever when a prefill elsewhere must compute its blocks first. When all that hold blocks are stalled
 * (stalled_loads.ts), they are preempted for a waiting sequence that can go on.
 */
import assert from 'node:assert/strict';
import { Failure } from '../base/failure.ts';
import { AdmissionRules } from './admission.ts';
import type { AnchoredHash } from '../kv/block_key.ts';
import { fetchStages, type FetchStages } from './fetch_stages.ts';
import { stateHashOf } from '../kv/record.ts';
import type { RecurrentStates } from './recurrent_states.ts';
import type { BlockPool } from './block_pool.ts';
import { SequenceOrder, type OrderLimits } from './queued_sequences.ts';
import type { Sequence } from './sequence.ts';
import { StalledLoads } from './stalled_loads.ts';
import {
  planStep,
  type Candidate,
  type PlannedRows,
  type PromptLimits,
  type StepRoom,
  type StepPlan,
} from './step_plan.ts';

/** Sizes and bounds of a Scheduler. */
export interface SchedulerLimits extends OrderLimits {
  readonly blockSize: number;
  /** Sequences that hold device blocks; never more than a step has rows. */
  readonly maxNumSeqs: number;
}

/** Conditions for planning the next step. */
export interface StepTerms extends PromptLimits {
  readonly nowMs: number;
  /** The device has returned every step. */
  readonly isIdle: boolean;
  /** Returns the sequences among these that may be computed now, in order, with the place where each samples. */
  readonly candidatesOf: (sequences: readonly Sequence[]) => readonly Candidate<Sequence>[];
  /**
   * Called before a sequence is preempted, with the blocks that it should not have to compute again. Returns false while they are
   * copied to host memory; the sequence is then preempted later. Undefined: they are computed again unless they are hit.
   */
  readonly keepBlocks?: ((hashes: readonly AnchoredHash[]) => boolean) | undefined;
  /** Whether blocks of a sequence have arrived in host memory and are not in the device yet; undefined: none have. */
  readonly hasDeliveries?: ((id: number) => boolean) | undefined;
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
  /** Whether a sequence lacks device blocks; once the device is idle, the last ones by the queue's order are preempted for it. */
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
  /** Undefined for a model without recurrent layers. */
  readonly #states: RecurrentStates | undefined;
  readonly #rules: AdmissionRules;
  readonly #stalledLoads = new StalledLoads();
  /** Order of the sequences, and the shares of their tenants. */
  readonly order: SequenceOrder;
  /** Most sequences that hold device blocks. A step must have a row for each, or those at the end would never get one. */
  readonly #maxHeld: number;
  readonly #waiting: Sequence[] = [];
  /** In order of arrival; loading or running. */
  readonly #held: Sequence[] = [];
  numPreemptions = 0;
  /**
   * Milliseconds after which to schedule again although nothing has happened meanwhile; undefined: not before something happens. Set by
   * {@link schedule}.
   */
  recheckMs: number | undefined;

  /** `onPreempted` is called at once, before another sequence takes the blocks. */
  constructor(
    pool: BlockPool,
    limits: SchedulerLimits,
    onPreempted: (sequence: Sequence) => void,
    states?: RecurrentStates,
  ) {
    this.#pool = pool;
    this.#states = states;
    this.#limits = limits;
    this.#onPreempted = onPreempted;
    this.#rules = new AdmissionRules(pool, limits.blockSize, limits.chunkTokens, states);
    this.order = new SequenceOrder(pool, limits, () => this.#held.length);
    this.#maxHeld = Math.min(limits.maxNumSeqs, limits.chunkTokens);
  }

  get numWaiting(): number {
    return this.#waiting.length;
  }

  get numHeld(): number {
    return this.#held.length;
  }

  readonly numFetching = (): FetchStages => fetchStages(this.#waiting, this.#held);

  /** Puts a sequence that was checked at the end of the queue. */
  enqueue(sequence: Sequence): void {
    this.order.waits(sequence);
    this.#waiting.push(sequence);
  }

  /**
   * `numFollowing`: sequences that wait for others of their group, outside the queue. Returns the sequence that must be refused for this
   * one because the queue is full and its tenant waits with more.
   * @throws Failure `overloaded` when the queue is full, `context_too_long` when the sequence could never be admitted.
   */
  check(sequence: Sequence, numFollowing: number): Sequence | undefined {
    const { blockSize } = this.#limits;
    const { maxLength } = sequence.request.request;
    const numBlocks = Math.ceil(Math.max(sequence.tokens.length, maxLength) / blockSize);
    if (numBlocks > this.#pool.numBlocks) {
      throw new Failure(
        'context_too_long',
        `${numBlocks} blocks of ${blockSize} tokens are needed, this instance has ${this.#pool.numBlocks}: raise --kv-blocks or ask for fewer tokens`,
      );
    }
    return this.order.roomFor(sequence, this.#waiting, numFollowing);
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
    if (isPartial && this.#pool.numAvailable === 0) return undefined;
    if (this.#states && !this.#states.fork(follower)) return undefined;
    const to = isPartial ? this.#pool.grow() : undefined;
    const numPassed = leader.blocks.length - leader.heldBlocks.length;
    for (const block of leader.blocks.slice(numPassed, numFull)) this.#pool.reference(block);
    follower.forkFrom(leader, to);
    this.order.admitted(follower);
    this.#held.push(follower);
    const from = leader.blocks[numFull];
    return from === undefined || to === undefined ? [] : [{ from, to }];
  }

  /** Takes a sequence out, wherever it is; its blocks go back when nothing touches them. */
  remove(sequence: Sequence): void {
    this.order.ended(sequence);
    const { passedHashes } = sequence;
    this.#states?.end(sequence, sequence.cursor.isTouching);
    this.#pool.release(sequence.end());
    this.#pool.renew(passedHashes);
    for (const list of [this.#waiting, this.#held]) {
      const at = list.indexOf(sequence);
      if (at >= 0) list.splice(at, 1);
    }
  }

  schedule(terms: StepTerms): Schedule {
    this.recheckMs = undefined;
    let plan = this.#plan(terms);
    // Each round preempts one sequence, in the end the short one itself, so the loop ends.
    while (plan.short && terms.isIdle) {
      if (!this.#preempt(terms)) return { work: [], admitted: [], isShort: true, masksLeft: plan.left.masks };
      plan = this.#plan(terms);
    }
    this.#grow(plan);
    if (plan.short) return { work: plan.work, admitted: [], isShort: true, masksLeft: plan.left.masks };
    const admitted = this.#admit(terms.nowMs);
    if (terms.isIdle && admitted.length === 0) admitted.push(...this.#admitForStalled(terms));
    const later = planStep(
      terms.candidatesOf(admitted.filter(isRunning)),
      { ...plan.left, freeBlocks: this.#pool.numAvailable },
      this.#limits.blockSize,
      { promptRows: () => Infinity },
    );
    this.#grow(later);
    const work = [...plan.work, ...later.work];
    return { work, admitted, isShort: later.short !== undefined, masksLeft: later.left.masks };
  }

  #plan(terms: StepTerms): StepPlan<Sequence> {
    const { candidatesOf, maxHostSamples, maxMasks, numFollowing } = terms;
    const { maxNumSeqs, chunkTokens, blockSize } = this.#limits;
    const budget: StepRoom = {
      rows: chunkTokens,
      // Rows that are asked for besides the one that each sequence may sample from, those that may be admitted included.
      spareSamples: maxNumSeqs - Math.min(this.#maxHeld, this.#held.length + this.#waiting.length + numFollowing),
      hostSamples: maxHostSamples,
      masks: maxMasks,
      freeBlocks: this.#pool.numAvailable,
    };
    return planStep(this.#inOrder(candidatesOf(this.#held.filter(isRunning)), terms.nowMs), budget, blockSize, terms);
  }

  /** Returns the candidates with prompts in the order in which they get rows. */
  #inOrder(candidates: readonly Candidate<Sequence>[], nowMs: number): readonly Candidate<Sequence>[] {
    // Most steps have no two prompts, and then no map is made for them.
    let numPrompts = 0;
    for (const { sequence } of candidates) if (sequence.remaining > 1) numPrompts++;
    if (numPrompts < 2) return candidates;
    const prompts = new Map<Sequence, Candidate<Sequence>>();
    for (const one of candidates) if (one.sequence.remaining > 1) prompts.set(one.sequence, one);
    const ordered = this.order.sorted([...prompts.keys()], nowMs, this.#held).map((one) => prompts.get(one)!);
    return [...candidates.filter(({ sequence }) => !prompts.has(sequence)), ...ordered];
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

  #admit(nowMs: number): Sequence[] {
    const admitted: Sequence[] = [];
    if (this.#waiting.length === 0 || this.#held.length >= this.#maxHeld) return admitted;
    this.#rules.begin(this.#held);
    const prompts = this.#held.filter(({ rowsHere }) => rowsHere > 1);
    for (const next of this.order.sorted([...prompts, ...this.#waiting], nowMs, this.#held)) {
      if (next.state.kind !== 'waiting') {
        this.#rules.passed(next);
        continue;
      }
      if (this.#held.length >= this.#maxHeld) break;
      if (!this.#rules.mayEnter(next)) continue;
      if (!this.#enter(next)) break;
      this.#rules.passed(next);
      admitted.push(next);
    }
    return admitted;
  }

  /** Gives a waiting sequence all its device blocks. Returns false, and nothing changed, when there is no room. */
  #enter(sequence: Sequence): boolean {
    if (this.#held.length >= this.#maxHeld) return false;
    const hashes = sequence.chain.hashes.slice(0, sequence.hittableBlocks);
    if (!this.#take(sequence, hashes, Math.ceil(sequence.target / this.#limits.blockSize))) return false;
    this.#waiting.splice(this.#waiting.indexOf(sequence), 1);
    this.order.admitted(sequence);
    this.#held.push(sequence);
    return true;
  }

  /** Takes the blocks of a sequence, those of `hashes` that are here among them, and its state slot. Returns whether there is room. */
  #take(next: Sequence, hashes: readonly AnchoredHash[], numBlocks: number): boolean {
    const states = this.#states;
    if (!states) {
      const acquired = this.#pool.acquire(hashes, numBlocks);
      if (acquired) next.admit(acquired.blocks, acquired.numHits);
      return acquired !== undefined;
    }
    const numCached = this.#pool.numHeld(hashes);
    const numHits = states.heldAt(hashes, numCached);
    // The state at the end of further blocks may come with the blocks that are fetched.
    const numPresent = next.mayLoad(numHits) ? numCached : numHits;
    if (!states.admit(next, numHits, numCached, next.mayLoad(numHits))) return false;
    const acquired = this.#pool.acquire(hashes.slice(0, numPresent), numBlocks);
    if (acquired) {
      next.admit(acquired.blocks, numHits, numPresent);
      states.admitted(next);
    } else states.end(next, false);
    return acquired !== undefined;
  }

  /**
   * When all sequences that hold device blocks are stalled, preempts as many of them as the first waiting sequence needs that can go on:
   * one that fetches nothing, or whose blocks have arrived. Returns that sequence, if there is one.
   */
  #admitForStalled(terms: StepTerms): readonly Sequence[] {
    if (this.#waiting.length === 0 || this.#held.length === 0) return [];
    const leftMs = this.#stalledLoads.msLeft(this.#held, terms.nowMs);
    if (leftMs === undefined) return [];
    const canGoOn = ({ isFetching, request }: Sequence): boolean => !isFetching || !!terms.hasDeliveries?.(request.id);
    // Blocks that have arrived for a stalled sequence are about to be copied to it.
    if (this.#held.some(canGoOn)) return [];
    const next = this.order.sorted(this.#waiting, terms.nowMs).find(canGoOn);
    if (!next) return [];
    if (leftMs > 0) {
      this.recheckMs = leftMs;
      return [];
    }
    while (!this.#enter(next)) if (this.#held.length === 0 || !this.#preempt(terms)) return [];
    return [next];
  }

  /** Preempts the last sequence by the queue's order. Returns whether it did; the sequence's blocks may have to be copied first. */
  #preempt({ nowMs, keepBlocks }: StepTerms): boolean {
    const sequence = this.order.sorted(this.#held, nowMs).at(-1);
    assert(sequence, 'a sequence that is short is held');
    const kept = this.#restorable(sequence);
    const isKept = keepBlocks?.(kept);
    if (isKept === false) return false;
    const numKept = kept.filter(({ kind }) => kind === undefined).length;
    this.#held.splice(this.#held.indexOf(sequence), 1);
    this.numPreemptions++;
    const { passedHashes } = sequence;
    this.#states?.end(sequence, false);
    this.#pool.release(sequence.preempt(keepBlocks !== undefined, numKept));
    this.#pool.renew(passedHashes);
    this.order.waits(sequence);
    this.#waiting.unshift(sequence);
    this.#onPreempted(sequence);
    return true;
  }

  /** Returns the blocks that a sequence should find again when it was preempted, and where there are states the one at their end. */
  #restorable(sequence: Sequence): readonly AnchoredHash[] {
    const hashes = sequence.chain.hashes.slice(0, sequence.restorableBlocks);
    const states = this.#states;
    if (!states) return hashes;
    states.saveRolling(sequence);
    const kept = hashes.slice(0, states.heldAt(hashes, hashes.length));
    const last = kept.at(-1);
    return last ? [...kept, { ...stateHashOf(last), anchor: last.anchor }] : [];
  }
}

function isRunning({ state }: Sequence): boolean {
  return state.kind === 'running';
}
