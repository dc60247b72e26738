/** Sources of records for tests and benchmarks. */
import type { BlockHash, Digest } from '../../shared/kv/block_key.ts';
import type { BorrowedRecord, RecordCache } from '../../shared/kv/record_cache.ts';
import type { WantedKeys } from '../../shared/kv/wanted_keys.ts';
import type { BlockSource } from '../../shared/net/block_source.ts';
import type { OfferRequest } from '../../shared/protocol/messages.ts';
import { packDigest, packHashes, packNumbers } from '../../shared/protocol/packing.ts';

type Read = (hash: BlockHash, requestId: string, waitMs: number, signal: AbortSignal) => Promise<Buffer | undefined>;

/** A source of records that lie in nobody's slab: they go over calls. Those of which `isFromDisk` holds were read from its disk. */
export function copySource(
  read: Read,
  isFromDisk: (hash: BlockHash) => boolean = () => false,
): Omit<BlockSource, 'wanted' | 'snapshot'> {
  return {
    borrow: async (hash, ...asked): Promise<BorrowedRecord | undefined> => {
      const record = await read(hash, ...asked);
      return record && { record, slot: undefined, isFromDisk: isFromDisk(hash), release: () => undefined };
    },
    borrowResident: () => undefined,
    numBorrowable: () => 0,
  };
}

/** Block source that serves only the contents of a cache; those of which `isFromDisk` holds as if it had read them from its disk. */
export function cacheSource(
  cache: RecordCache,
  wanted: WantedKeys,
  isFromDisk: (hash: BlockHash) => boolean = () => false,
): BlockSource {
  const marked = <T extends BorrowedRecord>(hash: BlockHash, borrowed: T | undefined): T | undefined =>
    borrowed && isFromDisk(hash) ? { ...borrowed, isFromDisk: true } : borrowed;
  return {
    wanted,
    borrow: (hash) => Promise.resolve(marked(hash, cache.borrow(hash))),
    borrowResident: (hash) => marked(hash, cache.borrowInPlace(hash)),
    numBorrowable: (bytes) => cache.numBorrowable(bytes),
    snapshot: () => ({ epoch: 'e', sequence: 0, tiers: [] }),
  };
}

/** `contentHashes` and `numerics` as record.ts has them. */
export function offerOf(
  format: Digest,
  hashes: readonly BlockHash[],
  {
    recordBytes,
    source,
    contentHashes = hashes.map(() => 0n),
    numerics = 0n,
  }: {
    readonly recordBytes: number;
    readonly source: string;
    readonly contentHashes?: readonly bigint[];
    readonly numerics?: bigint;
  },
): OfferRequest {
  return {
    context: null,
    format: packDigest(format),
    hashes: packHashes(hashes),
    recordBytes,
    source,
    contentHashes: packNumbers(contentHashes),
    numerics: packNumbers([numerics]),
  };
}
