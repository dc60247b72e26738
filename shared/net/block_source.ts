/** What serves blocks: an instance's outbox and device, a store's tiers. Two implementations, one Fetch handler. */
import type { BlockKey, BlockHash } from '../kv/block_key.ts';
import type { InPlace, Lent } from '../kv/record_cache.ts';
import type { WantedKeys } from '../kv/wanted_keys.ts';
import type { Tier } from '../protocol/block_events.ts';

export interface BlockSource {
  /** What open streams will read: evicted last. */
  readonly wanted: WantedKeys;
  /**
   * The sealed record, brought up from lower tiers where needed, or undefined when it cannot be had. Waits up to `waitMs` for a block that
   * is being computed for `requestId`. Whoever gets it releases it.
   */
  lend(hash: BlockHash, requestId: string, waitMs: number, signal: AbortSignal): Promise<Lent | undefined>;
  /** Records of this size that may be lent in place besides those that are. */
  numLoanable(bytes: number): number;
  /** These will be lent soon, in this order: what has to be brought up may begin to come. */
  expect?(hashes: readonly BlockHash[]): void;
  /** The same, where it lies in host memory now. */
  lendHeld(hash: BlockHash): InPlace | undefined;
  /** The tiers that this very block is in. */
  whereIs(hash: BlockHash): Tier[];
  /** Every key in every tier, as of event number `sequence`. */
  snapshot(): {
    readonly epoch: string;
    readonly sequence: number;
    readonly tiers: Iterable<readonly [Tier, Iterable<BlockKey>]>;
  };
}
