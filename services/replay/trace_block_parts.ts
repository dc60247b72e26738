/**
 * Blocks of a trace as runs of the engine's smaller blocks. A trace names 512 tokens, say, and an engine has blocks of 128: its block is a
 * part of the trace's, and the trace's block is there while all of its parts are.
 *
 *   key of a part = number of the trace's block × parts + index of the part
 */
import type { AnchoredHash, BlockKey } from '../../shared/kv/block_key.ts';
import type { TraceHash } from './trace_hashes.ts';

/** Bound of part keys: 31-bit block numbers × at most 2 ** 11 parts. A random 64-bit hash falls below it once in 2 ** 21. */
const MOST_KEY = 2n ** 43n;
/**
 * Tokens of a block of an engine, four blocks of a cluster: with 32, a run takes half as long again for the same figures. A decode instance
 * computes up to so many tokens of each prompt itself.
 */
const BLOCK_TOKENS = 128;

/** Returns the tokens of an engine's block: BLOCK_TOKENS, or those of the trace's block where that is no multiple. */
export function engineBlockTokens(traceBlockTokens: number): number {
  return traceBlockTokens % BLOCK_TOKENS === 0 ? BLOCK_TOKENS : traceBlockTokens;
}

/** Returns the hashes of the parts of `blocks`, in order. */
export function partsOf(blocks: readonly TraceHash[], numParts: number): AnchoredHash[] {
  const hashes: AnchoredHash[] = [];
  for (const { id, digest } of blocks) {
    for (let part = 0; part < numParts; part++) {
      const key = BigInt(id * numParts + part) as BlockKey;
      hashes.push({ key, parent: key, anchor: key, digest });
    }
  }
  return hashes;
}

/** Number of parts that an instance's device holds of each block of the trace; bounded by its device blocks. */
export class TraceBlockParts {
  readonly #numParts: number;
  readonly #numHeld = new Map<number, number>();

  constructor(numParts: number) {
    this.#numParts = numParts;
  }

  /** Whether all parts of the block are held. */
  has({ id }: TraceHash): boolean {
    return this.#numHeld.get(id) === this.#numParts;
  }

  /** A block of the engine was stored. Returns the number of the trace's block that is complete by it. */
  stored(key: BlockKey): number | undefined {
    const id = this.#idOf(key);
    if (id === undefined) return undefined;
    const numHeld = (this.#numHeld.get(id) ?? 0) + 1;
    this.#numHeld.set(id, numHeld);
    return numHeld === this.#numParts ? id : undefined;
  }

  /** A block of the engine was removed. Returns the number of the trace's block that was complete before. */
  removed(key: BlockKey): number | undefined {
    const id = this.#idOf(key);
    const numHeld = id === undefined ? undefined : this.#numHeld.get(id);
    if (id === undefined || numHeld === undefined) return undefined;
    if (numHeld > 1) this.#numHeld.set(id, numHeld - 1);
    else this.#numHeld.delete(id);
    return numHeld === this.#numParts ? id : undefined;
  }

  /** Returns undefined for a block that the trace does not name, whose key is a hash of 64 bits. */
  #idOf(key: BlockKey): number | undefined {
    return key < MOST_KEY ? Math.floor(Number(key) / this.#numParts) : undefined;
  }
}
