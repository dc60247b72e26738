/** Sources of records for tests and benchmarks. */
import type { BlockHash, Digest } from '../../shared/kv/block_key.ts';
import type { Lent, RecordCache } from '../../shared/kv/record_cache.ts';
import type { WantedKeys } from '../../shared/kv/wanted_keys.ts';
import type { BlockSource } from '../../shared/net/block_source.ts';
import type { OfferRequest } from '../../shared/protocol/messages.ts';
import { packDigest, packHashes, packNumbers } from '../../shared/protocol/packing.ts';

type Read = (hash: BlockHash, requestId: string, waitMs: number, signal: AbortSignal) => Promise<Buffer | undefined>;

/** A source of records that lie in nobody's slab: they go over calls. */
export function lendingCopies(read: Read): Omit<BlockSource, 'wanted' | 'snapshot'> {
  return {
    lend: async (...asked): Promise<Lent | undefined> => {
      const record = await read(...asked);
      return record && { record, slot: undefined, release: () => undefined };
    },
    lendHeld: () => undefined,
    numLoanable: () => 0,
  };
}

/** What lies in a cache, and nothing else. */
export function lendingFrom(cache: RecordCache, wanted: WantedKeys): BlockSource {
  return {
    wanted,
    lend: (hash) => Promise.resolve(cache.lend(hash)),
    lendHeld: (hash) => cache.lendInPlace(hash),
    numLoanable: (bytes) => cache.numLoanable(bytes),
    snapshot: () => ({ epoch: 'e', sequence: 0, tiers: [] }),
  };
}

/** `contents` and `numerics` as record.ts has them. */
export function offerOf(
  format: Digest,
  hashes: readonly BlockHash[],
  {
    recordBytes,
    source,
    contents = hashes.map(() => 0n),
    numerics = 0n,
  }: {
    readonly recordBytes: number;
    readonly source: string;
    readonly contents?: readonly bigint[];
    readonly numerics?: bigint;
  },
): OfferRequest {
  return {
    ...{ context: null, format: packDigest(format), hashes: packHashes(hashes), recordBytes, source },
    ...{ contents: packNumbers(contents), numerics: packNumbers([numerics]) },
  };
}
