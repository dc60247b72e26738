/** What serves blocks: an instance's outbox and device, a store's tiers. Two implementations, one Fetch handler. */
import type { BlockKey, BlockHash } from '../kv/block_key.ts';
import type { RecordInPlace, BorrowedRecord } from '../kv/record_cache.ts';
import type { WantedKeys } from '../kv/wanted_keys.ts';
import type { Tier } from '../protocol/block_events.ts';

/** A run of blocks that one step computes: frames of their records can be had before the records are whole. */
export interface InFlightFrames {
  /** Where each of them grows; its slot stays as it is until what `hold` returns is called. */
  readonly blocks: readonly { readonly slot: number; readonly hold: () => () => void }[];
  /** Of each record when it is whole. */
  readonly recordBytes: number;
  /** By frame, its place in the slot. */
  readonly frames: readonly { readonly offset: number; readonly bytes: number }[];
  /** What each record says of that frame, when it is there; undefined: it will not come. */
  frameHeaders(frame: number, signal: AbortSignal): Promise<readonly Uint8Array[] | undefined>;
  /** Whoever was given them asks no more. */
  release(): void;
}

export interface BlockSource {
  /** What open streams will read: evicted last. */
  readonly wanted: WantedKeys;
  /**
   * The sealed record, brought up from lower tiers where needed, or undefined when it cannot be had. Waits up to `waitMs` for a block that
   * is being computed for `requestId`. Whoever gets it releases it.
   */
  borrow(hash: BlockHash, requestId: string, waitMs: number, signal: AbortSignal): Promise<BorrowedRecord | undefined>;
  /** As `borrow` of the first of these; of one that is being computed, with those that grow behind it. */
  borrowInFlight?(
    hashes: readonly BlockHash[],
    requestId: string,
    waitMs: number,
    signal: AbortSignal,
  ): Promise<BorrowedRecord | InFlightFrames | undefined>;
  /** Somebody waits for these to be computed, until what this returns is called. */
  await?(hashes: readonly BlockHash[]): () => void;
  /** Records of this size that may be lent in place besides those that are. */
  numBorrowable(bytes: number): number;
  /** These will be lent soon, in this order: what has to be brought up may begin to come. */
  expect?(hashes: readonly BlockHash[]): void;
  /** The same, where it lies in host memory now. */
  borrowResident(hash: BlockHash): RecordInPlace | undefined;
  /** Every key in every tier, as of event number `sequence`. */
  snapshot(): {
    readonly epoch: string;
    readonly sequence: number;
    readonly tiers: Iterable<readonly [Tier, Iterable<BlockKey>]>;
  };
}
