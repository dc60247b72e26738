/** A store that lies: it announces blocks that others hold, and serves another block, another model's, or damage in their place. */
import type { Clock } from '../../shared/base/clock.ts';
import type { OpenBus } from '../../shared/bus/bus.ts';
import type { BlockHash, Digest } from '../../shared/kv/block_key.ts';
import { sealRecord, type RecordLayout } from '../../shared/kv/record.ts';
import { WantedKeys } from '../../shared/kv/wanted_keys.ts';
import { createFetchHandlers } from '../../shared/net/fetch/fetch_server.ts';
import { answeringOnce, type Network } from '../../shared/net/network.ts';
import type { Member } from '../../shared/protocol/membership.ts';
import { joinAsFake } from '../support/fake_member.ts';
import { copySource } from '../support/borrowing.ts';

export const lies = ['a collision', 'another model', 'damage'] as const;
export type Lie = (typeof lies)[number];

export async function joinLiar(
  { network, clock, openBus }: { readonly network: Network; readonly clock: Clock; readonly openBus: OpenBus },
  layout: RecordLayout,
  lie: Lie,
  hashes: readonly BlockHash[],
): Promise<void> {
  const { fetch, snapshot } = createFetchHandlers(
    () => ({
      wanted: new WantedKeys(),
      ...copySource((hash) => Promise.resolve(recordOf(lie, layout, hash))),
      snapshot: () => announcer.snapshot(),
    }),
    { maxStreams: 64 },
  );
  const check = answeringOnce<'check'>(() => ({ status: 1 }));
  const { address } = await network.listen('liar:0', { fetch, snapshot, check });
  const member: Member = { name: 'liar', role: 'store', address, pid: 1, epoch: 'liar' };
  const { announcer } = joinAsFake({
    member,
    openBus,
    clock,
    onJoined: () => {
      for (const hash of hashes) announcer.stored('dram', hash);
    },
  });
}

function recordOf(lie: Lie, layout: RecordLayout, hash: BlockHash): Buffer {
  const record = Buffer.alloc(layout.spec.slotBytes, 0x2b);
  const other = 'ef'.repeat(16) as Digest;
  if (lie === 'a collision') sealRecord(record, layout, { ...hash, digest: other });
  else if (lie === 'another model') sealRecord(record, { ...layout, format: other }, hash);
  else {
    sealRecord(record, layout, hash);
    record[record.length - 3] = (record.at(-3) ?? 0) ^ 8;
  }
  return record;
}
