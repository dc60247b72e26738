/**
 * Parts of an engine instance that need its name and address in the cluster, and their connections:
 *
 *   engine ─► outbox ─► offers (the stores fetch the blocks that they lack)
 *   others' Blocks services ─► fetcher ─► fetch slots ─► engine
 */
import { numericsId, type RecordLayout } from '../kv/record.ts';
import { slotLength, type Slab } from '../kv/slab.ts';
import type { Clock } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import type { Random } from '../base/random.ts';
import type { FetchFlows } from '../net/fetch/flows.ts';
import type { Moved } from '../net/fetch/transfer.ts';
import { incomingSlots } from '../net/fetch/transfer_bounds.ts';
import type { TransferThread } from '../net/transfer_thread/transfer_thread.ts';
import type { Network } from '../net/network.ts';
import { Announcer } from '../node/announcer.ts';
import type { MemberChannels } from '../node/member_channels.ts';
import type { HostLimits } from '../node/role.ts';
import { holderId, type Member } from '../protocol/membership.ts';
import { FetchSlots } from './fetch_slots.ts';
import { BlockFetcher } from './block_fetcher.ts';
import { Offers } from './offers.ts';
import { Outbox, type OutboxOptions } from './outbox.ts';
import { TenantForgetting } from './tenant_forgetting.ts';

/** The machine as the parts see it. */
export interface InstanceHost {
  readonly network: Network;
  readonly random: Random;
  readonly clock: Clock;
  readonly log: Log;
  readonly limits?: HostLimits | undefined;
}

/** Facts that are known only once the process listens. */
export interface Attachment {
  readonly member: Member;
  readonly publishBlocks: (batch: Buffer) => void;
  readonly stores: () => readonly Member[];
  /** Called when a router has placed a request on this instance, and when a part of one has ended. */
  readonly onLoadChanged: () => void;
}

/** Parts of an instance that need its cluster address. */
export interface InstanceParts {
  readonly outbox: Outbox;
  readonly fetcher: BlockFetcher;
  readonly fetchSlots: FetchSlots;
  readonly offers: Offers;
  readonly announcer: Announcer;
  readonly forgetting: TenantForgetting;
}

/** The threads and the memory that the parts share. */
interface PartsBase {
  readonly layout: RecordLayout;
  readonly slab: Slab;
  readonly transferThread: TransferThread;
  readonly channels: MemberChannels | undefined;
  /** Bytes that fetches have brought, by the way they came. */
  readonly moved: Moved;
  readonly flows: FetchFlows;
  readonly sendToEngine: OutboxOptions['sendToEngine'];
  /** Aborts when the instance stops. */
  readonly signal: AbortSignal;
}

/** Creates the parts of an instance under its name and address in the cluster, and connects them. */
export function connectParts(
  { network, clock, random, log, limits }: InstanceHost,
  { member, publishBlocks, stores }: Attachment,
  { layout, slab, transferThread, channels, moved, flows, sendToEngine, signal }: PartsBase,
): InstanceParts {
  const bytes = layout.spec.slotBytes;
  const numSlots = Math.floor(slab.numBytes / slotLength(bytes));
  const announcer = new Announcer(holderId(member), publishBlocks, clock, signal);
  const offers = new Offers({
    network,
    clock,
    log,
    stores,
    signal,
    format: layout.format,
    numerics: numericsId(layout.numericsClass),
    recordBytes: { block: bytes, state: layout.spec.state?.slotBytes ?? 0 },
    source: member.address,
  });
  const outbox = new Outbox({
    layout,
    slab,
    numSlots,
    transferThread,
    announcer,
    clock,
    log,
    sendToEngine,
    onReady: (hash, contentHash) => {
      offers.add(hash, contentHash);
    },
    onSlotFree: () => {
      fetchSlots.pump();
    },
  });
  const fetchSlots = new FetchSlots(outbox.cache, bytes, incomingSlots(numSlots));
  const line = {
    network,
    clock,
    random,
    transferThread,
    channels: channels?.channels,
    moved,
    flows,
    limits: limits?.transfer,
  };
  const fetcher = new BlockFetcher({
    line,
    slab,
    layout,
    fetchSlots,
    outbox,
    sendToEngine,
    log,
    ownAddress: member.address,
    isStore: (address) => stores().some((store) => store.address === address),
  });
  const forgetting = new TenantForgetting({ outbox, layout, clock, sendToEngine });
  return { outbox, fetcher, fetchSlots, offers, announcer, forgetting };
}
