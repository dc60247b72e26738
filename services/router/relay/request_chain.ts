/**
 * The block chain of one request, derived once and extended as the request generates: placement, relay and failover share it.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { KeyChain, type BlockHash, type Digest } from '../../../shared/kv/block_key.ts';
import { chainRoot, type Scope } from '../../../shared/kv/format.ts';
import type { ClusterModel } from '../cluster/cluster_view.ts';

export class RequestChain {
  readonly #clock: Clock;
  readonly #scope: Scope;
  #chain: { readonly digest: Digest; readonly chain: KeyChain } | undefined;

  constructor(clock: Clock, scope: Scope) {
    this.#clock = clock;
    this.#scope = scope;
  }

  /** Hashes of the full blocks before the tail of `tokens`, which only ever grow. */
  async hashes({ digest, format }: ClusterModel, tokens: readonly number[]): Promise<readonly BlockHash[]> {
    const { blockSize } = format;
    if (this.#chain?.digest !== digest)
      this.#chain = { digest, chain: new KeyChain(chainRoot(digest, this.#scope), blockSize) };
    return this.#chain.chain.prefillHashes(tokens, this.#clock);
  }
}
