/**
 * A sequence: a list of token ids and a count of computed ones. The token ids are the truth; blocks are a cache of them.
 *
 *   waiting ──admit──► loading ──proceed──► running ──► (finished, cancelled: forgotten)
 *      ▲                  │                    │
 *      └─────preempt──────┴────────────────────┘      the blocks go back to the pool, the token ids stay
 *
 * A prefill sequence computes the full blocks before its tail and samples nothing; a decode sequence computes what is left
 * and samples until it stops.
 */
import { blocksOutsideWindow } from '../kv/kv_spec.ts';
import { KeyChain, numPrefillBlocks, type AnchoredHash, type Digest } from '../kv/block_key.ts';
import type { SamplingParams } from './sampler.ts';

export interface SequenceRequest {
  readonly id: number;
  readonly kind: 'prefill' | 'decode';
  /** Where its block chain starts: the engine's format and the request's scope. */
  readonly root: Digest;
  readonly tokens: readonly number[];
  /** Of its first full blocks, as whoever submits it has derived them; the sequence derives the rest as it comes. */
  readonly hashes: readonly AnchoredHash[];
  /** Tokens from here on are output: penalties and limits count them. */
  readonly promptLength: number;
  /** The list never grows beyond this; at least tokens.length. */
  readonly maxLength: number;
  readonly stopTokenIds: readonly number[];
  readonly sampling: SamplingParams;
  /** Blocks are on their way: wait for `proceed` before computing. */
  readonly isFetching: boolean;
  /** Log-probabilities of the prompt's tokens from position `from` on (at least 1), with so many alternatives. */
  readonly promptLogprobs?: { readonly numTop: number; readonly from: number };
}

export type Phase =
  | { readonly kind: 'waiting' }
  /** Device blocks taken; fetched ones are being put in. */
  | { readonly kind: 'loading'; readonly blocks: number[] }
  | { readonly kind: 'running'; readonly blocks: number[] };

export class Sequence {
  readonly request: SequenceRequest;
  readonly tokens: number[];
  readonly chain: KeyChain;
  phase: Phase = { kind: 'waiting' };
  /** Tokens [0, numComputed) have their KV in the blocks. */
  numComputed = 0;
  /** Tokens [numComputed, numSubmitted) have it when the steps that the device was given are done. */
  numSubmitted = 0;
  /** Tokens that those steps draw: they come behind `tokens`. */
  numPending = 0;
  /** Steps that touch its blocks and have not returned. */
  numInFlight = 0;
  /** The device computes a part of its first step, which is not counted among them. */
  isBeginning = false;
  /** Of the last step that it was part of. */
  lastStep = 0;
  /** Blocks before this one are not its own any more: no layer sees them. */
  firstHeld = 0;
  /** What it held when it ended; given back when no step touches them any more. */
  retired: readonly number[] = [];
  /** Rows from there on that the next step computes. */
  numPlanned = 0;
  isFetching: boolean;
  /** Blocks that were put in beyond `numComputed`: a block before them was evicted meanwhile and is computed. */
  readonly delivered = new Set<number>();
  /** Of blocks that come frame by frame and are not whole: which are in, bit f for frame f. */
  readonly framesIn = new Map<number, number>();
  /** Where the tokens' KV came from: hit at the first admission, fetched, run here. */
  numCached = 0;
  numFetched = 0;
  /** Rows run before the first token, those run again after a preemption too. */
  numRun = 0;
  /** The first token of the prompt whose log-probability is still to be told. */
  promptNext: number;
  readonly submittedMs: number;
  admittedMs: number | undefined;
  readyMs: number | undefined;

  constructor(request: SequenceRequest, blockSize: number, nowMs: number) {
    this.request = request;
    this.tokens = [...request.tokens];
    this.chain = new KeyChain(request.root, blockSize, request.hashes);
    this.chain.extend(this.tokens);
    this.isFetching = request.isFetching;
    this.submittedMs = nowMs;
    this.promptNext = request.promptLogprobs?.from ?? request.promptLength;
  }

  get blocks(): readonly number[] {
    return this.phase.kind === 'waiting' ? [] : this.phase.blocks;
  }

  /** Those that it has a reference of. */
  get heldBlocks(): readonly number[] {
    return this.blocks.slice(this.firstHeld);
  }

