/** The router role: what it knows of its cluster, the API, and the face that shows them; hub of the bus where no server is. */
import { setMaxListeners } from 'node:events';
import { Failure, messageOf } from '../../shared/base/failure.ts';
import { ClusterBus } from '../../shared/bus/cluster_bus.ts';
import { EmbeddedHub } from '../../shared/bus/embedded_hub.ts';
import { live, type Bound, type LifeBody } from '../../shared/node/life.ts';
import type { RoleContext, RunningRole } from '../../shared/node/role.ts';
import { shapeOf } from '../../shared/engine/architectures/registry.ts';
import { openModel } from '../../shared/model/open_model.ts';
import { decodeAnswer, encodeAnswer } from '../../shared/protocol/answers.ts';
import { subjects } from '../../shared/protocol/membership.ts';
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
const HUB = '127.0.0.1:8001';
const ANY_PORT = '127.0.0.1:0';

/** What a router shows: the API, and a look inside. */
export interface Face extends Omit<RouterCore, 'relay'> {
  readonly context: ApiContext;
  readonly config: RouterConfig;
  readonly bus: ClusterBus;
}

/** HTTP is a driver: whoever listens shows the face to clients. @throws Error naming the address. */
export type ListenFace = (
  bind: string,
  face: Face,
) => Promise<{ readonly url: string; readonly close: () => Promise<void> }>;

export function startRouter(context: RoleContext<RouterConfig>, listenFace: ListenFace): Promise<RunningRole> {
  const { config } = context;
  return live(
    context,
    { bind: config.hub_bind || (context.openBus ? ANY_PORT : HUB), shutdownGraceMs: SHUTDOWN_GRACE_MS },
    (bound) => build(context, bound, listenFace),
  );
}

async function build(
  context: RoleContext<RouterConfig>,
  { address }: Bound,
  listenFace: ListenFace,
): Promise<LifeBody> {
  const { config, threads, clock, random, newId, log, fail } = context;
  const folder = await openModel(config.model);
  const shape = shapeOf(folder);
  const modelConfig = shapeDigest(shape);
  const ownLength = servedLength(shape, config.max_model_len);
  const codec = await TextCodec.open(folder, ownLength, threads, fail);
  const stopped = new AbortController();
  const ending = new AbortController();
  // One listener per request in flight, taken away when it ends.
  setMaxListeners(0, ending.signal);
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
  const { cluster, cluster_token: token } = config;
  const bus = new ClusterBus(server ?? hub, { cluster, token, clock, log });
  let metrics: RouterMetrics | undefined;
  const { view, index, conductor, relay } = createCore(context, {
    bus,
    name,
    vocabSize: folder.config.vocabSize,
    modelConfig,
    signal: stopped.signal,
    onFailover: () => metrics?.failovers.inc(),
  });
  const servedName = config.served_model_name || folder.name;
  metrics = new RouterMetrics(servedName, { view, index, bus }, log);
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
  const onGenerated = (prompt: Uint32Array, generated: readonly number[]): void => {
    codec.remember(prompt, generated).then(
      (answer) => {
        const message = answer && encodeAnswer({ model: modelConfig, ...answer });
        if (message) bus.publish(subjects.answers, message);
      },
      // The thread is gone, and the router with it.
      () => undefined,
    );
  };
  bus.subscribe(subjects.answers, (bytes) => {
    try {
      const { model, ...answer } = decodeAnswer(bytes);
      if (model === modelConfig) codec.learn(answer);
    } catch (error) {
      log.warn({ error: messageOf(error) }, 'an answer that cannot be read');
    }
  });
  const api: ApiContext = {
    ...{ servedName, folder, bodies, codec, relay, requests, metrics, clock, newId, maxModelLen, onGenerated },
    admission,
    requestTimeoutMs: config.request_timeout_ms,
    stalledReaderMs: config.stalled_reader_ms,
    drawSeed: () => random.u32(),
    ending: ending.signal,
  };
  let closeFace: () => Promise<void> = () => Promise.resolve();
  return {
    handlers: server ? {} : { connect: hub.connect },
    join: async () => {
      const bind = config.bind || '127.0.0.1:8000';
      const face = await listenFace(bind, { context: api, config, conductor, view, index, bus });
      closeFace = face.close;
      const where = server ? `bus ${server.name}` : `hub ${address}`;
      log.info({ url: face.url, bus: where, model: servedName }, 'listening');
      return { name, address: config.advertise || address, bus: where, url: face.url, model: config.model };
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
      view.leave();
      stopped.abort();
      bus.close();
    },
    close: async () => {
      await Promise.all([codec.close(), bodies.close()]);
    },
  };
}
