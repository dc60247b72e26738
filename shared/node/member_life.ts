/** The life of a process that is a member of a cluster: it joins by registering with its routers, and leaves with a goodbye. */
import { messageOf } from '../base/failure.ts';
import type { Bus, BusListener } from '../bus/bus.ts';
import { ClusterBus } from '../bus/cluster_bus.ts';
import { HubClient } from '../bus/hub_client.ts';
import type { Handlers } from '../net/network.ts';
import type { Inquiry, Member, HeartbeatStatus, Registration } from '../protocol/membership.ts';
import { PROTOCOL_VERSION } from '../protocol/messages.ts';
import { ClusterMember } from './cluster_member.ts';
import { live } from './life.ts';
import { ownMetrics } from './metrics/own_metrics.ts';
import type { MemberConfig } from './options.ts';
import type { RoleContext, RunningRole } from './role.ts';

/** A role's link to its cluster: its member entry, the bus, the known stores, and membership notices. */
export interface ClusterSeat {
  readonly member: Member;
  readonly publish: (subject: string, payload: Buffer) => void;
  readonly stores: () => readonly Member[];
  /** Called when a router has placed a request on this process, and when a part of one has ended. */
  readonly loadChanged: () => void;
  /** Stops serving and leaves the cluster at once, so that requests running here continue elsewhere; for a process that cannot go on. */
  readonly sendGoodbye: () => void;
}

/** Handlers and life-cycle steps of a member's role, built once its cluster seat is known. */
export interface RoleBody {
  readonly handlers: Handlers;
  /** Engine properties that registration compares; absent for a process without an engine. */
  readonly engine?: Registration['engine'];
  /** Model folder that the process has loaded; only shown to people. */
  readonly model?: string;
  readonly heartbeatStatus: () => HeartbeatStatus;
  /** Resolves when the process is complete, which may be after it has joined and begun to serve; absent when nothing is pending. */
  readonly ready?: Promise<unknown>;
  /** Stops accepting work; resolves when running work has ended, or at `untilMs` (clock milliseconds). */
  readonly finish: (untilMs: number) => Promise<void>;
  /** Releases the role's resources; called after the server has closed, when no call can arrive. */
  readonly close: () => Promise<void>;
}

const BIND = '127.0.0.1:0';
/**
 * Milliseconds that a starting process waits for a router's answer to its inquiry before it loads its model. A running router answers
 * within milliseconds, so only a process without a router waits this long.
 */
const INQUIRE_MS = 1_000;
/** Matches hosts that stand for every interface, such as 0.0.0.0 and [::]; other processes cannot call such an address. */
const UNSPECIFIED = /^\[?[0:.]+\]?$/;
/** Milliseconds between attempts to resolve the bus's host name, which may not exist yet: processes start in any order. */
const LOOK_AGAIN_MS = 1_000;

/**
 * Returns the address at which other processes reach this one: `--advertise`, else the bound address. When every interface is bound,
 * the host is that of the interface that leads to the bus. @throws Error when `--advertise` names no host.
 */
async function addressOf({ config, network, clock, log }: RoleContext<MemberConfig>, bound: string): Promise<string> {
  const hostOf = (address: string): string => address.slice(0, address.lastIndexOf(':'));
  if (UNSPECIFIED.test(hostOf(config.advertise)))
    throw new Error(
      `--advertise ${config.advertise} is not an address that other processes can call: name the host of this machine instead`,
    );
  if (config.advertise !== '' || !UNSPECIFIED.test(hostOf(bound))) return config.advertise || bound;
  const [server = ''] = config.bus.split(',');
  const never = new AbortController();
  for (let hasWarned = false; ; hasWarned = true) {
    try {
      return `${await network.hostTowards(server || config.join)}${bound.slice(bound.lastIndexOf(':'))}`;
    } catch (error) {
      if (!hasWarned) log.warn({ error: messageOf(error) }, 'the address to announce is not known yet, trying again');
      await clock.sleep(LOOK_AGAIN_MS, never.signal);
    }
  }
}

/** Opens the cluster's part of the bus: of a NATS server if the host has one, else of the hub. */
function openBus(
  context: RoleContext<MemberConfig>,
  listener: BusListener,
  onUnverified: (subject: string) => void,
): Bus {
  const { config, network, clock, log, limits, clusterTokens: token, busEpoch: epoch } = context;
  const hub = { address: config.join, network, clock, log, ...listener, maxBacklogBytes: limits?.backlogBytes };
  const bus = context.openBus?.(listener) ?? new HubClient(hub);
  return new ClusterBus(bus, { cluster: config.cluster, token, epoch, clock, log, onUnverified });
}

/**
 * Runs a role as a member of a cluster: listens, asks the routers whether they would refuse this process, builds the role, and
 * registers. `planned` holds the engine properties that are known before the model is loaded.
 */
export function liveAsMember(
  context: RoleContext<MemberConfig>,
  shutdownGraceMs: number,
  build: (seat: ClusterSeat) => Promise<RoleBody>,
  planned?: Inquiry['engine'],
): Promise<RunningRole> {
  const { role, config, identity, clock, log, fail } = context;
  return live(context, { bind: config.bind || BIND, shutdownGraceMs }, async (bound) => {
    const address = await addressOf(context, bound.address);
    const member: Member = { ...identity, name: config.name || `${role}@${address}`, role, address };
    // Join the bus before building the role, so that a refusal by the cluster is reported before the model is loaded.
    const cluster = new ClusterMember({
      openBus: (listener, onUnverified) => openBus(context, listener, onUnverified),
      inquiry: { member, protocolVersion: PROTOCOL_VERSION, ...(planned ? { engine: planned } : {}) },
      clock,
      log,
      onRefused: fail,
    });
    await cluster.inquired(INQUIRE_MS);
    const { handlers, engine, model, heartbeatStatus, ready, finish, close } = await build({
      member,
      publish: (subject, payload) => {
        cluster.bus.publish(subject, payload);
      },
      stores: () => cluster.stores(),
      loadChanged: () => {
        void cluster.loadChanged();
      },
      sendGoodbye: () => {
        bound.setServing(false);
        cluster.leave();
      },
    });
    return {
      handlers,
      metrics: ownMetrics(() => ({ member, engine, load: heartbeatStatus().load })),
      join: async () => {
        log.info({ address }, 'ready to serve, joining');
        const joined = new Promise<void>((resolve) => {
          cluster.join({
            registration: { member, protocolVersion: PROTOCOL_VERSION, ...(engine ? { engine } : {}) },
            heartbeatStatus,
            onJoined: resolve,
          });
        });
        await Promise.all([joined, ready]);
        const loaded = { ...(engine ? { device: engine.device } : {}), ...(model ? { model } : {}) };
        return { name: member.name, address, ...loaded };
      },
      finish: async (untilMs) => {
        const finishing = finish(untilMs);
        // This heartbeat reports that the process drains.
        cluster.heartbeat();
        await finishing;
      },
      leave: () => {
        cluster.leave();
      },
      close,
    };
  });
}
