/** The router role: cluster state, the OpenAI API, and the HTTP server in front. Hosts the bus hub when no bus server is configured. */
import { setMaxListeners } from 'node:events';
import { every } from '../../shared/base/clock.ts';
import type { Current } from '../../shared/base/current.ts';
import { Failure } from '../../shared/base/failure.ts';
import type { Log } from '../../shared/base/log.ts';
import { ClusterBus } from '../../shared/bus/cluster_bus.ts';
import { EmbeddedHub } from '../../shared/bus/embedded_hub.ts';
import { shapeOf } from '../../shared/engine/architectures/registry.ts';
import { shapeDigest } from '../../shared/model/model_shape.ts';
import { openModel } from '../../shared/model/open_model.ts';
import { servedLength } from '../../shared/model/served_length.ts';
import { answeringOnce, type Handler, type Handlers } from '../../shared/net/network.ts';
import type { ServerTexts } from '../../shared/net/tls_texts.ts';
import { live, type Bound, type LifeBody } from '../../shared/node/life.ts';
import type { Ready, RoleContext, RunningRole } from '../../shared/node/role.ts';
import type { ModelFacts } from '../../shared/protocol/model_facts.ts';
import type { LoggedDecision } from '../../shared/placement/decision_log.ts';
import type { Admission } from './conductor/admission.ts';
import { serveForget } from './cluster/forget_tenant.ts';
import type { PolicyInForce } from './conductor/policy_in_force.ts';
import { policyNames } from '../../shared/placement/policy_registry.ts';
import type { LinkSnapshot } from '../../shared/placement/policy.ts';
import { createCore, type RouterCore } from './core.ts';
import { Models } from './cluster/models.ts';
import type { ApiContext } from './api/api_context.ts';
import { openAccess, refuseOpenApi, type Access } from './access/open_access.ts';
import type { OnRequestEnd } from './record/request_outcome.ts';
import { openAccounts } from './request_accounts.ts';
import { Observer } from './observe/observer.ts';
import { Exposition } from './metrics/exposition.ts';
import type { RouterConfig } from './options.ts';
import { Surfaces } from './api/surfaces.ts';
import { surfaces as allSurfaces } from './surfaces/registry.ts';
import { ServedModels } from './served_models.ts';

const SHUTDOWN_GRACE_MS = 500;
/** Milliseconds between looks whether an instance that generates has joined. */
const SERVES_POLL_MS = 50;
const DRAIN_POLL_MS = 20;
/** Milliseconds without an instance after which a model is dropped, unless the router's own configuration names the model. */
const FORGET_MS = 600_000;
const CHECK_MODELS_MS = 10_000;
/** Milliseconds for which a router with limits waits for the bus, on which it hears how much others have let through. */
const HEAR_OTHERS_MS = 5_000;
const HUB = '127.0.0.1:8001';
const ANY_PORT = '127.0.0.1:0';

/** The router as the HTTP server sees it: the API, and the state behind health, metrics and `/api/*`. */
export interface HttpApp
  extends Pick<RouterCore, 'view' | 'index' | 'blocks' | 'policy' | 'losses' | 'limits'>, Access {
  /** Context of the first model. */
  readonly context: ApiContext;
  /** Returns the contexts of the models to list: configured ones, and others that have engines. */
  readonly contexts: () => ApiContext[];
  /** Returns the logged decisions of all models, the newest last. */
  readonly decisions: () => readonly LoggedDecision[];
  /** Returns the links of all models that were measured last. */
  readonly links: () => readonly LinkSnapshot[];
  /**
   * Returns the hardware of a model's engines for a replay, of the first model by default. @throws UnknownModel, and Failure while no
   * engine has said enough.
   */
  readonly hardware: (model: string | undefined) => Record<string, unknown>;
  /** Returns the number of placed requests whose blocks are promised at an instance (shared/placement/promised_blocks.ts). */
  readonly numPromised: () => number;
  /** The endpoints of the API. */
  readonly surfaces: Surfaces;
  readonly config: RouterConfig;
  readonly bus: ClusterBus;
  /** Text of `/metrics`. */
  readonly exposition: Exposition;
  /** Events, alarms and history of the cluster. */
  readonly observer: Observer;
  /** Address at which other processes reach this router. */
  readonly address: string;
  /** Certificate that clients are shown; undefined where HTTP is served without TLS. */
  readonly https: Current<ServerTexts> | undefined;
  readonly log: Log;
  /** Is told of each HTTP request when it has ended; undefined where nobody counts or logs them. */
  readonly onRequestEnd: OnRequestEnd | undefined;
}

