/**
 * A sequence: a list of token ids and a cursor in it. The token ids are the truth; blocks are a cache of them.
 *
 *   waiting ──admit──► loading ──run──► running ──► ended (finished, cancelled: forgotten)
 *      ▲                  │                │
 *      └─────preempt──────┴────────────────┘      the blocks go back to the pool, the token ids stay
 *
 * A prefill sequence computes the full blocks before its tail and samples nothing; a decode sequence computes what is left and samples
 * until it stops. What belongs to a state is in the state: a waiting sequence has no blocks.
 */
import assert from 'node:assert/strict';
import { TokenList } from '../base/token_list.ts';
import { KeyChain, numPrefillBlocks, type AnchoredHash, type Digest } from '../kv/block_key.ts';
import { blocksOutsideWindow } from '../kv/kv_spec.ts';
import type { Request } from '../protocol/request.ts';
import { Cursor } from './cursor.ts';
import { FetchedBlocks, type IncomingSpec } from './fetched_blocks.ts';
import { SequenceTimes } from './sequence_times.ts';

/** A sequence to compute: its tokens, block chain, sampling request and kind. */
export interface SequenceRequest {
  readonly id: number;
  readonly kind: 'prefill' | 'decode';
  /** The start of its block chain: the engine's format and the request's scope. */
  readonly root: Digest;
  readonly tokens: Uint32Array;
  /** Hashes of its first full blocks, as the caller has derived them; the sequence derives the rest as it comes. */
  readonly hashes: readonly AnchoredHash[];
  /** Bits of a block key, as {@link KeyChain} takes them. */
  readonly keyBits?: number | undefined;
  readonly request: Request;
  /** Log-probabilities of the prompt's tokens are wanted from this position on (at least 1); `request.promptLength` for none. */
  readonly promptLogprobsFrom: number;
  /** Blocks are on their way: wait for `proceed` before computing. */
  readonly isFetching: boolean;
}

/** State of a sequence in the engine, with what belongs to the state. */
export type SequenceState =
  | { readonly kind: 'waiting' }
  /** Device blocks are taken; fetched ones are being put in. */
  | { readonly kind: 'loading'; readonly blocks: number[]; readonly fetched: FetchedBlocks }
  /** `fetched`: blocks that arrived behind one that is computed. `firstHeld`: blocks before it are the sequence's no more. */
  | {
      readonly kind: 'running';
      readonly blocks: number[];
      readonly fetched: FetchedBlocks;
      readonly firstHeld: number;
    }
  /** Forgotten by everybody but the steps that touch its blocks, which go back when those have returned. */
  | { readonly kind: 'ended'; readonly blocks: readonly number[] };

const NO_ROWS = { start: 0, end: 0 };

/** One sequence in the engine: token ids, block chain, cursor and state. */
export class Sequence {
  readonly request: SequenceRequest;
  readonly tokens: TokenList;
  readonly chain: KeyChain;
  readonly cursor = new Cursor();
  readonly times: SequenceTimes;
  readonly #spec: IncomingSpec;
  #state: SequenceState = { kind: 'waiting' };
  /** No fetch brings blocks any more. */
  #isFetched: boolean;
  /** The first token of the prompt whose log-probability is still to be reported. */
  #promptNext: number;
  /** The number of the last step that it was part of. */
  lastStep = 0;

  constructor(request: SequenceRequest, spec: IncomingSpec, nowMs: number) {
    this.request = request;
    this.tokens = new TokenList(request.tokens);
    this.chain = new KeyChain(request.root, spec.blockSize, request.hashes, request.keyBits);
    this.chain.extend(this.tokens.view());
    this.times = new SequenceTimes(nowMs);
    this.#spec = spec;
    this.#isFetched = !request.isFetching;
    this.#promptNext = request.promptLogprobsFrom;
  }

  get state(): SequenceState {
    return this.#state;
  }

  /** Block table; empty while the sequence waits. */
  get blocks(): readonly number[] {
    return this.#state.kind === 'waiting' ? [] : this.#state.blocks;
  }

  /** Blocks that it holds a reference of. */
  get heldBlocks(): readonly number[] {
    return this.#state.kind === 'running' ? this.#state.blocks.slice(this.#state.firstHeld) : this.blocks;
  }

  /** Hashes of the blocks that it gave up because no row sees them any more. */
  get passedHashes(): readonly AnchoredHash[] {
    return this.#state.kind === 'running' ? this.chain.hashes.slice(0, this.#state.firstHeld) : [];
  }

