/** Pages of a Snapshot reply: all blocks that a holder has, tier by tier, with their parents. */
import { tiers } from '../../protocol/block_events.ts';
import type { SnapshotPage } from '../../protocol/messages.ts';
import { packParents } from '../../protocol/parent_keys.ts';
import type { BlockSource } from '../block_source.ts';

const SNAPSHOT_PAGE_KEYS = 16_384;
const NOTHING = Buffer.alloc(0);

/** Keys of a tier's blocks and their parents, copied out of the holder's list. */
interface ListedTier {
  readonly tier: number;
  readonly keys: BigUint64Array;
  readonly parents: BigUint64Array;
}

/** Yields the pages of a holder's snapshot; a holder without blocks has one page without keys. */
export function* snapshotPages(source: BlockSource): Generator<SnapshotPage> {
  const { epoch, sequence, tiers: listed } = source.snapshot();
  // The keys are copied at once; changes while pages are sent are announced by later block events.
  const all = [...listed].map(([tier, blocks]): ListedTier => {
    const [keys, parents] = [new BigUint64Array(blocks.size), new BigUint64Array(blocks.size)];
    let i = 0;
    for (const [key, parent] of blocks) {
      keys[i] = key;
      parents[i++] = parent;
    }
    return { tier: tiers.indexOf(tier), keys, parents };
  });
  if (all.every(({ keys }) => keys.length === 0)) yield { epoch, sequence, tier: 0, keys: NOTHING, parents: NOTHING };
  for (const { tier, keys, parents } of all)
    for (let from = 0; from < keys.length; from += SNAPSHOT_PAGE_KEYS) {
      const page = wordsOf(keys.subarray(from, from + SNAPSHOT_PAGE_KEYS));
      const pageParents = packParents(page, wordsOf(parents.subarray(from, from + SNAPSHOT_PAGE_KEYS)));
      const keyBytes = Buffer.from(page.buffer, page.byteOffset, page.byteLength);
      yield { epoch, sequence, tier, keys: keyBytes, parents: pageParents };
    }
}

function wordsOf(keys: BigUint64Array): Int32Array {
  return new Int32Array(keys.buffer, keys.byteOffset, 2 * keys.length);
}
