/**
 * A sequence: a list of token ids and a cursor in it. The token ids are the truth; blocks are a cache of them.
 *
 *   waiting ──admit──► loading ──run──► running ──► ended (finished, cancelled: forgotten)
 *      ▲                  │                │
 *      └─────preempt──────┴────────────────┘      the blocks go back to the pool, the token ids stay
 *
 * A prefill sequence computes the full blocks before its tail and samples nothing; a decode sequence computes what is left and samples
 * until it stops; an embed sequence computes all its tokens, whose hidden states are pooled. What belongs to a state is in the state: a waiting sequence has no blocks.
 */
import assert from 'node:assert/strict';
import { TokenList } from '../base/token_list.ts';
import { KeyChain, numPrefillBlocks, type AnchoredHash, type Digest } from '../kv/block_key.ts';
import { blocksOutsideWindow } from '../kv/kv_spec.ts';
import { Pooling, type SampleGroupMessage } from '../protocol/messages.ts';
import type { Request } from '../protocol/request.ts';
import { Cursor } from './cursor.ts';
import { FetchedBlocks, type IncomingSpec } from './fetched_blocks.ts';
import { SequenceTimes } from './sequence_times.ts';
import type { TokenConstraint } from './token_constraint.ts';

/** A sequence to compute: its tokens, block chain, sampling request and kind. */
export interface SequenceRequest {
  readonly id: number;
  readonly kind: 'prefill' | 'decode' | 'embed';
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
  /** How the hidden states of an `embed` sequence are pooled; the last one by default. */
  readonly pooling?: Pooling | undefined;
  /** Present for one of several samples of a prompt; see sample_groups.ts. */
  readonly group?: SampleGroupMessage | undefined;
}

/** State of a sequence in the engine, with what belongs to the state. */
export type SequenceState =
  | { readonly kind: 'waiting' }
  /** Device blocks are taken; fetched ones are being put in. */
  | { readonly kind: 'loading'; readonly blocks: number[]; readonly fetched: FetchedBlocks }
  /**
   * `fetched`: blocks that arrived behind a block that is computed here. `firstHeld`: index of the first block that the sequence still
   * references.
   */
  | {
      readonly kind: 'running';
      readonly blocks: number[];
      readonly fetched: FetchedBlocks;
      readonly firstHeld: number;
    }
  /** The sequence is forgotten, but submitted steps touch `blocks`; the blocks are released when these steps have returned. */
  | { readonly kind: 'ended'; readonly blocks: readonly number[] };

const NO_ROWS = { start: 0, end: 0 };

/** One sequence in the engine: token ids, block chain, cursor and state. */
export class Sequence {
  readonly request: SequenceRequest;
  readonly tokens: TokenList;
  readonly chain: KeyChain;
  readonly cursor = new Cursor();
  readonly times: SequenceTimes;
  /** Undefined when every token may be sampled. */
  readonly constraint: TokenConstraint | undefined;
  readonly #spec: IncomingSpec;
  #state: SequenceState = { kind: 'waiting' };
  /** No fetch brings blocks any more. */
  #isFetched: boolean;
  /** The first token of the prompt whose log-probability is still to be reported. */
  #promptNext: number;
  /** The number of the last step that it was part of. */
  lastStep = 0;

