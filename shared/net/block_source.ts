/**
 * Sources of KV blocks for the Fetch handler: an instance's outbox with its in-flight blocks, or a store's tiers. One handler serves
 * either.
 */
import type { BlockKey, BlockHash } from '../kv/block_key.ts';
import type { RecordInPlace, BorrowedRecord } from '../kv/record_cache.ts';
import type { WantedKeys } from '../kv/wanted_keys.ts';
import type { Tier } from '../protocol/block_events.ts';

/** A run of blocks that one step computes: frames of their records can be had before the records are whole. */
export interface InFlightFrames {
  /**
   * Slot of each block's record, as a byte offset in the slab, in chain order. `pin` pins the slot until the returned function is
   * called.
   */
  readonly blocks: readonly { readonly slot: number; readonly pin: () => () => void }[];
  /** Bytes of each complete record. */
  readonly recordBytes: number;
  /** Byte range of each frame within its slot, by frame number. */
  readonly frames: readonly { readonly offset: number; readonly bytes: number }[];
  /**
   * Resolves to the headers of one frame, one per block, once the frame is computed; undefined when the frame will not come or
   * `signal` aborts.
   */
  frameHeaders(frame: number, signal: AbortSignal): Promise<readonly Uint8Array[] | undefined>;
  /** Releases the borrow: no further headers may be requested. Slots pinned with `pin` stay pinned. */
  release(): void;
}

/** Interface through which the Fetch handler borrows records from an instance's outbox or a store's tiers. */
export interface BlockSource {
  /** Keys that open fetch streams will still read; their records are evicted last. */
  readonly wanted: WantedKeys;
  /**
   * Borrows the sealed record, loading it from a lower tier if needed; undefined when the source does not have it. Waits up to
   * `waitMs` for a block that is being computed for `requestId`. The caller must release the record.
   */
  borrow(hash: BlockHash, requestId: string, waitMs: number, signal: AbortSignal): Promise<BorrowedRecord | undefined>;
  /**
   * Borrows the first block, like `borrow`. When the block is still being computed, returns its frames and those of the in-flight
   * blocks that follow it in `hashes`. Absent on a store.
   */
  borrowInFlight?(
    hashes: readonly BlockHash[],
    requestId: string,
    waitMs: number,
    signal: AbortSignal,
  ): Promise<BorrowedRecord | InFlightFrames | undefined>;
  /** Registers that a reader waits for these blocks to be computed, until the returned function is called. Absent on a store. */
  await?(hashes: readonly BlockHash[]): () => void;
  /** Returns how many more records of `bytes` bytes may be borrowed in place, besides those borrowed now. */
  numBorrowable(bytes: number): number;
  /** Announces blocks that will be borrowed soon, in this order, so that the source can begin to load them from lower tiers. */
  expect?(hashes: readonly BlockHash[]): void;
  /**
   * Borrows the sealed record in place; undefined when the record is not in host memory now, or when too much memory is borrowed
   * already.
   */
  borrowResident(hash: BlockHash): RecordInPlace | undefined;
  /** Every key in every tier with its parent's, 0 where that is not known, as of event number `sequence`. */
  snapshot(): {
    readonly epoch: string;
    readonly sequence: number;
    readonly tiers: Iterable<readonly [Tier, ReadonlyMap<BlockKey, BlockKey>]>;
  };
}
