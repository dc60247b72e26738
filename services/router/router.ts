/** Start-up and drain of the router: hub first, so that instances find it, then HTTP. */
import { setMaxListeners } from 'node:events';
import { Failure } from '../../shared/base/failure.ts';
import { EmbeddedHub } from '../../shared/bus/embedded_hub.ts';
import type { RoleContext, RunningRole } from '../../shared/instance/role.ts';
import { configDigest, readModelFolder } from '../../shared/model/model_folder.ts';
import { servedLength } from '../../shared/model/served_length.ts';
import { Bodies } from './bodies.ts';
import { createCore } from './core.ts';
import { createHttpServer, listenHttp } from './http_server.ts';
import { RouterMetrics } from './metrics.ts';
import { RequestLog } from './request_log.ts';
import { TextCodec } from './text.ts';

const SHUTDOWN_GRACE_MS = 500;
const DRAIN_POLL_MS = 20;

export async function startRouter(context: RoleContext): Promise<RunningRole> {
  const { config, network, threads, clock, random, newId, log, fail } = context;
  const folder = readModelFolder(config.model);
  const ownLength = servedLength(folder, config.max_model_len);
  const codec = await TextCodec.open(folder, ownLength, threads, fail);
  const stopped = new AbortController();
  const hub = new EmbeddedHub(log);
  let onFailover: () => void = () => undefined;
  const { view, index, conductor, relay } = createCore(context, {
    hub,
    vocabSize: folder.config.vocabSize,
    modelConfig: configDigest(folder.config),
    signal: stopped.signal,
    onFailover: () => {
      onFailover();
    },
  });
  const servedName = config.served_model_name || folder.name;
  const metrics = new RouterMetrics(servedName, view, index);
  const requests = new RequestLog(clock, (record) => {
    metrics.observeRequest(record);
  });
  const maxModelLen = (): number => Math.min(ownLength, view.maxModelLen ?? ownLength);
  const bodies = new Bodies(
    config.max_body_bytes,
    ownLength,
    () => ({
      vocabSize: folder.config.vocabSize,
      maxModelLen: maxModelLen(),
      isStrict: config.strict_parameters,
    }),
    threads,
    fail,
  );
  onFailover = () => {
    metrics.failovers.inc();
  };
  let isDraining = false;
  const ending = new AbortController();
  // One listener per request in flight, taken away when it ends.
  setMaxListeners(0, ending.signal);
  const app = createHttpServer({
    context: {
      ...{ servedName, folder, bodies, codec, relay, requests, metrics, clock, newId, maxModelLen },
      maxRequests: config.max_requests,
      maxConnections: config.max_connections,
      requestTimeoutMs: config.request_timeout_ms,
      bodyTimeoutMs: config.body_timeout_ms,
      stalledReaderMs: config.stalled_reader_ms,
      drawSeed: () => random.u32(),
      isDraining: () => isDraining,
      ending: ending.signal,
    },
    ...{ conductor, view, index },
  });

  const listener = await network.listen(config.hub_bind, { connect: hub.connect });
  const bind = config.bind || '127.0.0.1:8000';
  const url = await listenHttp(app, bind);
  const hubAddress = listener.address;
  log.info({ url, hub: hubAddress, model: servedName }, 'listening');

  return {
    ready: { name: config.name || 'router', address: config.advertise || hubAddress, url, model: config.model },
    drain: async () => {
      isDraining = true;
      const untilMs = clock.nowMs() + config.drain_timeout_ms;
      const isBusy = (): boolean => requests.numActive > 0 || requests.numAnswering > 0;
      while (isBusy() && clock.nowMs() < untilMs) await clock.sleep(DRAIN_POLL_MS);
      ending.abort(new Failure('overloaded', 'the router ended before the request did'));
      // Streams say so to their clients before their connections close.
      while (isBusy() && clock.nowMs() < untilMs + SHUTDOWN_GRACE_MS) await clock.sleep(DRAIN_POLL_MS);
      await app.close();
      stopped.abort();
      hub.close();
      await listener.close(SHUTDOWN_GRACE_MS);
      network.close();
      await Promise.all([codec.close(), bodies.close()]);
    },
  };
}