  constructor(request: SequenceRequest, spec: IncomingSpec, nowMs: number, constraint?: TokenConstraint) {
    this.request = request;
    this.constraint = constraint;
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

  /** Device blocks that the sequence references. */
  get heldBlocks(): readonly number[] {
    return this.#state.kind === 'running' ? this.#state.blocks.slice(this.#state.firstHeld) : this.blocks;
  }

  /** Hashes of the blocks that the sequence released because no row sees them any more. */
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

  /** Whether it has the tokens of `leader`, no more and no fewer, and the same block chain. */
  hasTokensOf(leader: Sequence): boolean {
    const { tokens, chain, request } = leader;
    if (this.tokens.length !== tokens.length || leader.cursor.pending > 0 || this.request.root !== request.root)
      return false;
    const from = numPrefillBlocks(tokens.length, this.#spec.blockSize) * this.#spec.blockSize;
    const [own, others] = [this.tokens.range(from, tokens.length), tokens.range(from, tokens.length)];
    return (
      this.chain.hashes.at(-1)?.digest === chain.hashes.at(-1)?.digest && own.every((token, i) => token === others[i])
    );
  }

  /**
   * Starts a waiting sequence behind the prompt that it shares with `leader`, whose step computes the prompt's last row. The caller
   * has referenced the leader's full blocks for it. `copy` is its copy of the block that the prompt fills in part; undefined: the
   * prompt fills its blocks.
   */
  forkFrom(leader: Sequence, copy: number | undefined): void {
    const { state } = leader;
    assert(this.#state.kind === 'waiting' && state.kind === 'running', 'a waiting sequence starts from a running one');
    const { firstHeld } = state;
    const numFull = Math.floor(this.tokens.length / this.#spec.blockSize);
    const blocks = [...state.blocks.slice(0, numFull), ...(copy === undefined ? [] : [copy])];
    // No row reads the entries of passed blocks; they name a block that this sequence holds.
    blocks.fill(blocks[firstHeld]!, 0, firstHeld);
    this.cursor.startAt(this.tokens.length);
    this.#state = { kind: 'running', blocks, fetched: new FetchedBlocks(this.#spec), firstHeld };
  }

  /**
   * Ends loading, because no more blocks arrive. Blocks that lack only frames which no remaining row sees count as present. These
   * blocks get no key: another sequence with the same prefix would see the missing frames.
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

  /** Returns the sequence to waiting, without device blocks. @returns the blocks that it held, to be released */
  preempt(): readonly number[] {
    const held = this.heldBlocks;
    this.#state = { kind: 'waiting' };
    this.cursor.startAt(0);
    return held;
  }

  /**
   * Ends the sequence. Blocks that a step may still touch are kept until {@link releaseEnded}. @returns the blocks to release now
   */
  end(): readonly number[] {
    const held = this.heldBlocks;
    const { isTouching } = this.cursor;
    this.#state = { kind: 'ended', blocks: isTouching ? held : [] };
    return isTouching ? [] : held;
  }

  /** Returns the blocks of an ended sequence once no step touches them any more; empty before, and the second time. */
  releaseEnded(): readonly number[] {
    if (this.#state.kind !== 'ended' || this.cursor.isTouching) return [];
    const { blocks } = this.#state;
    this.#state = { kind: 'ended', blocks: [] };
    return blocks;
  }

  /**
   * Drops and returns the blocks that lie outside an attention window of `window` tokens for the next row, and so for every later one.
   * Their entries in the block table then name a block that is still held; no row reads these entries.
   */
  dropOutside(window: number): readonly number[] {
    if (this.#state.kind !== 'running') return [];
    const { blocks, fetched, firstHeld } = this.#state;
    const outside = blocksOutsideWindow(window, this.cursor.computed, this.#spec.blockSize);
    const end = Math.min(outside, blocks.length - 1);
    if (end <= firstHeld) return [];
    const kept = blocks.slice(end);
    // A submitted step may still read its block table, so a new one is made.
    const table = [...new Array<number>(end).fill(kept[0] ?? 0), ...kept];
    this.#state = { kind: 'running', blocks: table, fetched, firstHeld: end };
    return blocks.slice(firstHeld, end);
  }

  /** Number of tokens, with those that submitted steps sample. */
  get length(): number {
    return this.tokens.length + this.cursor.pending;
  }

  /** Whether a token is sampled from the row before `end`. */
  samplesAt(end: number): boolean {
    return this.request.kind === 'decode' && end === this.length;
  }

  /** Computing stops here: at the last full block before the tail for prefill, else at the list's end. */
  get target(): number {
    const { blockSize } = this.#spec;
    return this.request.kind === 'prefill' ? numPrefillBlocks(this.tokens.length, blockSize) * blockSize : this.length;
  }

  /** Rows that are still to be computed; 0 unless it runs. */
  get remaining(): number {
    return this.#state.kind === 'running' ? this.target - this.cursor.submitted : 0;
  }

  /** Position up to which one step may compute: the target, or the next fetched block, which is not computed again. */
  get nextStop(): number {
    let stop = this.target;
    if (this.#state.kind !== 'running') return stop;
    for (const index of this.#state.fetched.whole) stop = Math.min(stop, index * this.#spec.blockSize);
    return stop;
  }

  /** Moves the cursor past the fetched blocks that come next. */
  passFetched(): void {
    const { state, cursor } = this;
    if (state.kind !== 'loading' && state.kind !== 'running') return;
    const { blockSize } = this.#spec;
    while (state.fetched.acquire(cursor.submitted / blockSize)) cursor.skip(blockSize);
  }

  /**
   * Whether log-probabilities of prompt tokens are still to be reported, for which rows need logits besides the one that a token is
   * sampled from.
   */
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

  /**
   * Number of leading blocks that may be hit or fetched: never the tail, whose last row must be computed for its logits or its hidden
   * state, nor blocks with rows whose log-probabilities or hidden states are requested.
   */
  get hittableBlocks(): number {
    const { blockSize } = this.#spec;
    if (this.request.kind === 'embed' && this.request.pooling === Pooling.MEAN) return 0;
    const numBlocks = numPrefillBlocks(this.tokens.length, blockSize);
    return this.isReadingPrompt ? Math.min(numBlocks, Math.floor((this.#promptNext - 1) / blockSize)) : numBlocks;
  }
}
