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
import { KeyChain, numPrefillBlocks, type AnchoredHash } from '../kv/block_key.ts';
import { blocksOutsideWindow } from '../kv/kv_spec.ts';
import { Pooling } from '../protocol/messages.ts';
import { AwaitedRanges, type BlockRange } from './awaited_ranges.ts';
import { Cursor } from './cursor.ts';
import type { Restore } from './engine_events.ts';
import { FetchedBlocks, type IncomingSpec } from './fetched_blocks.ts';
import type { SequenceRequest } from './sequence_request.ts';
import { SequenceTimes } from './sequence_times.ts';
import type { TokenConstraint } from './token_constraint.ts';

/** State of a sequence in the engine, with what belongs to the state. */
export type SequenceState =
  | { readonly kind: 'waiting' }
  /** Device blocks are taken; fetched ones are being put in. A prefill in a pipeline loads and runs by turns. */
  | { readonly kind: 'loading'; readonly blocks: number[]; readonly fetched: FetchedBlocks }
  /**
   * `fetched`: blocks that arrived after a block that is computed here. `firstHeld`: index of the first block that the sequence still
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

/** Returns the most blocks, at most `most`, at whose end a recurrent state is held; 0: none. */
export type StateAt = (hashes: readonly AnchoredHash[], most: number) => number;

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
  /** Ranges of a pipeline that are still fetched. */
  readonly awaited: AwaitedRanges;
  /** Blocks [0, restoreEnd) were complete when the sequence was preempted, and are asked for when it is admitted again. */
  #restoreEnd = 0;
  /** Leading blocks that were hit when it was admitted, those without a state at their end included. */
  #numPresent = 0;
  #numAdmissions = 0;
  /** The first token of the prompt whose log-probability is still to be reported. */
  #promptNext: number;
  /** The number of the last step that it was part of. */
  lastStep = 0;

  constructor(request: SequenceRequest, spec: IncomingSpec, nowMs: number, constraint?: TokenConstraint) {
    this.request = request;
    this.constraint = constraint;
    this.tokens = new TokenList(request.tokens);
    const { root, hashes, keyBits, tenant } = request;
    this.chain = new KeyChain(root, spec.blockSize, hashes, keyBits, tenant);
    this.chain.extend(this.tokens.view());
    this.times = new SequenceTimes(nowMs);
    this.#spec = spec;
    this.#isFetched = !request.isFetching;
    this.awaited = new AwaitedRanges((request.isFetching && !spec.state && request.awaited) || []);
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

  /**
   * Takes device blocks: the first `numHits` are hits. With recurrent state, blocks up to `numPresent` were found too, but are of use only
   * once a fetch brings the state.
   */
  admit(blocks: number[], numHits: number, numPresent = numHits): void {
    assert(this.#state.kind === 'waiting', 'a sequence is admitted that waits');
    const fetched = new FetchedBlocks(this.#spec);
    for (let index = numHits; index < numPresent; index++) fetched.addPresent(index);
    this.#numPresent = numPresent;
    this.cursor.startAt(numHits * this.#spec.blockSize);
    this.#numAdmissions++;
    const isLoading = this.isPipelined ? this.awaited.has(numHits) : this.mayLoad(numHits);
    this.#state = isLoading ? { kind: 'loading', blocks, fetched } : { kind: 'running', blocks, fetched, firstHeld: 0 };
  }

  /** Whether it will load blocks when it is admitted with `numHits` hit ones. */
  mayLoad(numHits: number): boolean {
    return !this.#isFetched || numHits < this.#restoreEnd;
  }

  /** Whether it computes some ranges of blocks while other ranges are fetched. */
  get isPipelined(): boolean {
    return !this.#isFetched && this.request.awaited !== undefined && !this.#spec.state;
  }

  /** In a pipeline: loads while the next block is computed elsewhere, and runs while it is computed here. */
  #turn(): void {
    const { state } = this;
    if (!this.isPipelined || (state.kind !== 'loading' && state.kind !== 'running')) return;
    const { blocks, fetched } = state;
    const isLoading = this.awaited.has(Math.floor(this.cursor.submitted / this.#spec.blockSize));
    if (isLoading === (state.kind === 'loading')) return;
    this.#state = isLoading ? { kind: 'loading', blocks, fetched } : { kind: 'running', blocks, fetched, firstHeld: 0 };
  }

  /** Whether fetched blocks are copied into its device blocks now. */
  get takesBlocks(): boolean {
    return this.#state.kind === 'loading' || (this.#state.kind === 'running' && !this.awaited.isEmpty);
  }

  /** In a pipeline: no more of the blocks in `range` arrive. Those that are missing are computed here. */
  arrived(range: BlockRange): void {
    this.awaited.arrived(range);
    this.#turn();
  }

  /** Blocks that are to come back from host memory; undefined unless the sequence waits for them. */
  get restore(): Restore | undefined {
    if (this.#state.kind !== 'loading' || !this.#isFetched) return undefined;
    const from = this.cursor.submitted / this.#spec.blockSize;
    return { admission: this.#numAdmissions, from, hashes: this.chain.hashes.slice(0, this.#restoreEnd) };
  }

  /**
   * Starts a waiting sequence after the prompt that it shares with `leader`, whose step computes the prompt's last row. The caller
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
   * blocks get no key: another sequence with the same prefix would see the missing frames. `admission`: only if that is the last one.
   * `stateAt`, for a model with recurrent state: it begins where a state is, and returns the indices of the blocks after it that came
   * whole.
   */
  run(admission = this.#numAdmissions, stateAt?: StateAt): readonly number[] {
    if (admission !== this.#numAdmissions) return [];
    this.#isFetched = true;
    this.awaited.clear();
    if (this.#state.kind !== 'loading') return [];
    this.#restoreEnd = 0;
    const { blocks, fetched } = this.#state;
    const { blockSize } = this.#spec;
    const first = this.cursor.submitted / blockSize;
    const end = fetched.beginEnd(first, this.hittableBlocks, stateAt && ((most) => stateAt(this.chain.hashes, most)));
    for (let index = first; index < end; index++) {
      if (!fetched.acquire(index)) this.times.fetched(fetched.originOf(index), blockSize);
      this.cursor.skip(blockSize);
    }
    if (stateAt) return this.#runWithState(blocks, fetched, first, end);
    this.#state = { kind: 'running', blocks, fetched, firstHeld: 0 };
    this.passFetched();
    return [];
  }

  /**
   * Runs from the cursor on, where a recurrent state is: whole blocks after it are computed again. Returns the indices of those, which
   * have names and are not written again (K3).
   */
  #runWithState(blocks: number[], fetched: FetchedBlocks, first: number, end: number): readonly number[] {
    const named = [...fetched.whole].sort((a, b) => a - b);
    const { blockSize } = this.#spec;
    const numHit = Math.max(first, Math.min(end, this.#numPresent));
    this.times.clearFetched();
    for (let index = numHit; index < end; index++) this.times.fetched(fetched.originOf(index), blockSize);
    this.times.cached(numHit * blockSize);
    this.#state = { kind: 'running', blocks, fetched: new FetchedBlocks(this.#spec), firstHeld: 0 };
    return named;
  }

  /**
   * Puts a fresh device block in the place of the one at `index`, which was released. Without one the blocks from there on are dropped.
   * @returns those after it then, to be released
   */
  renewBlock(index: number, block: number | undefined): readonly number[] {
    assert(this.#state.kind === 'running', 'a running sequence has blocks of its own');
    if (block === undefined) return this.#state.blocks.splice(index).slice(1);
    this.#state.blocks[index] = block;
    return [];
  }

  /** Number of blocks that are complete and may come back from host memory after a preemption. */
  get restorableBlocks(): number {
    const numComplete = this.#state.kind === 'running' ? Math.floor(this.cursor.computed / this.#spec.blockSize) : 0;
    return Math.min(this.hittableBlocks, Math.max(this.#restoreEnd, numComplete));
  }

  /**
   * Returns the sequence to waiting, without device blocks. `isRestored`: its blocks, at most the first `mostRestored`, come back from
   * host memory where they can. One in a pipeline leaves it, because blocks that have arrived do not come again: all that is missing is computed here.
   * @returns the blocks that it held, to be released
   */
  preempt(isRestored: boolean, mostRestored = Infinity): readonly number[] {
    const held = this.heldBlocks;
    this.#restoreEnd = isRestored ? Math.min(this.restorableBlocks, mostRestored) : 0;
    this.#isFetched ||= this.isPipelined;
    this.awaited.clear();
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

  /** Whether a fetch still brings blocks. */
  get isFetching(): boolean {
    return !this.#isFetched;
  }

  /**
   * Rows that are to be computed here: those after the blocks that are present or have a source. Hits of a waiting sequence are not known.
   */
  get rowsHere(): number {
    const { fetchEnd = this.hittableBlocks } = this.request;
    if (this.isPipelined) return this.target - this.cursor.submitted - this.awaitedRows;
    const arriving =
      (this.#isFetched ? this.#restoreEnd : Math.min(fetchEnd, this.hittableBlocks)) * this.#spec.blockSize;
    return this.target - Math.max(this.cursor.submitted, arriving);
  }

  /** Rows after the cursor that other instances compute in a pipeline with this one. */
  get awaitedRows(): number {
    const { blockSize } = this.#spec;
    return this.awaited.numFrom(Math.ceil(this.cursor.submitted / blockSize)) * blockSize;
  }

  /** Position up to which one step may compute: the target, or the next block that is fetched, which is not computed again. */
  get nextStop(): number {
    const { blockSize } = this.#spec;
    let stop = Math.min(this.target, this.awaited.next(Math.floor(this.cursor.submitted / blockSize)) * blockSize);
    if (this.#state.kind !== 'running') return stop;
    for (const index of this.#state.fetched.whole) stop = Math.min(stop, index * blockSize);
    return stop;
  }

  /** Moves the cursor past the fetched blocks that come next. */
  passFetched(): void {
    const { state, cursor } = this;
    // Where there is recurrent state, blocks count only once the state at their end is known (`run`).
    if (this.#spec.state || (state.kind !== 'loading' && state.kind !== 'running')) return;
    const { blockSize } = this.#spec;
    while (state.fetched.acquire(cursor.submitted / blockSize)) cursor.skip(blockSize);
    this.#turn();
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
