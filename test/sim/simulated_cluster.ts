/**
 * A whole cluster in this process: a router's core, prefill, decode and store instances as production code, each on a simulated host
 * of its own.
 */
import assert from 'node:assert/strict';
import { silentLog } from '../../shared/base/log.ts';
import { readCommandLine, type Config } from '../../shared/base/options.ts';
import { Random } from '../../shared/base/random.ts';
import type { ThreadModule } from '../../shared/base/threads.ts';
import { EmbeddedHub } from '../../shared/bus/embedded_hub.ts';
import { engineModule } from '../../shared/engine/engine_host.ts';
import { EngineLoop } from '../../shared/engine/engine_loop.ts';
import type { EngineWorkerData, FromEngine } from '../../shared/engine/engine_messages.ts';
import { startEngineRole } from '../../shared/instance/engine_role.ts';
import type { DataFolders, Host, RoleContext } from '../../shared/instance/role.ts';
import { chainOf } from '../../shared/kv/block_key.ts';
import { moverModule } from '../../shared/kv/mover.ts';
import { start as startMoverThread } from '../../shared/kv/mover_worker.ts';
import { LAYOUT_VERSION, formatDigest, type Format } from '../../shared/kv/format.ts';
import { headerBytes, type RecordLayout } from '../../shared/kv/record.ts';
import type { Role } from '../../shared/protocol/membership.ts';
import type { OfferReply, OfferRequest } from '../../shared/protocol/messages.ts';
import { unpackLinks } from '../../shared/protocol/packing.ts';
import { createDecodeHandlers } from '../../services/decode/decode_service.ts';
import { createPrefillHandlers } from '../../services/prefill/prefill_service.ts';
import { createCore, type RouterCore } from '../../services/router/core.ts';
import { RequestLog } from '../../services/router/request_log.ts';
import { startStore } from '../../services/store/store.ts';
import { joinLiar, type Lie } from './liar.ts';
import { SIM_LAYERS, SIM_VOCAB, SimExecutable, simBlockBytes } from './simulated_device.ts';
import { SimDisk, SimDiskThread } from './simulated_disk.ts';
import { SimFabric } from './simulated_network.ts';
import { inlineThreads, type StartInline } from './simulated_threads.ts';
import { SimProcess, Simulation } from './simulation.ts';

const HUB = 'router:8001';
const MODEL_CONFIG = 'simulated';

/** What a seed fixes of a cluster. */
export interface Shape {
  readonly numPrefill: number;
  readonly numDecode: number;
  readonly numStores: number;
  readonly blockSize: number;
  readonly numBlocks: number;
  readonly chunkTokens: number;
  readonly maxNumSeqs: number;
  readonly maxModelLen: number;
  readonly dramSlots: number;
  readonly diskRecords: number;
  readonly localPrefillTokens: number;
  readonly stepMs: number;
}

/** A process, through its incarnations. */
export interface Node {
  readonly name: string;
  readonly role: Role;
  process: SimProcess;
  engine: { readonly loop: EngineLoop; readonly executable: SimExecutable } | undefined;
  readonly disk: SimDisk;
  /** Why the last incarnation said that it could not go on. */
  failure: string | undefined;
}

export class SimCluster {
  readonly simulation = new Simulation();
  readonly fabric: SimFabric;
  readonly nodes: Node[];
  readonly format: Format;
  readonly shape: Shape;
  readonly #random: Random;
  core!: RouterCore;
  requests!: RequestLog;
  router!: SimProcess;
  numFailovers = 0;
  /** Invariants that messages broke. */
  readonly faults: string[] = [];
  #nextEpoch = 1;
  #numPreemptionsBefore = 0;

  constructor(shape: Shape, random: Random) {
    this.shape = shape;
    this.#random = random;
    this.fabric = new SimFabric(this.simulation, new Random(random.u32()), (name, request, reply, server) => {
      if (name === 'offer') this.#checkOffer(request as OfferRequest, reply as OfferReply, server);
    });
    this.format = {
      ...{ model: MODEL_CONFIG, weightFormat: 'none', kvDtype: 'f32', layoutVersion: LAYOUT_VERSION },
      ...{ blockSize: shape.blockSize, numerics: 'simulated', shard: 'all' },
    };
    const named = (role: Role, count: number): Node[] =>
      Array.from({ length: count }, (_, i) => {
        const name = `${role}-${i + 1}`;
        const process = new SimProcess(name);
        process.isDead = true;
        return { name, role, process, engine: undefined, disk: new SimDisk(), failure: undefined };
      });
    this.nodes = [
      ...named('prefill', shape.numPrefill),
      ...named('decode', shape.numDecode),
      ...named('store', shape.numStores),
    ];
  }

  async startRouter(): Promise<void> {
    this.router = new SimProcess('router');
    const context = this.#context('router', this.router, undefined);
    const hub = new EmbeddedHub(silentLog);
    this.core = createCore(context, {
      hub,
      ...{ vocabSize: SIM_VOCAB, modelConfig: MODEL_CONFIG, signal: new AbortController().signal },
      onFailover: () => this.numFailovers++,
    });
    this.requests = new RequestLog(context.clock, () => undefined);
    await context.network.listen(HUB, { connect: hub.connect });
  }

  /** Of every engine's records. */
  get layout(): RecordLayout {
    const { blockSize } = this.shape;
    return {
      namespace: formatDigest(this.format),
      numericsClass: 'simulated',
      numLayers: SIM_LAYERS,
      ...{ blockSize, payloadBytes: simBlockBytes(blockSize) },
    };
  }

