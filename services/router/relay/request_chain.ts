/**
 * The block chain of one request, derived once and extended as the request generates: placement, relay and failover share it.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import type { BlockHash, Digest, KeyChain } from '../../../shared/kv/block_key.ts';
import { chainRoot, type CacheScope } from '../../../shared/kv/format.ts';
import { keyWords } from '../../../shared/protocol/packing.ts';
import type { ClusterModel } from '../../../shared/placement/members_view.ts';
import type { ChainCache } from './chain_cache.ts';

/** The full blocks before the tail. */
export interface FullBlocks {
  /** Block keys, two words each, the low word first. */
  readonly keys: Int32Array;
  readonly hashes: readonly BlockHash[];
  readonly lastDigest: Digest | undefined;
}

/** Result for a prompt without full blocks. */
export const NO_BLOCKS: FullBlocks = { keys: new Int32Array(0), hashes: [], lastDigest: undefined };

/** Block hashes of one request, computed once and extended as tokens are generated. A change of model format starts the chain again. */
export class RequestChain {
  readonly #clock: Clock;
  readonly #scope: CacheScope;
  #chain: { readonly digest: Digest; readonly root: Digest; readonly chain: KeyChain } | undefined;
  readonly #cache: ChainCache;
  #blocks = NO_BLOCKS;

  constructor(clock: Clock, scope: CacheScope, cache: ChainCache) {
    this.#cache = cache;
    this.#clock = clock;
    this.#scope = scope;
  }

  /** Digest that the chain starts from: names model and scope; undefined before the first call of {@link blocks}. */
  get root(): Digest | undefined {
    return this.#chain?.root;
  }

  /** Keys of the blocks that the last call of {@link blocks} returned. */
  get keys(): Int32Array {
    return this.#blocks.keys;
  }

  /** Returns the full blocks of `tokens` before the tail. Successive calls must pass lists that only grow. */
  async blocks({ digest, format }: ClusterModel, tokens: Uint32Array): Promise<FullBlocks> {
    const { blockSize } = format;
    if (this.#chain?.digest !== digest) {
      const root = chainRoot(digest, this.#scope);
      this.#chain = { digest, root, chain: this.#cache.chainOf(root, blockSize, tokens) };
      this.#blocks = NO_BLOCKS;
    }
    const { chain, root } = this.#chain;
    const hashes = await chain.prefillHashes(tokens, this.#clock);
    if (2 * hashes.length !== this.#blocks.keys.length) {
      this.#cache.keep(root, blockSize, tokens, hashes);
      this.#blocks = { keys: keyWords(hashes.map(({ key }) => key)), hashes, lastDigest: hashes.at(-1)?.digest };
    }
    return this.#blocks;
  }
}
