/** The life of a process that is a member of a cluster: it joins by registering with its routers, and leaves with a goodbye. */
import { ClusterBus } from '../bus/cluster_bus.ts';
import { HubClient } from '../bus/hub_client.ts';
import type { Handlers } from '../net/network.ts';
import type { Member, Pulse, Registration } from '../protocol/membership.ts';
import { PROTOCOL_VERSION } from '../protocol/messages.ts';
import { ClusterMember } from './cluster_member.ts';
import { live } from './life.ts';
import type { MemberConfig } from './options.ts';
import type { RoleContext, RunningRole } from './role.ts';

/** Where a process is in its cluster. */
export interface Place {
  readonly member: Member;
  readonly publish: (subject: string, payload: Buffer) => void;
  readonly stores: () => readonly Member[];
  /** A router has placed something here. */
  readonly placed: () => void;
  /** It cannot go on: its cluster is told at once, so that what runs here goes on elsewhere. */
  readonly sayGoodbye: () => void;
}

/** What a role is made of, built once its place is known. */
export interface RoleBody {
  readonly handlers: Handlers;
  /** Of an engine, what registration compares. */
  readonly engine?: Registration['engine'];
  /** The folder that it has loaded, for people. */
  readonly model?: string;
  readonly pulse: () => Pulse;
  /** It serves as soon as it has joined; whole it is when this resolves. */
  readonly whole?: Promise<unknown>;
  /** Finishes what runs and takes nothing new. */
  readonly finish: (untilMs: number) => Promise<void>;
  /** Nothing can be asked of it any more. */
  readonly close: () => Promise<void>;
}

const BIND = '127.0.0.1:0';

export function liveAsMember(
  context: RoleContext<MemberConfig>,
  shutdownGraceMs: number,
  build: (place: Place) => Promise<RoleBody>,
): Promise<RunningRole> {
  const { role, config, network, identity, clock, log, fail } = context;
  return live(context, { bind: config.bind || BIND, shutdownGraceMs }, async (bound) => {
    const address = config.advertise || bound.address;
    const member: Member = { ...identity, name: config.name || `${role}@${address}`, role, address };
    let cluster: ClusterMember | undefined;
    const { handlers, engine, model, pulse, whole, finish, close } = await build({
      member,
      publish: (subject, payload) => {
        cluster?.bus.publish(subject, payload);
      },
      stores: () => cluster?.stores() ?? [],
      placed: () => {
        void cluster?.placed();
      },
      sayGoodbye: () => {
        bound.setServing(false);
        cluster?.leave();
      },
    });
    return {
      handlers,
      join: async () => {
        log.info({ address }, 'ready to serve, joining');
        const joined = new Promise<void>((resolve) => {
          cluster = new ClusterMember({
            openBus: (listener, onUnverified) =>
              new ClusterBus(
                context.openBus?.(listener) ??
                  new HubClient({ address: config.join, network, clock, log, ...listener }),
                { cluster: config.cluster, token: config.cluster_token, clock, log, onUnverified },
              ),
            registration: { member, protocolVersion: PROTOCOL_VERSION, ...(engine ? { engine } : {}) },
            ...{ pulse, clock, log },
            onJoined: resolve,
            onRefused: fail,
          });
        });
        await Promise.all([joined, whole]);
        return {
          name: member.name,
          address,
          ...(engine ? { device: engine.device } : {}),
          ...(model ? { model } : {}),
        };
      },
      finish: async (untilMs) => {
        const finishing = finish(untilMs);
        // What it says of itself now is that it drains.
        cluster?.heartbeat();
        await finishing;
      },
      leave: () => {
        cluster?.leave();
      },
      close,
    };
  });
}
