/**
 * Two rules by which a waiting sequence does not take device blocks yet, although there are some. They change when rows are computed,
 * never their values (E2).
 *
 *   1. A running sequence computes the waiting one's next missing block: it waits, and hits that block and those that follow it in both.
 *   2. Prompts that hold device blocks, and come before it in the queue's order, have more than ADMITTED_CHUNKS chunks of rows left:
 *      blocks of further prompts would only evict cached prefixes and preempt answers, long before their rows are computed.
 *
 * Neither waits for ever: the rows waited for are those of running prompts, which every step computes. When the other sequence passes
 * the block, ends or is preempted, the rules are applied anew.
 */
import { numPrefillBlocks, type BlockHash } from '../kv/block_key.ts';
import type { BlockPool } from './block_pool.ts';
import type { RecurrentStates } from './recurrent_states.ts';
import type { Sequence } from './sequence.ts';

/** Chunks of rows of prompts that hold device blocks: one that is computed, and another so that the next step is full too. */
const ADMITTED_CHUNKS = 2;

/** A running sequence that computes blocks which a waiting one needs: those up to `end`, in blocks. */
interface Awaited {
  readonly sequence: Sequence;
  readonly end: number;
}

/** Decides which waiting sequences may take device blocks. */
export class AdmissionRules {
  readonly #pool: BlockPool;
  readonly #states: RecurrentStates | undefined;
  readonly #blockSize: number;
  readonly #mostRows: number;
  /** Kept from pass to pass, because the blocks of a long prompt are many to look up. */
  readonly #awaited = new WeakMap<Sequence, Awaited>();
  #held: readonly Sequence[] = [];
  #rowsHeld = 0;
  #rowsRunning = 0;

  constructor(pool: BlockPool, blockSize: number, chunkTokens: number, states?: RecurrentStates) {
    this.#pool = pool;
    this.#states = states;
    this.#blockSize = blockSize;
    this.#mostRows = ADMITTED_CHUNKS * chunkTokens;
  }

  /** Begins a pass over the queue. `held` has the sequences that hold device blocks, also as further ones are admitted. */
  begin(held: readonly Sequence[]): void {
    this.#held = held;
    this.#rowsHeld = 0;
    this.#rowsRunning = 0;
  }

  /**
   * Adds the remaining rows of an admitted prompt that precedes, in queue order, the sequences asked about next. Generating sequences (one
   * row) are skipped.
   */
  passed(sequence: Sequence): void {
    const rows = sequence.rowsHere;
    if (rows <= 1) return;
    this.#rowsHeld += rows;
    if (sequence.state.kind === 'running') this.#rowsRunning += rows;
  }

  /** Whether the waiting sequence may take device blocks now. One that computes no more than a block here always may. */
  mayEnter(sequence: Sequence): boolean {
    if (sequence.rowsHere <= this.#blockSize) return true;
    // The row limit holds only while some prompt runs: prompts that only load must not block others.
    if (this.#rowsRunning > 0 && this.#rowsHeld > this.#mostRows) return false;
    return sequence.isFetching || !this.#isAwaiting(sequence);
  }

  /** Whether a running sequence computes the next block that the pool lacks. */
  #isAwaiting(sequence: Sequence): boolean {
    const awaited = this.#awaited.get(sequence);
    if (awaited && isComputing(awaited.sequence, awaited.end - 1, this.#blockSize)) return true;
    const found = this.#find(sequence);
    if (found) this.#awaited.set(sequence, found);
    else this.#awaited.delete(sequence);
    return found !== undefined;
  }

  #find({ chain, hittableBlocks }: Sequence): Awaited | undefined {
    const running = this.#held.filter(({ state }) => state.kind === 'running');
    if (running.length === 0) return undefined;
    let next = 0;
    while (next < hittableBlocks && this.#pool.find(chain.hashes[next]!) !== undefined) next++;
    if (next >= hittableBlocks) return undefined;
    const sequence = running.find(
      (one) => isSame(one.chain.hashes[next], chain.hashes[next]) && isComputing(one, next, this.#blockSize),
    );
    if (!sequence) return undefined;
    const most = Math.min(hittableBlocks, computedBlocks(sequence, this.#blockSize));
    const end = sharedEnd(sequence.chain.hashes, chain.hashes, next, most);
    this.#states?.share(sequence, end);
    return { sequence, end };
  }
}

/** Blocks of a sequence that are computed before any row that a token is sampled from. */
function computedBlocks({ tokens }: Sequence, blockSize: number): number {
  return numPrefillBlocks(tokens.length, blockSize);
}

/** Whether a running sequence still computes block `index`, without waiting for a token. */
function isComputing(sequence: Sequence, index: number, blockSize: number): boolean {
  const { state, cursor } = sequence;
  return (
    state.kind === 'running' && index < computedBlocks(sequence, blockSize) && cursor.computed < (index + 1) * blockSize
  );
}

function isSame(a: BlockHash | undefined, b: BlockHash | undefined): boolean {
  return a !== undefined && a.digest === b?.digest;
}

/** Returns the end of the blocks that both chains share, at most `most`; `start` is one of them. Digests include what comes before them. */
function sharedEnd(a: readonly BlockHash[], b: readonly BlockHash[], start: number, most: number): number {
  let [same, different] = [start, most];
  while (different - same > 1) {
    const middle = (same + different) >> 1;
    if (isSame(a[middle], b[middle])) same = middle;
    else different = middle;
  }
  return same + 1;
}