  /** Takes device blocks, the first `numHits` of which were hit. */
  admit(blocks: number[], numHits: number): void {
    assert(this.#state.kind === 'waiting', 'a sequence is admitted that waits');
    const fetched = new FetchedBlocks(this.#spec);
    this.cursor.startAt(numHits * this.#spec.blockSize);
    this.#state = this.#isFetched
      ? { kind: 'running', blocks, fetched, firstHeld: 0 }
      : { kind: 'loading', blocks, fetched };
  }

  /**
   * No more blocks arrive: those of which nothing is missing that a row sees which is still to be computed count as there. They have no
   * name: whatever else begins with the same tokens would see what is missing.
   */
  run(): void {
    this.#isFetched = true;
    if (this.#state.kind !== 'loading') return;
    const { blocks, fetched } = this.#state;
    const { blockSize } = this.#spec;
    const first = this.cursor.submitted / blockSize;
    const end = fetched.usableEnd(first, this.hittableBlocks);
    for (let index = first; index < end; index++) {
      if (!fetched.acquire(index)) this.times.numFetched += blockSize;
      this.cursor.skip(blockSize);
    }
    this.#state = { kind: 'running', blocks, fetched, firstHeld: 0 };
    this.passFetched();
  }

  /** Gives up its device blocks, and waits. @returns those that it held */
  preempt(): readonly number[] {
    const held = this.heldBlocks;
    this.#state = { kind: 'waiting' };
    this.cursor.startAt(0);
    return held;
  }

  /** Ends the sequence. Blocks that a step may still touch are kept until {@link takeEnded}. @returns the blocks to release now */
  end(): readonly number[] {
    const held = this.heldBlocks;
    const { isTouching } = this.cursor;
    this.#state = { kind: 'ended', blocks: isTouching ? held : [] };
    return isTouching ? [] : held;
  }

  /** Blocks of a sequence that has ended, once nothing touches them any more; empty before, and the second time. */
  takeEnded(): readonly number[] {
    if (this.#state.kind !== 'ended' || this.cursor.isTouching) return [];
    const { blocks } = this.#state;
    this.#state = { kind: 'ended', blocks: [] };
    return blocks;
  }

  /**
   * Blocks whose last token the next row to be computed, and so every later one, does not see through a window of so many tokens. In
   * their place the table has one that it still holds: nobody reads it there.
   */
  dropOutside(window: number): readonly number[] {
    if (this.#state.kind !== 'running') return [];
    const { blocks, fetched, firstHeld } = this.#state;
    const outside = blocksOutsideWindow(window, this.cursor.computed, this.#spec.blockSize);
    const end = Math.min(outside, blocks.length - 1);
    if (end <= firstHeld) return [];
    const kept = blocks.slice(end);
    // A step that the device has may still read the table that it was given.
    const table = [...new Array<number>(end).fill(kept[0] ?? 0), ...kept];
    this.#state = { kind: 'running', blocks: table, fetched, firstHeld: end };
    return blocks.slice(firstHeld, end);
  }

  /** Tokens that are there, or on their way. */
  get length(): number {
    return this.tokens.length + this.cursor.pending;
  }

  /** Whether a token is sampled from the row before `end`. */
  samplesAt(end: number): boolean {
    return this.request.kind === 'decode' && end === this.length;
  }

  /** Computing stops here: at the last full block before the tail for prefill, at the list's end for decode. */
  get target(): number {
    const { blockSize } = this.#spec;
    return this.request.kind === 'prefill' ? numPrefillBlocks(this.tokens.length, blockSize) * blockSize : this.length;
  }

  /** Rows that are still to be computed; 0 unless it runs. */
  get remaining(): number {
    return this.#state.kind === 'running' ? this.target - this.cursor.submitted : 0;
  }

  /** Computing may go on up to here in one go: what arrived behind it is not computed again. */
  get nextStop(): number {
    let stop = this.target;
    if (this.#state.kind !== 'running') return stop;
    for (const index of this.#state.fetched.whole) stop = Math.min(stop, index * this.#spec.blockSize);
    return stop;
  }

  /** Counts the fetched blocks that come next. */
  passFetched(): void {
    const { state, cursor } = this;
    if (state.kind !== 'loading' && state.kind !== 'running') return;
    const { blockSize } = this.#spec;
    while (state.fetched.acquire(cursor.submitted / blockSize)) cursor.skip(blockSize);
  }

  /** Rows are to come whose logits are wanted, besides the one that a token is sampled from. */
  get isReadingPrompt(): boolean {
    return this.#promptNext < this.request.request.promptLength;
  }

  /** Positions [start, end) of the prompt's tokens whose log-probabilities rows [from, to) give. */
  promptRows(from: number, to: number): { readonly start: number; readonly end: number } {
    if (!this.isReadingPrompt) return NO_ROWS;
    const start = Math.max(from + 1, this.#promptNext);
    return { start, end: Math.max(start, Math.min(to + 1, this.request.request.promptLength)) };
  }

  /** Log-probabilities of the prompt's tokens before `end` were reported. */
  promptReported(end: number): void {
    this.#promptNext = end;
  }

  /** Blocks that a hit may serve: never the tail, whose last row must be computed to be sampled, nor what has rows that are asked for. */
  get hittableBlocks(): number {
    const { blockSize } = this.#spec;
    const numBlocks = numPrefillBlocks(this.tokens.length, blockSize);
    return this.isReadingPrompt ? Math.min(numBlocks, Math.floor((this.#promptNext - 1) / blockSize)) : numBlocks;
  }
}
