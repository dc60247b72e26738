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

/** Number of the SERVING status in the standard health protocol. */
const SERVING = 1;

/** Handlers and life-cycle steps of a role, built once the process's address is known. */
export interface LifeBody {
  readonly handlers: Handlers;
  /** Becomes known to whom it serves; resolves when it serves whole. @throws Error what keeps it from it. */
  join(): Promise<Ready>;
  /** Finishes what runs and takes nothing new. */
  finish(untilMs: number): Promise<void>;
  /** Announces to peers that this process leaves, and closes the bus. */
  leave(): void;
  /** Releases the role's resources; called after the server has closed, when no call can arrive. */
  close(): Promise<void>;
}

/** Listening address and shutdown grace of a process. */
export interface LifeOptions {
  readonly bind: string;
  /** Calls that are still open at the end have so long. */
  readonly shutdownGraceMs: number;
}

/** Listener of a process that has not joined its cluster yet. */
export interface Bound {
  readonly address: string;
  /** Sets the status that health checks receive. */
  readonly setServing: (isServing: boolean) => void;
}

/**
 * Listens, builds the role, joins, and returns the running role. Calls that arrive before `build` is done fail with `instance_lost`.
 * @throws Error when listening, building or joining fails.
 */
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
