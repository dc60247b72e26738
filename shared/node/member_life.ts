/** The life of a process that is a member of a cluster: it joins by registering with the hub, and leaves with a goodbye. */
import type { Handlers } from '../net/network.ts';
import type { Load, Member, Registration } from '../protocol/membership.ts';
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
  readonly load: () => Load;
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
    const { handlers, engine, model, load, whole, finish, close } = await build({
      member,
      publish: (subject, payload) => {
        cluster?.bus.publish(subject, payload);
      },
      stores: () => cluster?.membersOf('store') ?? [],
      sayGoodbye: () => {
        bound.setServing(false);
        cluster?.leave();
      },
    });
    return {
      handlers,
      join: async () => {
        log.info({ address, hub: config.join }, 'ready to serve, joining');
        const joined = new Promise<void>((resolve) => {
          cluster = new ClusterMember({
            join: config.join,
            registration: { member, protocolVersion: PROTOCOL_VERSION, ...(engine ? { engine } : {}) },
            ...{ load, network, clock, log },
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
