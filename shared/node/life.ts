/**
 * The life of every process, once for all roles:
 *
 *   bind ──► build ──► join ──► (serve) ──► drain
 *
 * It listens first, because its address is part of its name; nobody knows that address before it has joined.
 */
import { Failure } from '../base/failure.ts';
import { answeringOnce, type CallName, type Handler, type Handlers } from '../net/network.ts';
import type { Role } from '../protocol/membership.ts';
import type { Ready, RoleContext, RunningRole } from './role.ts';

/** As the standard health service numbers it. */
const SERVING = 1;

/** What a role is made of, built once its address is known. */
export interface LifeBody {
  readonly handlers: Handlers;
  /** Becomes known to whom it serves; resolves when it serves whole. @throws Error what keeps it from it. */
  join(): Promise<Ready>;
  /** Finishes what runs and takes nothing new. */
  finish(untilMs: number): Promise<void>;
  /** Whom it served is told that it goes. */
  leave(): void;
  /** Nothing can be asked of it any more. */
  close(): Promise<void>;
}

export interface LifeOptions {
  readonly bind: string;
  /** Calls that are still open at the end have so long. */
  readonly shutdownGraceMs: number;
}

/** Where it listens, before it is known. */
export interface Bound {
  readonly address: string;
  /** What health checks hear. */
  readonly setServing: (isServing: boolean) => void;
}

export async function live(
  context: RoleContext,
  { bind, shutdownGraceMs }: LifeOptions,
  build: (bound: Bound) => Promise<LifeBody>,
): Promise<RunningRole> {
  const { role, config, network, clock, drain, identity } = context;
  let body: LifeBody | undefined;
  const handlers = (): Handlers | undefined => body?.handlers;
  const all: Required<Handlers> = {
    openChannel: delegate('openChannel', role, handlers),
    fetch: delegate('fetch', role, handlers),
    snapshot: delegate('snapshot', role, handlers),
    offer: delegate('offer', role, handlers),
    prefill: delegate('prefill', role, handlers),
    decode: delegate('decode', role, handlers),
    connect: delegate('connect', role, handlers),
    describe: delegate('describe', role, handlers),
    check: answeringOnce<'check'>(({ service }) => {
      if (service !== '' && service !== identity.epoch) throw new Failure('not_found', 'this is another process');
      return { status: SERVING };
    }),
    drain: answeringOnce<'drain'>(() => {
      drain();
      return {};
    }),
  };
  const listener = await network.listen(bind, all, identity.epoch);
  const setServing = (isServing: boolean): void => {
    listener.setServing(isServing);
  };
  body = await build({ address: listener.address, setServing });
  const own = body;
  const ready = await own.join();
  setServing(true);
  return {
    ready,
    drain: async () => {
      setServing(false);
      await own.finish(clock.nowMs() + config.drain_timeout_ms);
      own.leave();
      await listener.close(shutdownGraceMs);
      await own.close();
      network.close();
    },
  };
}

/** Bound before there is anything behind it: then it is as good as lost. What a role does not serve is refused by name. */
function delegate<M extends CallName>(name: M, role: Role, handlers: () => Handlers | undefined): Handler<M> {
  return (requests, call) => {
    const all = handlers();
    if (!all) throw new Failure('instance_lost', 'this process is still starting');
    const handler = all[name];
    if (!handler) throw new Failure('invalid_request', `a ${role} instance does not serve ${name}`);
    return handler(requests, call);
  };
}
