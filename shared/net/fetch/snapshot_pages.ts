/** Pages of a Snapshot reply: all keys that a holder has, tier by tier. */
import type { BlockKey } from '../../kv/block_key.ts';
import { tiers } from '../../protocol/block_events.ts';
import type { SnapshotPage } from '../../protocol/messages.ts';
import { packKeys } from '../../protocol/packing.ts';
import type { BlockSource } from '../block_source.ts';

const SNAPSHOT_PAGE_KEYS = 16_384;

/** Yields the pages of a holder's snapshot; a holder without blocks has one page without keys. */
export function* snapshotPages(source: BlockSource): Generator<SnapshotPage> {
  const { epoch, sequence, tiers: tierKeys } = source.snapshot();
  // The keys are copied at once; changes while pages are sent are announced by later block events.
  const all = [...tierKeys].flatMap(([tier, keys]) =>
    paged([...keys]).map((page) => ({ tier: tiers.indexOf(tier), page })),
  );
  if (all.length === 0) all.push({ tier: 0, page: [] });
  for (const { tier, page } of all) yield { epoch, sequence, tier, keys: packKeys(page) };
}

function paged(keys: readonly BlockKey[]): BlockKey[][] {
  return Array.from({ length: Math.ceil(keys.length / SNAPSHOT_PAGE_KEYS) }, (_, i) =>
    keys.slice(i * SNAPSHOT_PAGE_KEYS, (i + 1) * SNAPSHOT_PAGE_KEYS),
  );
}
