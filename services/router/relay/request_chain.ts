/**
 * The block chain of one request, derived once and extended as the request generates: placement, relay and failover share it.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { KeyChain, type Digest } from '../../../shared/kv/block_key.ts';
import { chainRoot, type Scope } from '../../../shared/kv/format.ts';
import { keyWords } from '../../../shared/protocol/packing.ts';
import type { ClusterModel } from '../cluster/cluster_view.ts';

/** The full blocks before the tail. */
export interface FullBlocks {
  /** Two words each, the lower first. */
  readonly keys: Int32Array;
  readonly lastDigest: Digest | undefined;
}

export const NO_BLOCKS: FullBlocks = { keys: new Int32Array(0), lastDigest: undefined };

export class RequestChain {
  readonly #clock: Clock;
  readonly #scope: Scope;
  #chain: { readonly digest: Digest; readonly chain: KeyChain } | undefined;
  #blocks = NO_BLOCKS;

  constructor(clock: Clock, scope: Scope) {
    this.#clock = clock;
    this.#scope = scope;
  }

  /** Of `tokens`, which only ever grow. */
  async blocks({ digest, format }: ClusterModel, tokens: readonly number[]): Promise<FullBlocks> {
    const { blockSize } = format;
    if (this.#chain?.digest !== digest) {
      this.#chain = { digest, chain: new KeyChain(chainRoot(digest, this.#scope), blockSize) };
      this.#blocks = NO_BLOCKS;
    }
    const hashes = await this.#chain.chain.prefillHashes(tokens, this.#clock);
    if (2 * hashes.length !== this.#blocks.keys.length)
      this.#blocks = { keys: keyWords(hashes.map(({ key }) => key)), lastDigest: hashes.at(-1)?.digest };
    return this.#blocks;
  }
}
