/**
 * The life of every process that joins a cluster, once for all roles:
 *
 *   bind ──► build ──► join ──► (serve) ──► drain
 *
 * It listens first, because its address is part of its name; nobody knows that address before it has joined.
 */
import { Failure } from '../base/failure.ts';
import { answeringOnce, type CallName, type Handler, type Handlers } from '../net/network.ts';
import type { Load, Member, Registration, Role } from '../protocol/membership.ts';
import { PROTOCOL_VERSION } from '../protocol/messages.ts';
import { ClusterMember } from './cluster_member.ts';
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
  readonly load: () => Load;
  /** It serves as soon as it has joined; whole it is when this resolves. */
  readonly whole?: Promise<unknown>;
  /** Finishes what runs and takes nothing new. */
  readonly finish: (untilMs: number) => Promise<void>;
  /** Nothing can be asked of it any more. */
  readonly close: () => Promise<void>;
}

const BIND = '127.0.0.1:0';

export async function liveAsMember(
  context: RoleContext,
  shutdownGraceMs: number,
  build: (place: Place) => Promise<RoleBody>,
): Promise<RunningRole> {
  const { role, config, network, identity, clock, log, fail, drain } = context;
  let body: RoleBody | undefined;
  let cluster: ClusterMember | undefined;
  const handlers = (): Handlers | undefined => body?.handlers;
  const listener = await network.listen(config.bind || BIND, {
    fetch: delegate('fetch', role, handlers),
    snapshot: delegate('snapshot', role, handlers),
    offer: delegate('offer', role, handlers),
    prefill: delegate('prefill', role, handlers),
    decode: delegate('decode', role, handlers),
    drain: answeringOnce<'drain'>(() => {
      drain();
      return {};
    }),
  });
  const address = config.advertise || listener.address;
  const member: Member = { ...identity, name: config.name || `${role}@${address}`, role, address };
  body = await build({
    member,
    publish: (subject, payload) => {
      cluster?.bus.publish(subject, payload);
    },
    stores: () => cluster?.membersOf('store') ?? [],
    sayGoodbye: () => {
      listener.setServing(false);
      cluster?.leave();
    },
  });
  const { engine, load, finish, close } = body;
  let hasJoined: () => void = () => undefined;
  const joined = new Promise<void>((resolve) => {
    hasJoined = resolve;
  });
  log.info({ address, hub: config.join }, 'ready to serve, joining');
  cluster = new ClusterMember({
    join: config.join,
    registration: { member, protocolVersion: PROTOCOL_VERSION, ...(engine ? { engine } : {}) },
    ...{ load, network, clock, log },
    onJoined: hasJoined,
    onRefused: fail,
  });
  const own = cluster;
  await Promise.all([joined, body.whole]);
  listener.setServing(true);
  return {
    ready: { name: member.name, address, ...(engine ? { device: engine.device, model: config.model } : {}) },
    drain: async () => {
      listener.setServing(false);
      const finishing = finish(clock.nowMs() + config.drain_timeout_ms);
      // What it says of itself now is that it drains.
      own.heartbeat();
      await finishing;
      own.leave();
      await listener.close(shutdownGraceMs);
      await close();
      network.close();
    },
  };
}

/** Bound before there is anything behind it: then it is as good as lost. What a role does not serve is refused by name. */
function delegate<M extends CallName>(name: M, role: Role, handlers: () => Handlers | undefined): Handler<M> {
  return async function* (requests, call) {
    const all = handlers();
    if (!all) throw new Failure('instance_lost', 'this process is still starting');
    const handler = all[name];
    if (!handler) throw new Failure('invalid_request', `a ${role} instance does not serve ${name}`);
    yield* handler(requests, call);
  };
}