  /** A store that lies about the blocks of these prompts. */
  async startLiar(lie: Lie, prompts: readonly (readonly number[])[]): Promise<void> {
    const { layout } = this;
    const process = new SimProcess('liar');
    const links = prompts.flatMap((tokens) => chainOf(layout.namespace, layout.blockSize, tokens));
    const network = this.fabric.networkOf(process);
    await joinLiar({ network, clock: this.simulation.clockOf(process), hub: HUB }, layout, lie, links);
  }

  /** S1: what a store calls durable is on its disk when it says so. */
  #checkOffer({ links }: OfferRequest, { durable }: OfferReply, server: SimProcess): void {
    const disk = this.nodes.find(({ process }) => process === server)?.disk;
    const numCommitted = unpackLinks(links).filter(({ key }) => disk?.committed.has(key)).length;
    if (durable > numCommitted)
      this.faults.push(`S1: ${server.name} says ${durable} durable, ${numCommitted} are on disk`);
  }

  /** A new incarnation. */
  start(node: Node): void {
    assert(node.process.isDead, `${node.name} lives`);
    const process = new SimProcess(node.name);
    node.process = process;
    node.engine = undefined;
    node.failure = undefined;
    this.simulation.note(`${node.name} starts`);
    const context = this.#context(node.role, process, node);
    const starting =
      node.role === 'store'
        ? startStore(context)
        : startEngineRole(context, node.role === 'prefill' ? createPrefillHandlers : createDecodeHandlers);
    starting.catch((error: unknown) => {
      context.fail(error);
    });
  }

  /** Of all engines that there were. */
  get numPreemptions(): number {
    const now = this.nodes.map(({ engine }) => engine?.loop.engine.load.numPreemptions ?? 0);
    return now.reduce((sum, count) => sum + count, this.#numPreemptionsBefore);
  }

  /** kill -9. */
  kill(node: Node): void {
    if (node.process.isDead) return;
    this.#numPreemptionsBefore += node.engine?.loop.engine.load.numPreemptions ?? 0;
    this.simulation.note(`${node.name} is killed`);
    node.process.isDead = true;
    node.engine = undefined;
    this.fabric.killed(node.process);
  }

  #context(role: Role, process: SimProcess, node: Node | undefined): RoleContext {
    const end = (error: unknown): void => {
      if (!node || process.isDead) return;
      node.failure = String(error);
      this.kill(node);
    };
    return {
      ...this.#host(process, node),
      ...{ role, config: this.#config(role, process.name) },
      fail: end,
      drain: () => undefined,
    };
  }

  #host(process: SimProcess, node: Node | undefined): Host {
    const random = new Random(this.#random.u32());
    const clock = this.simulation.clockOf(process);
    const moduleOf = (module: ThreadModule): StartInline => {
      if (module === moverModule) return startMoverThread;
      if (module === engineModule)
        return (data, emit) => this.#startEngine(data, emit as (event: FromEngine) => void, process, node);
      assert(node && module.url.href.endsWith('disk_worker.js'), `nobody simulates ${module.url.href}`);
      return () => new SimDiskThread(node.disk, clock);
    };
    const folders: DataFolders = {
      refuseShared: () => undefined,
      claim: (dataDir, name) => ({ path: `${dataDir}/${name}`, release: () => undefined }),
    };
    return {
      ...{ clock, random, folders, log: silentLog },
      newId: () => random.u32().toString(16),
      network: this.fabric.networkOf(process),
      threads: inlineThreads(this.simulation, process, moduleOf),
      identity: { pid: 1, epoch: `e${this.#nextEpoch++}` },
      die: () => {
        if (node) this.kill(node);
      },
      kill: () => undefined,
    };
  }

  /** In place of engine_worker.ts: the production loop over a simulated device. */
  #startEngine(
    data: EngineWorkerData,
    emit: (event: FromEngine) => void,
    process: SimProcess,
    node: Node | undefined,
  ): object {
    const { blockSize, numBlocks, chunkTokens, maxNumSeqs, maxModelLen, stepMs } = this.shape;
    const clock = this.simulation.clockOf(process);
    const executable = new SimExecutable({ blockSize, numBlocks, clock, stepMs, rowMs: stepMs / 20 });
    const { layout } = this;
    const loop = new EngineLoop({
      ...{ executable, layout, numBlocks, chunkTokens, maxNumSeqs, clock },
      maxWaiting: data.maxWaiting,
      emit,
      pulse: new Int32Array(data.pulse),
    });
    if (node) node.engine = { loop, executable };
    const info = {
      ...{ format: this.format, layout, numBlocks, vocabSize: SIM_VOCAB, modelConfig: MODEL_CONFIG },
      ...{ maxModelLen: Math.min(maxModelLen, numBlocks * blockSize), device: 'simulated', loadMs: 0 },
    };
    emit({ kind: 'ready', info });
    loop.run().then(
      () => emit({ kind: 'stopped' }),
      (error: unknown) => {
        throw error;
      },
    );
    return { receive: loop.receive.bind(loop) };
  }

  #config(role: Role, name: string): Config {
    const { blockSize, dramSlots, diskRecords, localPrefillTokens, chunkTokens, maxNumSeqs } = this.shape;
    const recordBytes = headerBytes(SIM_LAYERS) + simBlockBytes(blockSize);
    const args = {
      name: name,
      join: HUB,
      'block-size': blockSize,
      'chunk-tokens': chunkTokens,
      'max-num-seqs': maxNumSeqs,
      'max-waiting': 64,
      'dram-bytes': dramSlots * recordBytes,
      'disk-bytes': role === 'store' ? diskRecords * 4_096 : 0,
      'local-prefill-tokens': localPrefillTokens,
    };
    return readCommandLine(
      Object.entries(args).flatMap(([flag, value]) => [`--${flag}`, String(value)]),
      {},
    ).config;
  }
}
