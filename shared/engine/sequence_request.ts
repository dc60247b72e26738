/** The request for a sequence, as an engine gets it. */
import type { AnchoredHash, Digest, TenantId } from '../kv/block_key.ts';
import type { Pooling, SampleGroupMessage } from '../protocol/messages.ts';
import type { Request } from '../protocol/request.ts';
import type { BlockRange } from './awaited_ranges.ts';
import type { Sharer } from './fair_order.ts';

/** A sequence to compute: its tokens, block chain, sampling request and kind. */
export interface SequenceRequest {
  readonly id: number;
  readonly kind: 'prefill' | 'decode' | 'embed';
  /** The start of its block chain: the engine's format and the request's scope. */
  readonly root: Digest;
  /** Tenant of the request's scope, whose blocks it computes; absent: they are shared. */
  readonly tenant?: TenantId | undefined;
  readonly tokens: Uint32Array;
  /** Hashes of its first full blocks, as the caller has derived them; the sequence derives the rest as it comes. */
  readonly hashes: readonly AnchoredHash[];
  /** Bits of a block key, as KeyChain takes them. */
  readonly keyBits?: number | undefined;
  readonly request: Request;
  /** Log-probabilities of the prompt's tokens are wanted from this position on (at least 1); `request.promptLength` for none. */
  readonly promptLogprobsFrom: number;
  /** Blocks are on their way: wait for `proceed` before computing. */
  readonly isFetching: boolean;
  /** With `isFetching`: blocks [0, fetchEnd) have a source; by default all that may be fetched. */
  readonly fetchEnd?: number | undefined;
  /**
   * With `isFetching`, of a prefill that is computed in a pipeline with other instances: the ranges of blocks that are fetched. The
   * blocks between and after them are computed here as soon as all before them are present.
   */
  readonly awaited?: readonly BlockRange[] | undefined;
  /** Tokens that its answer is expected to have; 0 or absent: not known. */
  readonly expectedTokens?: number | undefined;
  /** Priority of its request: a lower one comes first; 0 by default. */
  readonly priority?: number | undefined;
  /** The tenant whose share of the engine it takes; by default the one without a name. */
  readonly sharer?: Sharer | undefined;
  /** How the hidden states of an `embed` sequence are pooled; the last one by default. */
  readonly pooling?: Pooling | undefined;
  /** Present for one of several samples of a prompt; see sample_groups.ts. */
  readonly group?: SampleGroupMessage | undefined;
}
