/**
 * Names of blocks. Find by key, trust by digest.
 *
 *   key     64 bits   XXH64(parent key ‖ token ids), for indexes and events
 *   digest 128 bits   SHA-256 chain over format, scope and all tokens so far, compared before a block is used (K2)
 *
 * Both chains are derived from token ids alone, so router and instances agree without talking; token ids enter as u32
 * little-endian.
 */
import { hash } from 'node:crypto';
import type { Clock } from '../base/clock.ts';
import { xxh64 } from '../base/xxh64.ts';

declare const brand: unique symbol;
/** 64 bits that name a block in indexes and events. Keys may collide, so a block is used only when its digest matches. */
export type BlockKey = bigint & { readonly [brand]: 'BlockKey' };
/** 128 bits as 32 hex digits. */
export type Digest = string & { readonly [brand]: 'Digest' };

/** Names of a block in its chain: its own key, the key of the block before, and the digest over all tokens up to its end. */
export interface BlockHash {
  readonly key: BlockKey;
  readonly parent: BlockKey;
  readonly digest: Digest;
}

/** A hash in its chain: blocks of one anchor share a home store, so that a run stays together. */
export interface AnchoredHash extends BlockHash {
  /** The key at the last multiple of {@link ANCHOR_BLOCKS}. */
  readonly anchor: BlockKey;
}

/** Runs of this many blocks have one home store: long enough for one fetch stream, short enough to spread a long prompt. */
const ANCHOR_BLOCKS = 64;
/** Blocks that are hashed between two turns of the thread's other work: some tenths of a millisecond. */
const SLICE_BLOCKS = 64;
const KEY_BYTES = 8;
const DIGEST_BYTES = 16;

/** Bits of a key. The simulation narrows them, so that keys collide all the time; answers must stay the same. */
const KEY_BITS = 64;

/** Full blocks that are worth fetching or computing elsewhere for `numTokens`: the tail of 1 to blockSize tokens stays. */
export function numPrefillBlocks(numTokens: number, blockSize: number): number {
  return Math.max(0, Math.floor((numTokens - 1) / blockSize));
}

/** The key that a chain of this root starts from. */
function rootKey(digest: Digest): BlockKey {
  return xxh64(Buffer.from(digest, 'hex')) as BlockKey;
}

/** The chain of one token list, extended as the list grows. */
export class KeyChain {
  readonly hashes: AnchoredHash[];
  readonly #root: Digest;
  readonly #blockSize: number;
  readonly #keyMask: bigint;

  /** `hashes`: those of its first blocks, where they are known; `keyBits`: bits of a key. */
  constructor(root: Digest, blockSize: number, hashes: readonly AnchoredHash[] = [], keyBits = KEY_BITS) {
    this.#root = root;
    this.#blockSize = blockSize;
    this.#keyMask = (1n << BigInt(keyBits)) - 1n;
    this.hashes = [...hashes];
  }

  /**
   * Hashes of the full blocks before the tail of `tokens`, derived a part at a time: 128k tokens take some ten milliseconds of a
   * thread that others wait for.
   */
  async prefillHashes(tokens: ArrayLike<number>, clock: Clock): Promise<readonly AnchoredHash[]> {
    const numBlocks = numPrefillBlocks(tokens.length, this.#blockSize);
    while (this.hashes.length < numBlocks) {
      this.extend(tokens, Math.min(numBlocks, this.hashes.length + SLICE_BLOCKS));
      if (this.hashes.length < numBlocks) await clock.turn();
    }
    return this.hashes.slice(0, numBlocks);
  }

  /** Adds hashes until every full block of `tokens` has one, or `maxBlocks` have. Tokens already covered must not change (K3). */
  extend(tokens: ArrayLike<number>, maxBlocks = Infinity): readonly AnchoredHash[] {
    const numBlocks = Math.min(maxBlocks, Math.floor(tokens.length / this.#blockSize));
    if (numBlocks <= this.hashes.length) return this.hashes;
    const keyed = Buffer.alloc(KEY_BYTES + this.#blockSize * 4);
    const digested = Buffer.alloc(DIGEST_BYTES + this.#blockSize * 4);
    const ids = new Uint32Array(keyed.buffer, keyed.byteOffset + KEY_BYTES, this.#blockSize);
    for (let block = this.hashes.length; block < numBlocks; block++) {
      const before = this.hashes[block - 1];
      const parent = before?.key ?? rootKey(this.#root);
      const first = block * this.#blockSize;
      for (let i = 0; i < ids.length; i++) ids[i] = tokens[first + i] ?? 0;
      keyed.writeBigUInt64LE(parent);
      // The parent's digest goes over its key.
      digested.set(keyed, DIGEST_BYTES - KEY_BYTES);
      digested.write(before?.digest ?? this.#root, 'hex');
      const digest = hash('sha256', digested).slice(0, 2 * DIGEST_BYTES) as Digest;
      const key = (xxh64(keyed) & this.#keyMask) as BlockKey;
      const anchor = block % ANCHOR_BLOCKS === 0 ? key : (before?.anchor ?? key);
      this.hashes.push({ key, parent, digest, anchor });
    }
    return this.hashes;
  }
}

/**
 * Returns the hashes of the first full blocks of `tokens`, at most `maxBlocks`. `root` is the digest that the chain starts from
 * (chainRoot in format.ts).
 */
export function chainOf(
  root: Digest,
  blockSize: number,
  tokens: ArrayLike<number>,
  maxBlocks?: number,
  keyBits?: number,
): readonly AnchoredHash[] {
  return new KeyChain(root, blockSize, [], keyBits).extend(tokens, maxBlocks);
}
