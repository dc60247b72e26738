/** The life of a process that is a member of a cluster: it joins by registering with its routers, and leaves with a goodbye. */
import { messageOf } from '../base/failure.ts';
import { ClusterBus } from '../bus/cluster_bus.ts';
import { HubClient } from '../bus/hub_client.ts';
import type { Handlers } from '../net/network.ts';
import type { Inquiry, Member, HeartbeatStatus, Registration } from '../protocol/membership.ts';
import { PROTOCOL_VERSION } from '../protocol/messages.ts';
import { ClusterMember } from './cluster_member.ts';
import { live } from './life.ts';
import type { MemberConfig } from './options.ts';
import type { RoleContext, RunningRole } from './role.ts';

/** A role's link to its cluster: its member entry, the bus, the known stores, and membership notices. */
export interface ClusterSeat {
  readonly member: Member;
  readonly publish: (subject: string, payload: Buffer) => void;
  readonly stores: () => readonly Member[];
  /** A router has placed something here. */
  readonly placed: () => void;
  /** Stops serving and leaves the cluster at once, so that requests running here continue elsewhere; for a process that cannot go on. */
  readonly sendGoodbye: () => void;
}

/** Handlers and life-cycle steps of a member's role, built once its cluster seat is known. */
export interface RoleBody {
  readonly handlers: Handlers;
  /** Engine properties that registration compares; absent for a process without an engine. */
  readonly engine?: Registration['engine'];
  /** The folder that it has loaded, for people. */
  readonly model?: string;
  readonly heartbeatStatus: () => HeartbeatStatus;
  /** Resolves when the process is complete, which may be after it has joined and begun to serve; absent when nothing is pending. */
  readonly ready?: Promise<unknown>;
  /** Finishes what runs and takes nothing new. */
  readonly finish: (untilMs: number) => Promise<void>;
  /** Releases the role's resources; called after the server has closed, when no call can arrive. */
  readonly close: () => Promise<void>;
}

const BIND = '127.0.0.1:0';
/** Routers that are there answer within milliseconds; without one, this is how much later a process begins to load. */
const INQUIRE_MS = 1_000;
/** Matches hosts that stand for every interface, such as 0.0.0.0 and [::]; other processes cannot call such an address. */
const UNSPECIFIED = /^\[?[0:.]+\]?$/;
/** A bus whose name is not known yet is looked for again: processes start in any order. */
const LOOK_AGAIN_MS = 1_000;

/** The address that others reach a process at, where it is not told: of every interface, the one that leads to the bus. */
async function addressOf({ config, network, clock, log }: RoleContext<MemberConfig>, bound: string): Promise<string> {
  const hostOf = (address: string): string => address.slice(0, address.lastIndexOf(':'));
  if (UNSPECIFIED.test(hostOf(config.advertise)))
    throw new Error(`--advertise ${config.advertise} is no address that others can call: name the host`);
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

/** `planned`: of an engine, what its configuration says before its model is loaded. */
export function liveAsMember(
  context: RoleContext<MemberConfig>,
  shutdownGraceMs: number,
  build: (place: ClusterSeat) => Promise<RoleBody>,
  planned?: Inquiry['engine'],
): Promise<RunningRole> {
  const { role, config, network, identity, clock, log, fail } = context;
  return live(context, { bind: config.bind || BIND, shutdownGraceMs }, async (bound) => {
    const address = await addressOf(context, bound.address);
    const member: Member = { ...identity, name: config.name || `${role}@${address}`, role, address };
    // With the bus first: what keeps this process out of its cluster is said before it has loaded anything.
    const cluster = new ClusterMember({
      openBus: (listener, onUnverified) =>
        new ClusterBus(
          context.openBus?.(listener) ??
            new HubClient({
              ...{ address: config.join, network, clock, log, ...listener },
              maxBacklogBytes: context.limits?.backlogBytes,
            }),
          { cluster: config.cluster, token: config.cluster_token, clock, log, onUnverified },
        ),
      inquiry: { member, protocolVersion: PROTOCOL_VERSION, ...(planned ? { engine: planned } : {}) },
      ...{ clock, log },
      onRefused: fail,
    });
    await cluster.inquired(INQUIRE_MS);
    const { handlers, engine, model, heartbeatStatus, ready, finish, close } = await build({
      member,
      publish: (subject, payload) => {
        cluster.bus.publish(subject, payload);
      },
      stores: () => cluster.stores(),
      placed: () => {
        void cluster.placed();
      },
      sendGoodbye: () => {
        bound.setServing(false);
        cluster.leave();
      },
    });
    return {
      handlers,
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
        return {
          name: member.name,
          address,
          ...(engine ? { device: engine.device } : {}),
          ...(model ? { model } : {}),
        };
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
