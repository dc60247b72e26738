/**
 * Life cycle that all roles share:
 *
 *   bind ──► build ──► join ──► (serve) ──► drain
 *
 * A process listens before it builds its role, because its address is part of its name. No peer knows the address before the process
 * has joined.
 */
import type { Clock } from '../base/clock.ts';
import { Failure } from '../base/failure.ts';
import type { Tracing } from '../base/tracing/tracing.ts';
import { answeringOnce, type CallName, type Handler, type Handlers } from '../net/network.ts';
import type { Role } from '../protocol/membership.ts';
import type { Ready, RoleContext, RunningRole } from './role.ts';
import { traced } from './traced_handlers.ts';

/** Number of the SERVING status in the standard health protocol. */
const SERVING = 1;

/** Handlers and life-cycle steps of a role, built once the process's address is known. */
export interface LifeBody {
  readonly handlers: Handlers;
  /** Returns the process's own series as Prometheus text, for `--metrics-bind`. */
  readonly metrics: () => Promise<string>;
  /** Announces the process to its peers; resolves when the process serves completely. @throws Error when the process cannot join. */
  join(): Promise<Ready>;
  /** Stops accepting work; resolves when running work has ended, or at `untilMs` (clock milliseconds). */
  finish(untilMs: number): Promise<void>;
  /** Announces to peers that this process leaves, and closes the bus. */
  leave(): void;
  /** Releases the role's resources; called after the server has closed, when no call can arrive. */
  close(): Promise<void>;
}

/** Listening address and shutdown grace of a process. */
export interface LifeOptions {
  readonly bind: string;
  /** Milliseconds that open calls may still take when the server closes. */
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
  const { role, config, network, clock, drain, identity, log, tracing } = context;
  let body: LifeBody | undefined;
  const handlers = (): Handlers | undefined => body?.handlers;
  const spans = tracing && { tracing, clock };
  const all: Required<Handlers> = {
    openChannel: delegate('openChannel', role, handlers),
    fetch: delegate('fetch', role, handlers, spans),
    snapshot: delegate('snapshot', role, handlers),
    offer: delegate('offer', role, handlers, spans),
    embed: delegate('embed', role, handlers, spans),
    decode: delegate('decode', role, handlers),
    connect: delegate('connect', role, handlers),
    describe: delegate('describe', role, handlers),
    policy: delegate('policy', role, handlers),
    forget: delegate('forget', role, handlers),
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
  const metrics = config.metrics_bind === '' ? undefined : await context.serveMetrics(config.metrics_bind, own.metrics);
  if (metrics) log.info({ url: metrics.url }, 'serving the metrics of this process');
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
      await metrics?.close();
      network.close();
    },
  };
}

/**
 * Returns a handler that forwards call `name` to the role's handler. Throws Failure `instance_lost` while the role is being built, and
 * `invalid_request` when the role does not serve the call. With `spans`, calls are traced.
 */
function delegate<M extends CallName>(
  name: M,
  role: Role,
  handlers: () => Handlers | undefined,
  spans?: { readonly tracing: Tracing; readonly clock: Clock },
): Handler<M> {
  return (requests, call) => {
    const all = handlers();
    if (!all) throw new Failure('instance_lost', 'this process is still starting');
    const handler = all[name];
    if (!handler) throw new Failure('invalid_request', `a ${role} instance does not serve ${name}`);
    return (spans ? traced(name, handler, spans) : handler)(requests, call);
  };
}
