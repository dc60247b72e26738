/** Tells where the blocks of a fetch come from, for the counts of tokens by source. */
import type { BlockOrigin } from '../engine/sequence_times.ts';
import type { Arrived } from '../net/fetch/fetch_events.ts';
import type { Source } from '../protocol/messages.ts';

/** Addresses by which the kind of a holder is known. */
interface Neighbours {
  readonly ownAddress: string;
  /** Whether a store has the address. */
  readonly isStore: (address: string) => boolean;
}

/** Returns where the blocks of a source come from; the origin of a store's block is exact only with {@link deliveredFrom}. */
export function originOf({ address, isHandoff }: Source, { ownAddress, isStore }: Neighbours): BlockOrigin {
  if (isHandoff) return 'handoff';
  if (address === ownAddress) return 'dram';
  return isStore(address) ? 'storeDram' : 'instance';
}

/** Returns where one block of a source comes from: the disk of a store counts apart from its DRAM. */
export function deliveredFrom(origin: BlockOrigin, { isFromDisk }: Pick<Arrived, 'isFromDisk'>): BlockOrigin {
  return origin === 'storeDram' && isFromDisk ? 'storeDisk' : origin;
}
