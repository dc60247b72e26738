/** Ranges of a chain that the prefix index has, with the holders that may be asked for them. */
import { tiers } from '../protocol/block_events.ts';
import type { Instance } from './instance.ts';
import type { MembersView } from './members_view.ts';
import type { PrefixIndex } from './prefix_index/prefix_index.ts';
import type { HeldSnapshot } from './policy.ts';

/** Bits of the device tier, and of the tiers in memory, whose blocks are served without reading a disk. */
const DEVICE_TIER = 1 << tiers.indexOf('device');
const MEMORY_TIERS = DEVICE_TIER | (1 << tiers.indexOf('dram'));

/** Instances that one request avoids. */
export interface Avoided {
  /** Whether the request is not placed on the instance. */
  has(instance: Instance): boolean;
  /** Whether the instance may be asked for blocks. */
  isHolder(instance: Instance): boolean;
}

/** A holder of a range. */
export type HeldHolder = HeldSnapshot['holders'][number];

/** Snapshots of one holder by where it has a range (device, host memory, disk only), made on demand and shared by ranges. */
export interface Holders {
  /** Undefined when it may not be asked. */
  readonly address: string | undefined;
  onDevice: HeldHolder | undefined;
  inMemory: HeldHolder | undefined;
  onDisk: HeldHolder | undefined;
}

/** Returns the ranges of a chain that are held, with the holders that may be asked; `known` has holders that were met before. */
export function heldRanges(
  { view, index }: { readonly view: MembersView; readonly index: PrefixIndex },
  keys: Int32Array,
  avoided: Avoided,
  known = new Map<string, Holders>(),
): HeldSnapshot[] {
  // A holder is mostly in many ranges: `known` has those that were met before.
  const holdersOf = (id: string): Holders => {
    let found = known.get(id);
    if (!found) {
      const holder = view.byHolder(id);
      const isUsable = holder?.isCounted === true && avoided.isHolder(holder);
      const address = isUsable ? holder.member.address : undefined;
      found = { address, onDevice: undefined, inMemory: undefined, onDisk: undefined };
      known.set(id, found);
    }
    return found;
  };
  return index.ranges(keys).map(({ start, end, heldBy }) => {
    const holders: HeldHolder[] = [];
    for (const { holder: id, tiers: its } of heldBy) {
      const found = holdersOf(id);
      const { address } = found;
      if (address === undefined) continue;
      const where = (its & DEVICE_TIER) !== 0 ? 'onDevice' : (its & MEMORY_TIERS) !== 0 ? 'inMemory' : 'onDisk';
      const [isInMemory, isOnDevice] = [where !== 'onDisk', where === 'onDevice'];
      holders.push((found[where] ??= { id, address, isInMemory, isOnDevice }));
    }
    return { start, end, holders };
  });
}
