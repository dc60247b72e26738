/**
 * The block chain of one request, derived once and extended as the request generates: placement, relay and failover share it.
 *
 * Derived in slices, because 128k tokens take 60 ms and every stream of the router waits for its thread.
 */
import type { Clock } from '../../shared/base/clock.ts';
import { KeyChain, numPrefillBlocks, type ChainLink, type Digest } from '../../shared/kv/block_key.ts';
import { chainRoot, type Scope } from '../../shared/kv/format.ts';
import type { ClusterModel } from './cluster_view.ts';

/** About a millisecond. */
const SLICE_BLOCKS = 64;

export class RequestChain {
  readonly #clock: Clock;
  readonly #scope: Scope;
  #chain: { readonly digest: Digest; readonly chain: KeyChain } | undefined;

  constructor(clock: Clock, scope: Scope) {
    this.#clock = clock;
    this.#scope = scope;
  }

  /** Links of the full blocks before the tail of `tokens`, which only ever grow. */
  async links({ digest, format }: ClusterModel, tokens: readonly number[]): Promise<readonly ChainLink[]> {
    const { blockSize } = format;
    if (this.#chain?.digest !== digest)
      this.#chain = { digest, chain: new KeyChain(chainRoot(digest, this.#scope), blockSize) };
    const { chain } = this.#chain;
    const numBlocks = numPrefillBlocks(tokens.length, blockSize);
    while (chain.links.length < numBlocks) {
      chain.extend(tokens, Math.min(numBlocks, chain.links.length + SLICE_BLOCKS));
      if (chain.links.length < numBlocks) await this.#clock.turn();
    }
    return chain.links.slice(0, numBlocks);
  }
}
