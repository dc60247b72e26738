/**
 * Role of prefill and decode processes: an engine that serves its blocks and both calls. Its role name only decides what routers place
 * on it.
 */
import type { Clock } from '../base/clock.ts';
import { ConfigError } from '../base/options.ts';
import type { Model } from '../model/model_folder.ts';
import { openModel } from '../model/open_model.ts';
import { DecodeServer } from '../net/decode/served_decodes.ts';
import { createFetchHandlers } from '../net/fetch/fetch_server.ts';
import { forgetHandler } from '../net/forget_handler.ts';
import { answering, type Handlers } from '../net/network.ts';
import type { DescribePage } from '../protocol/messages.ts';
import { factPages, type ModelFacts } from '../protocol/model_facts.ts';
import { subjects } from '../protocol/membership.ts';
import { startDecode } from './decode_call.ts';
import { createEmbedHandler } from './embed_call.ts';
import { EngineInstance, type EngineInstanceOptions } from './engine_instance.ts';
import { liveAsMember, type ClusterSeat, type RoleBody } from '../node/member_life.ts';
import type { EngineConfig } from '../node/options.ts';
import { startPrefill } from './prefill_call.ts';
import type { RoleContext, RunningRole } from '../node/role.ts';

/** Milliseconds between checks for running sequences while draining. */
const DRAIN_POLL_MS = 50;
const SHUTDOWN_GRACE_MS = 1_000;
const GOODBYE_MS = 20;

/** Starts an engine process: loads the model, joins the cluster and serves Prefill, Decode, Embed and block calls. */
export function startEngineRole(context: RoleContext<EngineConfig>): Promise<RunningRole> {
  const { block_size: blockSize } = context.config;
  return liveAsMember(context, SHUTDOWN_GRACE_MS, (seat) => build(context, seat), { blockSize });
}

async function build(context: RoleContext<EngineConfig>, seat: ClusterSeat): Promise<RoleBody> {
  if (context.config.model.includes(','))
    throw new ConfigError('--model names several models, but an instance serves one: start an instance for each model');
  const { config, clock, log, fail, die } = context;
  let stop: () => Promise<void> = () => Promise.resolve();
  const instance = await EngineInstance.start({
    ...context,
    engine: engineOf(config),
    stepTimeoutMs: config.step_timeout_ms,
    dramBytes: config.dram_bytes,
    transfer: config,
    ...(context.showLoading ? { onLoading: context.showLoading } : {}),
    // The engine or its device is gone: the supervisor starts a process with a fresh device.
    onDeath: (error) => {
      seat.sendGoodbye();
      // Wait until the goodbye is sent and the threads have stopped: a step that still runs must not be cut off.
      void Promise.all([clock.sleep(GOODBYE_MS), stop()]).finally(() => {
        fail(error);
      });
    },
    onHang: (error) => {
      seat.sendGoodbye();
      log.error({ error: error.message }, 'the instance ends');
      // The thread that hangs is not waited for: it would not end.
      void clock.sleep(GOODBYE_MS).then(die);
    },
  });
  stop = () => instance.stop();
  instance.attach({
    member: seat.member,
    publishBlocks: (batch) => {
      seat.publish(subjects.blocks, batch);
    },
    stores: seat.stores,
    onLoadChanged: seat.loadChanged,
  });
  const { counters, ...blocks } = createFetchHandlers(() => instance.outbox, {
    maxStreams: instance.maxFetchStreams,
    channels: instance.channelHost,
    limits: context.limits?.transfer,
  });
  const { format, layout, maxModelLen, vocabSize, modelConfig, modelName, device, loadMs } = instance.info;
  const { state } = layout.spec;
  const named = {
    ...(modelName === undefined ? {} : { modelName }),
    ...(state ? { stateBytes: state.slotBytes } : {}),
  };
  const calls = new DecodeServer(clock, startDecode(instance, context), startPrefill(instance, context));
  log.info({ device, loadMs: Math.round(loadMs) }, 'loaded');
  return {
    handlers: {
      ...blocks,
      ...engineHandlers(instance, calls),
      describe: answering<'describe'>(() => describe(config.model, { modelName, modelConfig, maxModelLen })),
    },
    engine: { format, modelConfig, numericsClass: layout.numericsClass, maxModelLen, vocabSize, device, ...named },
    model: config.model,
    heartbeatStatus: () => instance.heartbeatStatus(counters.openStreams),
    finish: (untilMs) => finish(instance, calls, clock, untilMs),
    close: () => instance.stop(),
  };
}

/** Returns the handlers of calls that compute, and of the one that deletes blocks. */
function engineHandlers(instance: EngineInstance, calls: DecodeServer): Handlers {
  return {
    decode: calls.handler,
    ...createEmbedHandler(instance),
    forget: forgetHandler((tenant, signal) => instance.forget(tenant, signal)),
  };
}

/** Drains the instance: resolves when its last sequence has ended and its last offer is answered, or at `untilMs`. */
async function finish(instance: EngineInstance, calls: DecodeServer, clock: Clock, untilMs: number): Promise<void> {
  instance.isDraining = true;
  while (instance.numSequences > 0 && clock.nowMs() < untilMs) await clock.sleep(DRAIN_POLL_MS);
  calls.close();
  await Promise.race([instance.offersDrained(), clock.sleep(Math.max(0, untilMs - clock.nowMs()))]);
}

function engineOf(config: EngineConfig): EngineInstanceOptions['engine'] {
  return {
    model: {
      modelPath: config.model,
      device: config.device,
      kernelSet: config.kernel_set,
      products: config.products,
      weightFormat: config.weights,
      deviceMemoryBytes: config.device_memory,
      deviceSharing: config.device_sharing,
      kvDtype: config.kv_dtype,
      isMixingNumerics: config.mix_numerics,
      blockSize: config.block_size,
      numBlocks: config.kv_blocks,
      numStateSlots: config.state_slots,
      numThreads: config.threads,
      chunkTokens: config.chunk_tokens,
      maxNumSeqs: config.max_num_seqs,
      maxModelLen: config.max_model_len,
    },
    maxWaiting: config.max_waiting,
    queueOrder: config.queue_order,
    fairShares: config.fair_shares === 'on',
    stateInterval: config.state_interval,
    stepMs: config.step_ms,
    tbtTargetMs: config.tbt_target_ms,
    loseDeviceAfterSteps: config.lose_device_after_steps,
    hangAfterSteps: config.hang_after_steps,
  };
}

async function* describe(path: string, loaded: Loaded): AsyncGenerator<DescribePage> {
  yield* factPages(await factsOf(await openModel(path), loaded));
}

/** Facts about a model that the instance determined when it loaded the model. */
interface Loaded {
  readonly modelName: string | undefined;
  readonly modelConfig: string;
  readonly maxModelLen: number;
}

/** Returns the facts that a router without the model's files requests: name, sizes, end tokens, defaults and texts. */
async function factsOf(model: Model, { modelName, modelConfig, maxModelLen }: Loaded): Promise<ModelFacts> {
  const { name, config, eosTokenIds, defaults } = model;
  const texts = await model.readTexts();
  return {
    name: modelName ?? name,
    vocabSize: config.vocabSize,
    modelConfig,
    maxModelLen,
    eosTokenIds: [...eosTokenIds],
    defaults,
    ...(texts ? { texts } : {}),
  };
}
