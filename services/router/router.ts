/** The router role: hub of the embedded bus, what it knows of its cluster, the API; and the face that shows them. */
import { setMaxListeners } from 'node:events';
import { Failure } from '../../shared/base/failure.ts';
import { EmbeddedHub } from '../../shared/bus/embedded_hub.ts';
import { live, type Bound, type LifeBody } from '../../shared/node/life.ts';
import type { RoleContext, RunningRole } from '../../shared/node/role.ts';
import { shapeOf } from '../../shared/engine/architectures/registry.ts';
import { readModelFolder } from '../../shared/model/model_folder.ts';
import { shapeDigest } from '../../shared/model/model_shape.ts';
import { servedLength } from '../../shared/model/served_length.ts';
import { Bodies } from './openai/bodies.ts';
import { Admission } from './conductor/admission.ts';
import { createCore, type RouterCore } from './core.ts';
import { RouterMetrics } from './metrics.ts';
import type { ApiContext } from './openai/api_context.ts';
import type { RouterConfig } from './options.ts';
import { RequestLog } from './relay/request_log.ts';
import { TextCodec } from './text/text.ts';

const SHUTDOWN_GRACE_MS = 500;
const DRAIN_POLL_MS = 20;

/** What a router shows: the API, and a look inside. */
export interface Face extends Omit<RouterCore, 'relay'> {
  readonly context: ApiContext;
  readonly config: RouterConfig;
}

/** HTTP is a driver: whoever listens shows the face to clients. @throws Error naming the address. */
export type ListenFace = (
  bind: string,
  face: Face,
) => Promise<{ readonly url: string; readonly close: () => Promise<void> }>;

export function startRouter(context: RoleContext<RouterConfig>, listenFace: ListenFace): Promise<RunningRole> {
  const { config } = context;
  return live(context, { bind: config.hub_bind, shutdownGraceMs: SHUTDOWN_GRACE_MS }, (bound) =>
    build(context, bound, listenFace),
  );
}

async function build(
  context: RoleContext<RouterConfig>,
  { address }: Bound,
  listenFace: ListenFace,
): Promise<LifeBody> {
  const { config, threads, clock, random, newId, log, fail } = context;
  const folder = readModelFolder(config.model);
  const modelConfig = shapeDigest(shapeOf(folder));
  const ownLength = servedLength(folder, config.max_model_len);
  const codec = await TextCodec.open(folder, ownLength, threads, fail);
  const stopped = new AbortController();
  const ending = new AbortController();
  // One listener per request in flight, taken away when it ends.
  setMaxListeners(0, ending.signal);
  const hub = new EmbeddedHub(log);
  let metrics: RouterMetrics | undefined;
  const { view, index, conductor, relay } = createCore(context, {
    hub,
    vocabSize: folder.config.vocabSize,
    modelConfig,
    signal: stopped.signal,
    onFailover: () => metrics?.failovers.inc(),
  });
  const servedName = config.served_model_name || folder.name;
  metrics = new RouterMetrics(servedName, view, index, log);
  const observed = metrics;
  const requests = new RequestLog(clock, (record) => {
    observed.observeRequest(record);
  });
  const maxModelLen = (): number => Math.min(ownLength, view.maxModelLen ?? ownLength);
  const limits = (): { vocabSize: number; maxModelLen: number; isStrict: boolean } => ({
    vocabSize: folder.config.vocabSize,
    maxModelLen: maxModelLen(),
    isStrict: config.strict_parameters,
  });
  const bodies = new Bodies(config.max_body_bytes, ownLength, limits, threads, fail);
  const admission = new Admission(config.max_requests);
  const api: ApiContext = {
    ...{ servedName, folder, bodies, codec, relay, requests, metrics, clock, newId, maxModelLen },
    admission,
    requestTimeoutMs: config.request_timeout_ms,
    stalledReaderMs: config.stalled_reader_ms,
    drawSeed: () => random.u32(),
    ending: ending.signal,
  };
  let closeFace: () => Promise<void> = () => Promise.resolve();
  return {
    handlers: { connect: hub.connect },
    join: async () => {
      const bind = config.bind || '127.0.0.1:8000';
      const face = await listenFace(bind, { context: api, config, conductor, view, index });
      closeFace = face.close;
      log.info({ url: face.url, hub: address, model: servedName }, 'listening');
      const name = config.name || 'router';
      return { name, address: config.advertise || address, url: face.url, model: config.model };
    },
    finish: async (untilMs) => {
      admission.drain();
      while (!admission.isIdle && clock.nowMs() < untilMs) await clock.sleep(DRAIN_POLL_MS);
      ending.abort(new Failure('overloaded', 'the router ended before the request did'));
      // Streams say so to their clients before their connections close.
      while (!admission.isIdle && clock.nowMs() < untilMs + SHUTDOWN_GRACE_MS) await clock.sleep(DRAIN_POLL_MS);
      await closeFace();
    },
    leave: () => {
      stopped.abort();
      hub.close();
    },
    close: async () => {
      await Promise.all([codec.close(), bodies.close()]);
    },
  };
}
