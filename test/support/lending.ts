import type { Lent } from '../../shared/kv/record_cache.ts';
import type { BlockHash } from '../../shared/kv/block_key.ts';
import type { BlockSource } from '../../shared/net/block_source.ts';

type Read = (hash: BlockHash, requestId: string, waitMs: number, signal: AbortSignal) => Promise<Buffer | undefined>;

/** A source of records that lie in nobody's slab: they go over calls. */
export function lendingCopies(read: Read): Pick<BlockSource, 'lend' | 'lendHeld' | 'numLoanable'> {
  return {
    lend: async (...asked): Promise<Lent | undefined> => {
      const record = await read(...asked);
      return record && { record, slot: undefined, release: () => undefined };
    },
    lendHeld: () => undefined,
    numLoanable: 0,
  };
}