/**
 * Starts the HTTP server on `bind`, which serves the app to clients; a parameter, so that tests can replace HTTP. Rejects with an
 * Error naming the address.
 */
export type ListenHttp = (
  bind: string,
  listening: HttpApp,
) => Promise<{ readonly url: string; readonly close: () => Promise<void> }>;

/**
 * Starts a router: serves the bus hub when there is no bus server, loads the models and listens for HTTP. Rejects with an Error when
 * the start fails.
 */
export function startRouter(context: RoleContext<RouterConfig>, listenHttp: ListenHttp): Promise<RunningRole> {
  const { config } = context;
  return live(
    context,
    { bind: config.hub_bind || (context.openBus ? ANY_PORT : HUB), shutdownGraceMs: SHUTDOWN_GRACE_MS },
    (bound) => build(context, bound, listenHttp),
  );
}

async function build(
  context: RoleContext<RouterConfig>,
  { address }: Bound,
  listenHttp: ListenHttp,
): Promise<LifeBody> {
  const { config, network, clock, log, fail, identity } = context;
  const bind = config.bind || '127.0.0.1:8000';
  refuseOpenApi(bind, config);
  const given = await Promise.all(config.model.split(',').map((path) => givenFacts(path, config)));
  const stopped = new AbortController();
  const ending = new AbortController();
  // Each request in flight and each requested model adds one listener and removes it at its end, so no fixed limit applies.
  setMaxListeners(0, ending.signal, stopped.signal);
  const name = config.name || 'router';
  const hub = new EmbeddedHub(log);
  const server = context.openBus?.({
    onConnected: () => {
      view.notice();
    },
    onDisconnected: (reason) => {
      log.warn({ bus: server?.name, reason }, 'lost the bus, trying again');
    },
    onRefused: fail,
  });
  const { clusterTokens: token, busEpoch: epoch } = context;
  const bus = new ClusterBus(server ?? hub, { cluster: config.cluster, token, epoch, clock, log });
  const models = new Models({ network, log, signal: stopped.signal, open: (facts) => serving.open(facts) });
  for (const facts of given) models.add(facts);
  const observer = new Observer({ clock, name, identity, historyBytes: config.history_bytes });
  const core = createCore(context, {
    bus,
    name,
    signal: stopped.signal,
    onEvent: observer.onEvent,
    onLookup: observer.reuse.look.bind(observer.reuse),
    admit: (registration) => models.admit(registration),
  });
  const { view, index, blocks, policy, losses, limits } = core;
  const givenNames = given.map((facts) => facts.name);
  const access = openAccess({ ...context, signal: stopped.signal }, givenNames);
  const accounts = await openAccounts(context, { access, view });
  const listeners = [observer.history, accounts.tenants];
  const serving = new ServedModels({ ...context, bus, listeners, core, ending: ending.signal });
  for (const facts of given) await serving.open(facts);
  forgetIdleModels({ clock, view, serving, models, log, givenNames, signal: stopped.signal });
  const seen = { view, index, bus, ...accounts };
  const exposition = new Exposition({ clock, ...seen, models: () => serving.metrics(givenNames) });
  let closeHttp: () => Promise<void> = () => Promise.resolve();
  return {
    metrics: () => exposition.text('router'),
    handlers: { ...(server ? {} : { connect: hub.connect }), ...adminHandlers(core, context, access) },
    join: async () => {
      if (access.isLimited) await limits?.share.begun(HEAR_OTHERS_MS);
      const { first, ...shown } = serving.shown(givenNames);
      const ownAddress = config.advertise || address;
      const surfaces = new Surfaces(allSurfaces, { clock, index, view });
      const api = { surfaces, config, limits, onRequestEnd: accounts.onRequestEnd, ...access };
      const own = { ...api, view, index, blocks, policy, losses, bus, observer, exposition, https: context.https, log };
      const { url, close } = await listenHttp(bind, { context: first, ...shown, ...own, address: ownAddress });
      closeHttp = close;
      const where = server ? `bus ${server.name}` : `hub ${address}`;
      observer.begin({ view, policy, bus, indexAlarms: serving.indexAlarms }, `${url}, ${where}`, stopped.signal);
      log.info({ url, bus: where, models: givenNames }, 'listening');
      const serves = generates(view, clock, stopped.signal);
      return { name, address: ownAddress, bus: where, url, model: config.model, serves };
    },
    finish: async (untilMs) => {
      await finishRequests({ admission: serving.admission, clock, ending }, untilMs);
      await closeHttp();
      await accounts.close();
    },
    leave: () => {
      view.leave();
      stopped.abort();
      bus.close();
    },
    close: async () => {
      await serving.close();
    },
  };
}

