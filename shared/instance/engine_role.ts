/**
 * Start-up and drain of an engine-owning role, prefill or decode: load the model, listen, join, say that it is ready.
 */
import type { handleUnaryCall, ServiceDefinition, UntypedServiceImplementation } from '@grpc/grpc-js';
import { HealthImplementation } from 'grpc-health-check';
import type { Clock } from '../base/clock.ts';
import { Failure } from '../base/failure.ts';
import { newId } from '../base/identity.ts';
import { createFetchHandlers, type FetchServerCounters } from '../net/fetch_server.ts';
import { PROTOCOL_VERSION, type OfferReply, type OfferRequest } from '../protocol/messages.ts';
import { subjects, type Member } from '../protocol/membership.ts';
import { createServer, listen, Peers, services, shutDown, toStatus } from '../protocol/rpc.ts';
import { ClusterMember } from './cluster_member.ts';
import { EngineInstance } from './engine_instance.ts';
import type { RoleContext, RunningRole } from './role_process.ts';

/** A role's own gRPC service. */
export interface EngineService {
  readonly definition: ServiceDefinition;
  readonly handlers: UntypedServiceImplementation;
}

/** Looked at this often while draining. */
const DRAIN_POLL_MS = 50;
const SHUTDOWN_GRACE_MS = 1_000;
const GOODBYE_MS = 20;

export async function startEngineRole(
  context: RoleContext,
  createService: (instance: EngineInstance, context: RoleContext) => EngineService,
): Promise<RunningRole> {
  const { role, config, clock, log, fail, drain } = context;
  const peers = new Peers(config.cluster_token, clock);
  let sayGoodbye: () => void = () => undefined;
  let stop: () => Promise<void> = () => Promise.resolve();
  const instance = await EngineInstance.start({
    engine: {
      model: {
        modelPath: config.model,
        device: config.device,
        kernelSet: config.kernel_set,
        weightFormat: config.weights,
        deviceMemoryBytes: config.device_memory,
        deviceSharing: config.device_sharing,
        kvDtype: config.kv_dtype,
        isMixingNumerics: config.mix_numerics,
        blockSize: config.block_size,
        numBlocks: config.kv_blocks,
        numThreads: config.threads,
        chunkTokens: config.chunk_tokens,
        maxNumSeqs: config.max_num_seqs,
        maxModelLen: config.max_model_len,
      },
      maxWaiting: config.max_waiting,
      loseDeviceAfterSteps: config.lose_device_after_steps,
      hangAfterSteps: config.hang_after_steps,
    },
    stepTimeoutMs: config.step_timeout_ms,
    dramBytes: config.dram_bytes,
    ...{ peers, clock, log },
    onDeath: (error) => {
      sayGoodbye();
      // A turn of the loop for the goodbye to leave; and whatever still computes must not be cut off.
      void Promise.all([clock.sleep(GOODBYE_MS), stop()]).finally(() => {
        fail(error);
      });
    },
    onHang: (error) => {
      sayGoodbye();
      log.error({ error: error.message }, 'the instance ends');
      void clock.sleep(GOODBYE_MS).then(() => {
        // The thread that hangs is not waited for: it would not end.
        process.kill(process.pid, 'SIGKILL');
      });
    },
  });

  stop = () => instance.stop();

  const server = createServer(config.cluster_token);
  const service = createService(instance, context);
  const health = new HealthImplementation({ '': 'NOT_SERVING' });
  const { port, counters } = await bindServices(
    server,
    instance,
    service,
    health,
    config.bind || '127.0.0.1:0',
    clock,
    drain,
  );
  const bindHost = (config.bind || '127.0.0.1:0').replace(/:\d+$/, '');
  const address = config.advertise || `${bindHost}:${port}`;
  const member: Member = { name: config.name || `${role}@${address}`, role, address, pid: process.pid, epoch: newId() };

  const { namespace, layout, maxModelLen, vocabSize, modelConfig, device } = instance.info;
  let hasJoined: () => void = () => undefined;
  const joined = new Promise<void>((resolve) => {
    hasJoined = resolve;
  });
  const cluster = new ClusterMember({
    join: config.join,
    registration: {
      member,
      protocolVersion: PROTOCOL_VERSION,
      engine: { namespace, modelConfig, numericsClass: layout.numericsClass, maxModelLen, vocabSize, device },
    },
    load: () => ({ ...instance.load(), openStreams: counters.openStreams }),
    ...{ peers, clock, log },
    onJoined: hasJoined,
    onRefused: fail,
  });
  // The engine or its device is gone: the router is told at once, what runs here goes on elsewhere, and the supervisor starts a
  // process with a fresh device.
  sayGoodbye = () => {
    health.setStatus('', 'NOT_SERVING');
    cluster.leave();
  };
  instance.attach({
    member,
    publishBlocks: (batch) => {
      cluster.bus.publish(subjects.blocks, batch);
    },
    stores: () => cluster.membersOf('store'),
  });
  log.info({ address, hub: config.join, device, loadMs: Math.round(instance.info.loadMs) }, 'loaded, joining');
  await joined;
  health.setStatus('', 'SERVING');

  return {
    ready: { name: member.name, address, device, model: config.model },
    drain: async () => {
      instance.isDraining = true;
      health.setStatus('', 'NOT_SERVING');
      cluster.heartbeat();
      const untilMs = clock.nowMs() + config.drain_timeout_ms;
      while (instance.numSequences > 0 && clock.nowMs() < untilMs) await clock.sleep(DRAIN_POLL_MS);
      await Promise.race([instance.offersSettled(), clock.sleep(Math.max(0, untilMs - clock.nowMs()))]);
      cluster.leave();
      await shutDown(server, clock, SHUTDOWN_GRACE_MS);
      await instance.stop();
      peers.close();
    },
  };
}

async function bindServices(
  server: ReturnType<typeof createServer>,
  instance: EngineInstance,
  service: EngineService,
  health: HealthImplementation,
  bind: string,
  clock: Clock,
  drain: () => void,
): Promise<{ port: number; counters: FetchServerCounters }> {
  server.addService(service.definition, service.handlers);
  // The outbox exists once the instance is attached; until then nobody knows this address.
  const { fetch, snapshot, counters } = createFetchHandlers(() => instance.outbox, {
    maxStreams: instance.maxFetchStreams,
    clock,
  });
  const offer: handleUnaryCall<OfferRequest, OfferReply> = (_call, reply) => {
    reply(toStatus(new Failure('invalid_request', 'only stores take offers')));
  };
  const drainNow: handleUnaryCall<object, object> = (_call, reply) => {
    reply(null, {});
    drain();
  };
  server.addService(services.blocks, { fetch, snapshot, offer });
  server.addService(services.admin, { drain: drainNow });
  health.addToServer(server);
  return { port: await listen(server, bind), counters };
}
