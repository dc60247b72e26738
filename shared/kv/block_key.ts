/**
 * Names of blocks: the key finds a block, the digest decides whether it is the right one.
 *
 *   key     64 bits   XXH64(parent key ‖ token ids), for indexes and events
 *   digest 128 bits   SHA-256 chain over format, scope and all tokens so far, compared before a block is used (K2)
 *
 * Both chains depend only on format, scope and token ids, so router and instances derive the same ones without communication.
 * Token ids are hashed as u32, little-endian.
 */
import { hash } from 'node:crypto';
import type { Clock } from '../base/clock.ts';
import { xxh64 } from '../base/xxh64.ts';

declare const brand: unique symbol;
/** 64 bits that name a block in indexes and events. Keys may collide, so a block is used only when its digest matches. */
export type BlockKey = bigint & { readonly [brand]: 'BlockKey' };
/** 128 bits as 32 hex digits. */
export type Digest = string & { readonly [brand]: 'Digest' };

/** 128 bits of SHA-256 of a tenant's name, as 32 hex digits; {@link SHARED} stands for all who share their blocks. */
export type TenantId = string & { readonly [brand]: 'TenantId' };
/** Tenant of blocks that are shared: zeros. */
export const SHARED = '0'.repeat(32) as TenantId;

/** Returns the id of the tenant of this name; {@link SHARED} for the empty name. */
export function tenantIdOf(name: string): TenantId {
  return name === '' ? SHARED : (hash('sha256', name).slice(0, 32) as TenantId);
}

/**
 * Names of a block in its chain: its own key, the key of the block before, and the digest over all tokens up to its end. The recurrent
 * state at the end of a block has names of its own (`stateHashOf` in record.ts).
 */
export interface BlockHash {
  readonly key: BlockKey;
  readonly parent: BlockKey;
  readonly digest: Digest;
  /** Present where the hash names a state; absent where it names a block, and where the holder of the record has to find out. */
  readonly kind?: 'state';
  /**
   * The tenant whose block it is. Absent for a block that is shared, and where the holder of the record has to find out. The digest depends
   * on the tenant, so blocks with one digest have one tenant.
   */
  readonly tenant?: TenantId;
}

/** Hash of a block with its anchor. Blocks with one anchor have the same home store, so that a run of blocks stays together. */
export interface AnchoredHash extends BlockHash {
  /** Key of the block at the last index that is a multiple of {@link ANCHOR_BLOCKS}, this block included. */
  readonly anchor: BlockKey;
}

/** Runs of this many blocks have one home store: long enough for one fetch stream, short enough to spread a long prompt. */
const ANCHOR_BLOCKS = 64;
/** Blocks hashed before the thread yields to its other work; they take some tenths of a millisecond. */
const SLICE_BLOCKS = 64;
const KEY_BYTES = 8;
const DIGEST_BYTES = 16;

/** Bits of a key. The simulation uses fewer, so that keys collide often and must not change any answer. */
const KEY_BITS = 64;

/**
 * Number of full blocks before the tail of `numTokens` tokens. The tail of 1 to blockSize tokens is always computed locally, because
 * its last row yields the logits.
 */
export function numPrefillBlocks(numTokens: number, blockSize: number): number {
  return Math.max(0, Math.floor((numTokens - 1) / blockSize));
}

/** Returns the parent key of the first block of a chain. */
function rootKey(digest: Digest): BlockKey {
  return xxh64(Buffer.from(digest, 'hex')) as BlockKey;
}

/** The chain of one token list, extended as the list grows. */
export class KeyChain {
  readonly hashes: AnchoredHash[];
  readonly #root: Digest;
  readonly #blockSize: number;
  readonly #keyMask: bigint;
  readonly #tenant: { readonly tenant?: TenantId };

  /**
   * `hashes` are the known hashes of the first blocks; `keyBits` is the number of bits of a key; `tenant` is that of the scope from which
   * `root` was made, where records are made of the blocks.
   */
  constructor(
    root: Digest,
    blockSize: number,
    hashes: readonly AnchoredHash[] = [],
    keyBits = KEY_BITS,
    tenant = SHARED,
  ) {
    this.#root = root;
    this.#tenant = tenant === SHARED ? {} : { tenant };
    this.#blockSize = blockSize;
    this.#keyMask = (1n << BigInt(keyBits)) - 1n;
    this.hashes = [...hashes];
  }

  /**
   * Returns the hashes of the full blocks before the tail of `tokens`. Yields to the thread between slices: hashing 128k tokens takes
   * some ten milliseconds.
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
      // The parent's digest overwrites its key.
      digested.set(keyed, DIGEST_BYTES - KEY_BYTES);
      digested.write(before?.digest ?? this.#root, 'hex');
      const digest = hash('sha256', digested).slice(0, 2 * DIGEST_BYTES) as Digest;
      const key = (xxh64(keyed) & this.#keyMask) as BlockKey;
      const anchor = block % ANCHOR_BLOCKS === 0 ? key : (before?.anchor ?? key);
      this.hashes.push({ key, parent, digest, anchor, ...this.#tenant });
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