  /**
   * Blocks whose last token the row after `numComputed`, and so every later one, does not see through a window of so many tokens. In
   * their place the table has one that it still holds: nobody reads it there.
   */
  letGo(window: number, blockSize: number): number[] {
    if (this.phase.kind !== 'running') return [];
    const { blocks } = this.phase;
    const end = Math.min(blocksOutsideWindow(window, this.numComputed, blockSize), blocks.length - 1);
    if (end <= this.firstHeld) return [];
    const gone = blocks.slice(this.firstHeld, end);
    const stays = blocks.slice(end);
    // A step that the device has may still read the table that it was given.
    this.phase = { kind: 'running', blocks: [...new Array<number>(end).fill(stays[0] ?? 0), ...stays] };
    this.firstHeld = end;
    return gone;
  }

  /** Tokens that are there, or on their way. */
  get length(): number {
    return this.tokens.length + this.numPending;
  }

  /** A token is drawn from the row before `end`. */
  drawsAt(end: number): boolean {
    return this.request.kind === 'decode' && end === this.length;
  }

  /** Computing stops here: at the last full block before the tail for prefill, at the list's end for decode. */
  target(blockSize: number): number {
    return this.request.kind === 'prefill' ? numPrefillBlocks(this.tokens.length, blockSize) * blockSize : this.length;
  }

  /** Computing may go on up to here in one go: what was delivered behind it is not computed again. */
  nextStop(blockSize: number): number {
    let stop = this.target(blockSize);
    for (const index of this.delivered) stop = Math.min(stop, index * blockSize);
    return stop;
  }

  /** Counts the delivered blocks that come next. */
  passDelivered(blockSize: number): void {
    while (this.delivered.delete(this.numSubmitted / blockSize)) this.numSubmitted += blockSize;
    if (this.numInFlight === 0) this.numComputed = this.numSubmitted;
  }

  /**
   * Frames that every block has which is to come before the tail, or that nobody sees there; Infinity when that is all. `windows`: of each
   * frame, tokens that its layers see, 0 for all.
   */
  numFramesIn(blockSize: number, windows: readonly number[]): number {
    let fewest = Infinity;
    const end = this.hittableBlocks(blockSize);
    const unseen = unseenFrom(end, blockSize, windows);
    for (let index = this.numSubmitted / blockSize; index < end && fewest > 0; index++)
      if (!this.delivered.has(index)) fewest = Math.min(fewest, this.#firstMissing(index, unseen));
    return fewest;
  }

  /** The first frame of the block that is not in and is seen; `unseen`: by frame, how many of the first blocks are not. */
  #firstMissing(index: number, unseen: readonly number[]): number {
    const bits = this.framesIn.get(index) ?? 0;
    const missing = unseen.findIndex((count, frame) => (bits & (1 << frame)) === 0 && index >= count);
    return missing < 0 ? Infinity : missing;
  }

  /**
   * No more blocks come: those of which nothing is missing that a row sees which is still to be computed count as there. They have no name:
   * whatever else begins with the same tokens would see what is missing.
   */
  passUnseen(blockSize: number, windows: readonly number[]): void {
    const first = this.numSubmitted / blockSize;
    let end = this.hittableBlocks(blockSize);
    let unseen = unseenFrom(end, blockSize, windows);
    // Rows are computed from the first block on that is missing: they see more of those before it than later ones would.
    for (let index = end - 1; index >= first; index--) {
      if (this.delivered.has(index) || this.#firstMissing(index, unseen) === Infinity) continue;
      end = index;
      unseen = unseenFrom(end, blockSize, windows);
    }
    for (let index = first; index < end; index++) {
      if (!this.delivered.delete(index)) this.numFetched += blockSize;
      this.numSubmitted += blockSize;
    }
    this.passDelivered(blockSize);
  }

  /** Rows are to come whose logits are wanted, besides the one that a token is drawn from. */
  get isReadingPrompt(): boolean {
    return this.promptNext < this.request.promptLength;
  }

  /** Blocks that a hit may serve: never the tail, whose last row must be computed to be sampled, nor what has rows that are asked for. */
  hittableBlocks(blockSize: number): number {
    const numBlocks = numPrefillBlocks(this.tokens.length, blockSize);
    return this.isReadingPrompt ? Math.min(numBlocks, Math.floor((this.promptNext - 1) / blockSize)) : numBlocks;
  }
}

/** By frame, how many of the first blocks no row from block `end` on sees. */
function unseenFrom(end: number, blockSize: number, windows: readonly number[]): number[] {
  return windows.map((window) => blocksOutsideWindow(window, end * blockSize, blockSize));
}
