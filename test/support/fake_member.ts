/** A member of a cluster with nothing in it: it registers, says its heartbeats, and announces what it is told to. */
import type { Clock } from '../../shared/base/clock.ts';
import { newBusEpoch } from '../../shared/base/identity.ts';
import { silentLog } from '../../shared/base/log.ts';
import type { Bus, BusListener } from '../../shared/bus/bus.ts';
import { ClusterBus } from '../../shared/bus/cluster_bus.ts';
import { HubClient } from '../../shared/bus/hub_client.ts';
import { NatsBus } from '../../shared/bus/nats/nats_bus.ts';
import { Announcer } from '../../shared/node/announcer.ts';
import type { Network } from '../../shared/net/network.ts';
import { ClusterMember, type ClusterMemberOptions } from '../../shared/node/cluster_member.ts';
import {
  holderId,
  subjects,
  type InstanceLoad,
  type HeartbeatStatus,
  type Registration,
} from '../../shared/protocol/membership.ts';
import { PROTOCOL_VERSION } from '../../shared/protocol/messages.ts';

/** Load of a member that does nothing. */
export const idleLoad: InstanceLoad = {
  running: 0,
  waiting: 0,
  openStreams: 0,
  preemptions: 0,
  lastStepMs: 0,
  isDraining: false,
  tiers: {},
};

export interface FakeMemberOptions extends Pick<Registration, 'member' | 'engine'> {
  readonly openBus: ClusterMemberOptions['openBus'];
  readonly clock: Clock;
  /** Load that its heartbeats say, the same each time or as of then. */
  readonly load?: InstanceLoad | (() => InstanceLoad);
  readonly seen?: HeartbeatStatus['seen'] | (() => HeartbeatStatus['seen']);
  readonly onJoined?: () => void;
  /** Ends what it announces. */
  readonly signal?: AbortSignal;
}

export interface FakeMember {
  readonly cluster: ClusterMember;
  readonly announcer: Announcer;
}

export function joinAsFake(options: FakeMemberOptions): FakeMember {
  const { member, engine, openBus, clock, load = idleLoad, seen = {}, onJoined = () => undefined } = options;
  const cluster = new ClusterMember({
    openBus,
    inquiry: { member, protocolVersion: PROTOCOL_VERSION },
    clock,
    log: silentLog,
    onRefused: (failure) => {
      throw failure;
    },
  });
  const announcer = new Announcer(
    holderId(member),
    (batch) => {
      cluster.bus.publish(subjects.blocks, batch);
    },
    clock,
    options.signal ?? new AbortController().signal,
  );
  cluster.join({
    registration: { member, protocolVersion: PROTOCOL_VERSION, ...(engine ? { engine } : {}) },
    heartbeatStatus: () => ({
      load: typeof load === 'function' ? load() : load,
      blocks: announcer.sequence,
      seen: typeof seen === 'function' ? seen() : seen,
    }),
    onJoined,
  });
  return { cluster, announcer };
}

/** The bus of a router with a hub, for members of its cluster `default`. */
export function hubOf(address: string, token: string, network: Network, clock: Clock): ClusterMemberOptions['openBus'] {
  return clusterOf(token, clock, (listener) => new HubClient({ address, network, clock, log: silentLog, ...listener }));
}

/** The bus of a NATS server, for members of its cluster `default`; `name` is that of this process in the server's lists. */
export function natsOf(url: string, name: string, clock: Clock): ClusterMemberOptions['openBus'] {
  const options = { servers: { urls: [url] }, name, clock, log: silentLog };
  return clusterOf('', clock, (listener) => new NatsBus(options, listener));
}

function clusterOf(token: string, clock: Clock, open: (listener: BusListener) => Bus): ClusterMemberOptions['openBus'] {
  return (listener, onUnverified) =>
    new ClusterBus(open(listener), {
      cluster: 'default',
      token,
      epoch: newBusEpoch(),
      clock,
      log: silentLog,
      onUnverified,
    });
}