/** Parts of the router that end its requests. */
interface Finishing extends Pick<RoleContext, 'clock'> {
  readonly admission: Admission;
  readonly ending: AbortController;
}

/** Refuses further requests, and waits until `untilMs` for those that run; what is left then is ended with an error. */
async function finishRequests({ admission, clock, ending }: Finishing, untilMs: number): Promise<void> {
  admission.drain();
  while (!admission.isIdle && clock.nowMs() < untilMs) await clock.sleep(DRAIN_POLL_MS);
  ending.abort(new Failure('overloaded', 'the router ended before the request did'));
  // Wait until streams have sent this failure to their clients, before the connections close.
  while (!admission.isIdle && clock.nowMs() < untilMs + SHUTDOWN_GRACE_MS) await clock.sleep(DRAIN_POLL_MS);
}

/** Returns a function that resolves when an instance that generates has joined, the router has stopped, or the caller waits no longer. */
function generates(
  view: RouterCore['view'],
  clock: RoleContext['clock'],
  stopped: AbortSignal,
): NonNullable<Ready['serves']> {
  const canServe = (): boolean => view.generating().some(({ isPlaceable }) => isPlaceable);
  return async (signal) => {
    const over = AbortSignal.any([stopped, signal]);
    while (!canServe() && !over.aborted) await clock.sleep(SERVES_POLL_MS, over);
  };
}

/** Parts of the router that know its models. */
interface ModelHolders extends Pick<RoleContext, 'clock' | 'log'> {
  readonly view: RouterCore['view'];
  readonly serving: ServedModels;
  readonly models: Models;
  readonly givenNames: readonly string[];
  readonly signal: AbortSignal;
}

/** Drops models that had no instances for FORGET_MS, until `signal` aborts; those that the router's own configuration names stay. */
function forgetIdleModels({ clock, view, serving, models, log, givenNames, signal }: ModelHolders): void {
  const idleMs = new Map<string, number>();
  every(clock, CHECK_MODELS_MS, signal, () => {
    for (const model of serving.names) {
      if (givenNames.includes(model)) continue;
      if (view.models.has(model)) idleMs.delete(model);
      else idleMs.set(model, (idleMs.get(model) ?? 0) + CHECK_MODELS_MS);
      if ((idleMs.get(model) ?? 0) < FORGET_MS) continue;
      // Drop everything about the model: its instances may return with another tokenizer.
      idleMs.delete(model);
      models.forget(model);
      serving.drop(model);
      log.info({ model }, 'no longer serving a model that has no instances');
    }
  });
}

/** Returns the handlers of calls by which an operator sets or deletes something in the whole cluster. */
function adminHandlers(
  { policy, view }: Pick<RouterCore, 'policy' | 'view'>,
  { network, log }: Pick<RoleContext, 'network' | 'log'>,
  { logIns }: Pick<Access, 'logIns'>,
): Pick<Handlers, 'policy' | 'forget'> {
  const sharesBlocks = (tenant: string): boolean => logIns?.keys.sharesBlocks(tenant) ?? tenant === '';
  return { policy: servePolicy(policy), forget: serveForget({ view, network, log, sharesBlocks }) };
}

/** Serves the call that sets the placement policy of all routers, or with an empty name only reports it. */
function servePolicy(policy: PolicyInForce): Handler<'policy'> {
  return answeringOnce<'policy'>(({ name }) => {
    const { name: chosen, ...state } = name === '' ? policy.state : policy.set(name);
    return { name: chosen, ...state, names: [...policyNames] };
  });
}

/** Reads the facts of a model from its local files. @throws ModelError when the files cannot be used. */
async function givenFacts(path: string, config: RouterConfig): Promise<ModelFacts & { readonly filesName: string }> {
  const model = await openModel(path);
  const shape = shapeOf(model);
  const texts = await model.readTexts();
  const isOnly = !config.model.includes(',');
  return {
    filesName: model.name,
    name: (isOnly && config.served_model_name) || model.name,
    vocabSize: model.config.vocabSize,
    modelConfig: shapeDigest(shape),
    maxModelLen: servedLength(shape, config.max_model_len),
    eosTokenIds: [...model.eosTokenIds],
    defaults: model.defaults,
    ...(texts ? { texts } : {}),
  };
}
