/**
 * A whole cluster in this process: a router, prefill, decode and store instances as production code, each on a simulated host of its
 * own.
 */
import assert from 'node:assert/strict';
import type { Clock } from '../../shared/base/clock.ts';
import { Current } from '../../shared/base/current.ts';
import { silentLog } from '../../shared/base/log.ts';
import type { Bus, BusListener, OpenBus } from '../../shared/bus/bus.ts';
import { ClusterBus } from '../../shared/bus/cluster_bus.ts';
import { HubClient } from '../../shared/bus/hub_client.ts';
import { flagsFor, readCommandLine, type ConfigOf, type OptionTable } from '../../shared/base/options.ts';
import { HashedGrammars } from '../support/constraints.ts';
import { Random } from '../../shared/base/random.ts';
import type { ThreadModule } from '../../shared/base/threads.ts';
import { engineModule } from '../../shared/engine/engine_host.ts';
import { EngineLoop } from '../../shared/engine/engine_loop.ts';
import type {
  LoopEvent,
  EngineLoad,
  EngineWorkerData,
  FromEngine,
  ToEngine,
} from '../../shared/engine/engine_messages.ts';
import { startEngineRole } from '../../shared/instance/engine_role.ts';
import { engineOptions } from '../../shared/node/options.ts';
import type { DataFolders, Host, HostLimits, RoleContext, RunningRole } from '../../shared/node/role.ts';
import type { Engine } from '../../shared/engine/engine.ts';
import { chainOf, type BlockKey, type BlockHash, type Digest } from '../../shared/kv/block_key.ts';
import { xxh64 } from '../../shared/base/xxh64.ts';
import { transferThreadModule } from '../../shared/net/transfer_thread/transfer_thread.ts';
import {
  transferThreadOn,
  type TransferThreadEvent,
  type TransferThreadMethods,
} from '../../shared/net/transfer_thread/transfer_methods.ts';
import { formatDigest, type Format } from '../../shared/kv/format.ts';
import { FRAME_HEADER_BYTES, LAYOUT_VERSION, type KvSpec } from '../../shared/kv/kv_spec.ts';
import { readHeader, type RecordLayout } from '../../shared/kv/record.ts';
import { slotLength } from '../../shared/kv/slab.ts';
import { workSchema } from '../../shared/protocol/instance_work.ts';
import type { Role } from '../../shared/protocol/membership.ts';
import type { FetchReply, FetchRequest, OfferReply, OfferRequest } from '../../shared/protocol/messages.ts';
import { unpackHashes } from '../../shared/protocol/packing.ts';
import { BodyReader } from '../../services/router/api/body_reader.ts';
import { bodyKinds } from '../../services/router/surfaces/registry.ts';
import type { PolicyName } from '../../shared/placement/policy_registry.ts';
import { options as routerOptions } from '../../services/router/options.ts';
import { startRouter, type HttpApp } from '../../services/router/router.ts';
import { options as storeOptions } from '../../services/store/options.ts';
import { startStore } from '../../services/store/store.ts';
import { shapeOf } from '../../shared/engine/architectures/registry.ts';
import type { QueueOrderName } from '../../shared/engine/queue_order.ts';
import { readModelFolder } from '../../shared/model/model_folder.ts';
import { shapeDigest } from '../../shared/model/model_shape.ts';
import { watchDecisions } from './decision_checks.ts';
import { forcePipelines } from './forced_pipelines.ts';
import { joinLiar, type Lie } from './liar.ts';
import { BorrowedSlots } from './borrowed_slots.ts';
import { SIM_VOCAB, SimExecutable, simSpec } from './simulated_device.ts';
import { SimBusServer } from './simulated_bus.ts';
import { SimDisk, SimDiskReader, SimDiskThread } from './simulated_disk.ts';
import { SimHttp } from './simulated_http.ts';
import { SimFabric } from './simulated_network.ts';
import { SimMemories } from './simulated_memory.ts';
import { SimSockets } from './simulated_sockets.ts';
import { inlineThreads, type StartInline } from './simulated_threads.ts';
import { SimProcess, Simulation } from './simulation.ts';
import { Truth } from './truth.ts';
import { simModel, simTokenizerThread } from './wish.ts';

const HUB = 'router:8001';
const CLUSTER = 'sim';
const KEYS_FILE = '/keys.yaml';
const STALLED_READER_MS = 3_000;
const STEP_TIMEOUT_MS = 2_000;
const DRAIN_MS = 2_000;
const MAX_DRAIN_MS = 4_000;
/** Why a process may give up: what faults do. */
const isExpected = /the device was lost/;
const MODEL_CONFIG = shapeDigest(shapeOf(readModelFolder(simModel)));

/** A message to an engine, and its answer, take less. */
const CROWDED_MS = 20;

/** Milliseconds after the end of a request until all its calls and sequences must be gone. */
const MAX_ORPHANED_MS = 200;
/** A prefill whose blocks have all come may end by itself, its request's last token being gone. */
const MAX_REST_MS = 1_000 + MAX_ORPHANED_MS;
/** Milliseconds of silence after which a router drops a member, as configured; MAX_SILENCE_MS adds time for its checks. */
const SILENCE_MS = 1_500;
const MAX_SILENCE_MS = 2_500;
/** An instance is told to leave a holder that is a member no more, on slow links too, within this. */
const MAX_LOST_FETCH_MS = 500;
/** A router lets the calls of a holder that said goodbye end by themselves, and gives them up after its silence. */
const MAX_LEFT_FETCH_MS = SILENCE_MS + MAX_LOST_FETCH_MS;
/** A process that hangs after its goodbye does so for longer than anybody may fetch from it. */
const GOODBYE_HANG_MS = 2 * MAX_LEFT_FETCH_MS;

/** Parameters of a cluster that a seed chooses. */
export interface Shape {
  readonly numPrefill: number;
  readonly numDecode: number;
  readonly numStores: number;
  readonly blockSize: number;
  /** Least raw bytes of a record's frame. */
  readonly minFrameBytes: number;
  /** The model has a recurrent layer between those that keep KV. */
  readonly hasState: boolean;
  /** Slots of an engine for states of a recurrent layer, and blocks of a prompt between two saved ones. */
  readonly numStateSlots: number;
  readonly stateInterval: number;
  /** An embedding is the mean over all tokens. */
  readonly isMeanPooled: boolean;
  readonly numBlocks: number;
  readonly chunkTokens: number;
  readonly maxNumSeqs: number;
  readonly maxModelLen: number;
  readonly dramSlots: number;
  /** DRAM slots of a store. With few of them, blocks that are on disk alone must be read from there. */
  readonly storeSlots: number;
  readonly diskRecords: number;
  readonly localPrefillTokens: number;
  /** Placement policy that routers begin with, and whether roles are walls. */
  readonly policy: PolicyName;
  readonly strictRoles: boolean;
  /** Prompts are computed in pipelines wherever there are two instances for it. */
  readonly hasPipelines: boolean;
  readonly stepMs: number;
  /** Target for the time between tokens, by which prompts are paced; 0: none. */
  readonly tbtTargetMs: number;
  readonly queueOrder: QueueOrderName;
  /** Steps that a device takes while one runs, and its pages for samples. */
  readonly numAhead: number;
  readonly numPages: number;
  readonly maxWaiting: number;
  /** Messages of a call that are under way and not read. */
  readonly flowWindow: number;
  readonly linkBytesPerMs: number;
  /** A process that starts again listens where its predecessor did. */
  readonly hasFixedPorts: boolean;
  readonly maxRequests: number;
  /** A request may take so long. */
  readonly requestMs: number;
  /** A server is the bus, and there may be several routers. */
  readonly hasBusServer: boolean;
  readonly numRouters: number;
  readonly transport: 'auto' | 'bulk' | 'grpc';
  readonly diskWrites: 'behind' | 'through';
  readonly limits: HostLimits;
  /** Text of the file of --keys; absent: routers ask for none. */
  readonly keys?: string;
}

/** The engine of a process, and what it has said of its blocks. */
export interface SimEngine {
  readonly loop: EngineLoop;
  readonly executable: SimExecutable;
  readonly grammars: HashedGrammars;
  readonly held: Map<BlockKey, BlockHash>;
  /** Slots that it was given and has not given back, by whose they are. */
  readonly slots: Map<number, { readonly id: number; count: number }>;
  /** Since when sequences that wait have more of them than they may. */
  crowdedSinceMs: number | undefined;
  /** Since when it has sequences that no call is for. */
  orphanedSinceMs: number | undefined;
}

/** A process, through its incarnations. */
export interface Node {
  readonly name: string;
  readonly role: Role;
  process: SimProcess;
  engine: SimEngine | undefined;
  /** The running role; undefined until it has joined. */
  running: RunningRole | undefined;
  readonly disk: SimDisk;
  /** Until then, when it drains, what runs may go on. */
  drainsUntilMs: number;
  /** Why the last incarnation said that it could not go on. */
  failure: string | undefined;
  epoch: string;
}

export class SimCluster {
  readonly simulation = new Simulation();
  readonly fabric: SimFabric;
  readonly sockets: SimSockets;
  readonly memories: SimMemories;
  /** Whether a process that says goodbye hangs right after it, for a while. */
  hangsAfterGoodbye = false;
  numChannelRecords = 0;
  /** Placements in pipelines, and ranges of blocks that came whole or in part from the other instance of one. */
  numPipelines = 0;
  numRanges = 0;
  /** Fetches of which not all frames are wanted. */
  numParted = 0;
  readonly nodes: Node[];
  readonly format: Format;
  /** KV layout of the model that every engine serves. */
  readonly #spec: KvSpec;
  readonly shape: Shape;
  readonly #random: Random;
  readonly http: SimHttp;
  readonly truth: Truth;
  readonly routers: readonly Node[];
  /** The bus server; undefined where the router is the hub. */
  readonly bus: SimBusServer | undefined;
  #numFailoversBefore = 0;
  /** Invariants that messages broke. */
  readonly faults: string[] = [];
  /** Records that are being sent, slice by slice, by the request of their call. */
  readonly #sent = new WeakMap<object, Buffer>();
  #nextEpoch = 1;
  #nextBusEpoch = 1;
  #numPreemptionsBefore = 0;

  constructor(shape: Shape, random: Random) {
    this.shape = shape;
    this.#random = random;
    const { flowWindow } = shape;
    const onFault = (fault: string): void => void this.faults.push(fault);
    this.fabric = new SimFabric(this.simulation, new Random(random.u32()), flowWindow, {
      onReply: (name, request, reply, server) => {
        if (name === 'offer') this.#checkOffer(request as OfferRequest, reply as OfferReply, server);
        if (name === 'fetch') {
          if ((request as FetchRequest).frames > 0) this.numParted++;
          this.#checkRecord(request as FetchRequest, reply as FetchReply, server);
        }
      },
      onFault,
      onGoodbye: (process) => {
        this.#hearGoodbye(process);
      },
    });
    this.fabric.bytesPerMs = shape.linkBytesPerMs;
    this.sockets = new SimSockets(this.fabric, ([, record], server) => {
      // After a head; asks are alone.
      if (record) this.#checkSent(record, server);
    });
    this.memories = new SimMemories(this.fabric, (record, server) => {
      this.#checkSent(record, server);
    });
    this.http = new SimHttp(this.fabric, onFault, (app) => {
      watchDecisions(app, { localPrefillTokens: shape.localPrefillTokens, strictRoles: shape.strictRoles }, onFault);
      if (shape.hasPipelines) forcePipelines(app, () => this.numPipelines++);
    });
    this.bus = shape.hasBusServer ? new SimBusServer(this.fabric) : undefined;
    this.#spec = simSpec(shape.blockSize, shape.minFrameBytes, shape.hasState);
    this.format = {
      model: MODEL_CONFIG,
      weightFormat: 'none',
      kvDtype: 'f32',
      layoutVersion: LAYOUT_VERSION,
      blockSize: shape.blockSize,
      numerics: 'simulated',
      kv: this.#spec.digest,
    };
    const named = (role: Role, count: number): Node[] =>
      Array.from({ length: count }, (_, i) => {
        const name = `${role}-${i + 1}`;
        const process = new SimProcess(name);
        process.isDead = true;
        return {
          name,
          role,
          process,
          engine: undefined,
          running: undefined,
          disk: new SimDisk(),
          failure: undefined,
          epoch: '',
          drainsUntilMs: 0,
        };
      });
    this.truth = new Truth(formatDigest(this.format), this.#spec);
    this.routers = named('router', shape.numRouters);
    this.nodes = [
      ...named('prefill', shape.numPrefill),
      ...named('decode', shape.numDecode),
      ...named('store', shape.numStores),
    ];
  }

  /** Apps of the routers that are alive and serve. */
  get faces(): readonly HttpApp[] {
    return this.http.routers.map(({ app }) => app);
  }

  /** This process's end of the cluster's bus. */
  openBusFor(process: SimProcess): OpenBus {
    return (listener) => this.clusterBusOf(process, listener);
  }

  clusterBusOf(process: SimProcess, listener: BusListener): Bus {
    const clock = this.simulation.clockOf(process);
    const network = this.fabric.networkOf(process);
    const end =
      this.bus?.openFor(process)(listener) ??
      new HubClient({
        address: HUB,
        network,
        clock,
        log: silentLog,
        ...listener,
        maxBacklogBytes: this.shape.limits.backlogBytes,
      });
    return new ClusterBus(end, { cluster: CLUSTER, token: '', epoch: this.#newBusEpoch(), clock, log: silentLog });
  }

  /** Another one for each process, without a draw. */
  #newBusEpoch(): Buffer {
    const epoch = Buffer.alloc(16);
    epoch.writeUInt32BE(this.#nextBusEpoch++);
    return epoch;
  }

  /** Record layout of every engine. */
  get layout(): RecordLayout {
    return { format: formatDigest(this.format), numericsClass: 'simulated', spec: this.#spec };
  }

  /** A store that lies about the blocks of these prompts. */
  async startLiar(lie: Lie, prompts: readonly (readonly number[])[]): Promise<void> {
    const { layout } = this;
    const { keyBits } = this.shape.limits;
    const process = new SimProcess('liar');
    const hashes = prompts.flatMap((tokens) =>
      chainOf(layout.format, layout.spec.blockSize, tokens, undefined, keyBits),
    );
    const network = this.fabric.networkOf(process);
    const clock = this.simulation.clockOf(process);
    await joinLiar({ network, clock, openBus: this.openBusFor(process) }, layout, lie, hashes);
  }

  /** S1: what a store calls durable is on its disk when it says so. */
  #checkOffer({ hashes }: OfferRequest, { durable }: OfferReply, server: SimProcess): void {
    const disk = this.nodes.find(({ process }) => process === server)?.disk;
    const numCommitted = unpackHashes(hashes).filter(
      ({ key, digest }) => disk?.committed.get(key)?.digest === digest,
    ).length;
    if (durable > numCommitted)
      this.faults.push(`S1: ${server.name} says ${durable} durable, ${numCommitted} are on disk`);
  }

  /** K2: what a holder sends is what it was asked for, whoever verifies it again. */
  #checkSent(record: Uint8Array, server: SimProcess): void {
    this.numChannelRecords++;
    const header = readHeader(record);
    const frame = this.#frameHeaders.get(xxh64(record));
    if ('fault' in header && frame) {
      this.numChannelFrames++;
      const fault = this.truth.faultOfLayers(frame.digest, frame.firstLayer, record);
      if (fault !== undefined) this.faults.push(`K2: ${server.name} sends a frame: ${fault}`);
      return;
    }
    const fault = 'fault' in header ? header.fault : this.truth.faultOfRecord(header.digest, Buffer.from(record));
    if (fault !== undefined) this.faults.push(`K2: ${server.name} sends a record: ${fault}`);
  }

  /** Digest and first layer that each announced frame must have, by the checksum of its bytes. */
  readonly #frameHeaders = new Map<bigint, { readonly digest: Digest; readonly firstLayer: number }>();
  numChannelFrames = 0;

  #noteFrames(request: FetchRequest, index: number, frameHeaders: Buffer): void {
    const hashes = unpackHashes(request.hashes);
    for (let i = 0; i * FRAME_HEADER_BYTES < frameHeaders.length; i++) {
      const said = frameHeaders.subarray(i * FRAME_HEADER_BYTES, (i + 1) * FRAME_HEADER_BYTES);
      const digest = hashes[index + i]?.digest;
      if (digest) this.#frameHeaders.set(said.readBigUInt64LE(16), { digest, firstLayer: said.readUInt16LE(0) });
    }
  }

  #checkRecord(
    request: FetchRequest,
    { index, offset, data, numReady, frame, frameHeaders, totalBytes }: FetchReply,
    server: SimProcess,
  ): void {
    if (frame > 0) this.#noteFrames(request, index, frameHeaders);
    if (server.name === 'liar' || numReady > 0) return;
    const before = offset === 0 ? Buffer.alloc(0) : (this.#sent.get(request) ?? Buffer.alloc(0));
    const record = Buffer.concat([before, data]);
    this.#sent.set(request, record);
    if (record.length < totalBytes) return;
    const digest = unpackHashes(request.hashes)[index]?.digest;
    const fault = digest === undefined ? 'nobody asked for it' : this.truth.faultOfRecord(digest, record);
    if (fault !== undefined) this.faults.push(`K2: ${server.name} sends a record: ${fault}`);
  }

  /** A new incarnation. */
  start(node: Node): void {
    assert(node.process.isDead, `${node.name} lives`);
    const process = new SimProcess(node.name);
    node.process = process;
    node.engine = undefined;
    node.failure = undefined;
    node.epoch = `e${this.#nextEpoch++}`;
    this.simulation.note(`${node.name} starts`);
    node.running = undefined;
    const starting = {
      router: () => startRouter(this.#context(node, routerOptions), this.http.listenFor(process)),
      prefill: () => startEngineRole(this.#context(node, engineOptions)),
      decode: () => startEngineRole(this.#context(node, engineOptions)),
      store: () => startStore(this.#context(node, storeOptions)),
    }[node.role]();
    starting.then(
      (running) => (node.running = running),
      (error: unknown) => {
        this.#giveUp(node, process, error);
      },
    );
  }

  /** SIGTERM: it finishes what runs, takes nothing new, and ends. */
  drain(node: Node): void {
    const { process, running } = node;
    if (process.isDead || !running) return;
    this.simulation.note(`${node.name} drains`);
    node.running = undefined;
    node.drainsUntilMs = this.simulation.nowMs + DRAIN_MS;
    const end = (): void => {
      if (!process.isDead) this.kill(node);
    };
    void running.drain().then(end);
    // Supervisors kill a process that does not end, for instance because its device hangs.
    this.simulation.at(MAX_DRAIN_MS, undefined, `enough of ${node.name}`, end);
  }

  /** A goodbye is no end: the process may hang before it. */
  #hearGoodbye(process: SimProcess): void {
    process.hasLeft = true;
    const isMember = this.nodes.some((node) => node.process === process);
    if (!this.hangsAfterGoodbye || !isMember || process.parked) return;
    this.simulation.note(`${process.name} hangs after its goodbye`);
    this.simulation.pause(process);
    process.isHanging = true;
    this.simulation.at(GOODBYE_HANG_MS, undefined, `resume ${process.name}`, () => {
      process.isHanging = false;
      this.simulation.resume(process);
    });
  }

  get numFailovers(): number {
    return this.faces.reduce((sum, app) => sum + failoversOf(app), this.#numFailoversBefore);
  }

  /** Preemptions of all engines, those of ended processes included. */
  get numPreemptions(): number {
    const now = this.nodes.map(({ engine }) => engine?.loop.engine.load.numPreemptions ?? 0);
    return now.reduce((sum, count) => sum + count, this.#numPreemptionsBefore);
  }

  /** kill -9. */
  kill(node: Node): void {
    if (node.process.isDead) return;
    this.#numPreemptionsBefore += node.engine?.loop.engine.load.numPreemptions ?? 0;
    const served = this.http.routers.find((one) => one.process === node.process);
    if (served) this.#numFailoversBefore += failoversOf(served.app);
    this.simulation.note(`${node.name} is killed`);
    node.process.isDead = true;
    node.engine = undefined;
    node.running = undefined;
    this.fabric.killed(node.process);
    this.http.reset(node.process);
  }

  /** The process cannot go on. */
  #giveUp(node: Node, process: SimProcess, error: unknown): void {
    if (process.isDead) return;
    node.failure = String(error);
    if (!isExpected.test(node.failure)) this.faults.push(`${node.name} gives up: ${node.failure}`);
    this.kill(node);
  }

  #context<Table extends OptionTable>(node: Node, table: Table): Host & RoleOf<Table> {
    const { process, role } = node;
    return {
      ...this.#host(process, node),
      role,
      config: this.#config(role, process.name, table),
      fail: (error) => {
        this.#giveUp(node, process, error);
      },
      drain: () => undefined,
    };
  }

  #host(process: SimProcess, node: Node): Host {
    const random = new Random(this.#random.u32());
    const clock = this.simulation.clockOf(process);
    const moduleOf = (module: ThreadModule): StartInline => {
      if (module === transferThreadModule)
        return (_data, emit) =>
          this.#startTransferThread(process, node, clock, emit as (event: TransferThreadEvent) => void);
      if (module === engineModule)
        return (data, emit) => this.#startEngine(data, emit as (event: FromEngine) => void, process, node);
      const { href } = module.url;
      if (href.endsWith('body_worker.js')) return () => new BodyReader(bodyKinds);
      if (href.endsWith('prompt_worker.js')) return () => simTokenizerThread;
      if (href.endsWith('rule_worker.js'))
        return () => ({ ready: () => undefined, convert: ({ text }: { text: string }) => text });
      if (href.endsWith('mask_worker.js')) return () => ({ load: () => ({}), check: () => undefined });
      if (href.endsWith('disk_reader.js')) return () => new SimDiskReader(node.disk, clock);
      assert(href.endsWith('disk_worker.js'), `nobody simulates ${href}`);
      return () =>
        new SimDiskThread(node.disk, clock, (digest, record) => {
          if (node.disk.committed.size > this.shape.diskRecords)
            this.faults.push(`P1: ${node.name} has ${node.disk.committed.size} records on its disk`);
          const fault = this.truth.faultOfRecord(digest, record);
          if (fault !== undefined) this.faults.push(`K1: ${node.name} commits a record: ${fault}`);
        });
    };
    const folders: DataFolders = {
      refuseShared: () => undefined,
      claim: (dataDir, name) =>
        Promise.resolve({ path: `${dataDir}/${name}`, release: () => undefined, narrowed: [], open: [] }),
    };
    return {
      clock,
      random,
      folders,
      log: silentLog,
      newId: () => random.u32().toString(16),
      network: this.fabric.networkOf(process),
      tls: undefined,
      clusterTokens: new Current(''),
      busEpoch: this.#newBusEpoch(),
      serveMetrics: () => Promise.reject(new Error('the simulation has no HTTP')),
      watchFiles: ({ files, read }) => {
        const { keys } = this.shape;
        assert(keys !== undefined && files.join() === KEYS_FILE, `the simulation has no file ${files.join()}`);
        return new Current(read([keys], undefined));
      },
      openAppender: () => Promise.reject(new Error('the simulation has no files')),
      threads: inlineThreads(this.simulation, process, moduleOf),
      openBus: this.bus?.openFor(process),
      identity: { pid: 1, epoch: node.epoch },
      die: () => {
        this.kill(node);
      },
      kill: () => undefined,
      limits: this.shape.limits,
    };
  }

  /** The production transfer thread; a quarter of a process's slots may be on loan at a time (P1). */
  #startTransferThread(
    process: SimProcess,
    node: Node,
    clock: Clock,
    emit: (event: TransferThreadEvent) => void,
  ): TransferThreadMethods {
    const { storeSlots, dramSlots } = this.shape;
    // Records of states are smaller than those of blocks here.
    const { slotBytes, state } = this.#spec;
    const share = slotLength(slotBytes) / slotLength(Math.min(slotBytes, state?.slotBytes ?? slotBytes));
    const most = Math.floor((share * (node.role === 'store' ? storeSlots : dramSlots)) / 4);
    const slots = new BorrowedSlots((numSlots) => {
      if (numSlots > most) this.faults.push(`P1: ${numSlots} slots of ${node.name} are on loan, and ${most} may be`);
    });
    const transferThread = transferThreadOn(this.sockets.of(process), this.memories.of(process), clock, (event) => {
      slots.heard(event);
      emit(event);
    });
    return slots.counted(transferThread);
  }

  /** In place of engine_worker.ts: the production loop over a simulated device. */
  #startEngine(data: EngineWorkerData, emit: (event: FromEngine) => void, process: SimProcess, node: Node): object {
    const { blockSize, numBlocks, chunkTokens, maxNumSeqs, maxModelLen, stepMs, numAhead, numPages } = this.shape;
    const clock = this.simulation.clockOf(process);
    const executable = new SimExecutable({
      numStateSlots: this.shape.numStateSlots,
      spec: this.#spec,
      numBlocks,
      clock,
      stepMs,
      rowMs: stepMs / 20,
      numAhead,
      numPages,
      // With few pages, few blocks.
      numExportable: numPages === 0 ? 1 : 8,
    });
    const { layout } = this;
    const random = new Random(this.#random.u32());
    const grammars = new HashedGrammars(SIM_VOCAB, clock, () => random.below(4) * 0.2);
    const loop = new EngineLoop({
      grammars,
      executable,
      layout,
      numBlocks,
      chunkTokens,
      maxNumSeqs,
      clock,
      maxWaiting: data.maxWaiting,
      queueOrder: data.queueOrder,
      stateInterval: this.shape.stateInterval,
      stepMs: data.stepMs,
      tbtTargetMs: data.tbtTargetMs,
      emit: (message) => {
        if (message.kind === 'events') for (const event of message.events) this.#checkEvent(node, engine, event);
        if (message.kind === 'events') this.#checkWork(node.name, message.load);
        emit(message);
      },
      heartbeat: new Int32Array(data.heartbeat),
    });
    const engine: SimEngine = {
      loop,
      executable,
      grammars,
      held: new Map(),
      slots: new Map(),
      crowdedSinceMs: undefined,
      orphanedSinceMs: undefined,
    };
    node.engine = engine;
    const info = {
      format: this.format,
      layout,
      numBlocks,
      vocabSize: SIM_VOCAB,
      modelConfig: MODEL_CONFIG,
      maxModelLen: Math.min(maxModelLen, numBlocks * blockSize),
      device: 'simulated',
      loadMs: 0,
    };
    emit({ kind: 'ready', info });
    loop.run().then(
      () => emit({ kind: 'stopped' }),
      (error: unknown) => emit({ kind: 'failed', message: String(error) }),
    );
    return {
      submit: loop.submit.bind(loop),
      receive: (message: ToEngine) => {
        if (message.kind === 'arrived') this.numRanges++;
        if (message.kind === 'deliver') {
          const { slot, id } = message;
          engine.slots.set(slot, { id, count: (engine.slots.get(slot)?.count ?? 0) + 1 });
        }
        loop.receive(message);
      },
    };
  }

  /** K1: a block that has a name holds what the name says, in the device when it is told. */
  #checkEvent({ name }: Node, { loop, executable, held, slots }: SimEngine, event: LoopEvent): void {
    if (event.kind === 'removed') held.delete(event.key);
    if (event.kind === 'consumed') {
      const used = slots.get(event.slot);
      if (used && --used.count === 0) slots.delete(event.slot);
    }
    if (event.kind !== 'stored') return;
    const { hash } = event;
    held.set(hash.key, hash);
    if (hash.kind === 'state') {
      const stateFault = this.#faultOfState(hash, loop.engine, executable);
      if (stateFault !== undefined) this.faults.push(`K1: ${name}: ${stateFault}`);
      return;
    }
    const block = loop.engine.pool.find(hash);
    // The block may have been evicted in the same step; its removal event comes next.
    const fault = block === undefined ? undefined : this.truth.fault(hash.digest, executable.contentHashOfBlock(block));
    if (fault !== undefined) this.faults.push(`K1: ${name}: ${fault}`);
  }

  #faultOfState(hash: BlockHash, { states }: Engine, executable: SimExecutable): string | undefined {
    const slot = states?.pool.find(hash);
    return slot === undefined ? undefined : this.truth.faultOfState(hash.digest, executable.stateIn(slot));
  }

  /** Slots of host memory that an engine has for states which it exports. */
  get numStateCredits(): number {
    const { state, slotBytes } = this.#spec;
    if (!state) return 0;
    const fitting = Math.floor((this.shape.dramSlots * slotLength(slotBytes)) / slotLength(state.slotBytes) / 4);
    return Math.max(1, Math.min(4, fitting));
  }

  /** After an event of the router: its calls are those of requests that run, and its members are those it hears. */
  checkRouter({ process }: Node): void {
    const app = this.http.routers.find((one) => one.process === process)?.app;
    const { nowMs } = this.simulation;
    if (!app) return;
    const { requests, admission, bodies } = app.context;
    if (admission.numRequests > this.shape.maxRequests)
      this.faults.push(`P1: ${admission.numRequests} requests are let in`);
    if (bodies.allBytes < 0) this.faults.push(`P1: ${bodies.allBytes} bytes of bodies are held`);
    const calls = this.fabric.openCalls(['decode', 'prefill', 'embed'], process);
    const records = new Map(calls.length === 0 ? [] : requests.list(1_000).map((record) => [record.id, record]));
    for (const call of calls) {
      const record = records.get(call.recordId ?? '');
      if (record && record.totalMs === undefined) call.orphanedSinceMs = undefined;
      else call.orphanedSinceMs ??= nowMs;
      const mayEnd = call.name === 'prefill' && record?.phase === 'finished';
      // A router that was stopped ends its calls when it runs again.
      const sinceMs = Math.max(call.orphanedSinceMs ?? nowMs, process.resumedMs);
      if (nowMs - sinceMs > (mayEnd ? MAX_REST_MS : MAX_ORPHANED_MS))
        this.faults.push(`R2: a ${call.name} call of request ${call.recordId} is open, which has ended`);
    }
    if (nowMs - process.resumedMs < 2 * MAX_SILENCE_MS) return;
    const silent = app.view.all().find(({ lastHeardMs }) => nowMs - lastHeardMs > MAX_SILENCE_MS);
    if (silent) this.faults.push(`${silent.member.name} is a member and was not heard for ${MAX_SILENCE_MS} ms`);
  }

  /** Whether the routers and this process hear each other, and have for a while. */
  #isInTouch(process: SimProcess): boolean {
    const sinceMs = this.simulation.nowMs - MAX_LOST_FETCH_MS;
    const isAwake = (one: SimProcess): boolean => !one.isDead && !one.parked && one.resumedMs < sinceMs;
    const isHeard = ({ process: router }: Node): boolean => isAwake(router) && !this.fabric.isParted(process, router);
    return isAwake(process) && this.routers.every(isHeard);
  }

  /** Nobody goes on to fetch from a holder that the router has lost: it may be silent for long, after its goodbye too. */
  #checkFetches({ name, process }: Node): void {
    const calls = this.fabric.openCalls(['fetch'], process);
    if (calls.length === 0) return;
    const { nowMs } = this.simulation;
    const members = new Set(this.faces.flatMap(({ view }) => view.all().map(({ member }) => member.address)));
    const isInTouch = this.#isInTouch(process);
    for (const call of calls) {
      if (!isInTouch || members.has(call.address)) call.orphanedSinceMs = undefined;
      else call.orphanedSinceMs ??= nowMs;
      const maxMs = call.server?.hasLeft ? MAX_LEFT_FETCH_MS : MAX_LOST_FETCH_MS;
      if (nowMs - (call.orphanedSinceMs ?? nowMs) > maxMs)
        this.faults.push(`${name} fetches from ${call.address}, which the router has lost`);
    }
  }

  /** After an event of this process: E1, K3 for one block after the other, and whose the arrivals are. */
  check(node: Node): void {
    const { name, engine, process } = node;
    if (!engine) return;
    this.#checkFetches(node);
    const { loop, executable, held, slots } = engine;
    const { pool, load, states } = loop.engine;
    pool.checkIntegrity();
    states?.pool.checkIntegrity();
    for (const slots of executable.touchedStates)
      for (const slot of slots)
        if (!states?.pool.isUsed(slot))
          this.faults.push(`E1: ${name} gave state slot ${slot} back while a step touches it`);
    for (const blocks of executable.touched)
      for (const block of blocks)
        if (!pool.isUsed(block)) this.faults.push(`E1: ${name} gave block ${block} back while a step touches it`);
    const { maxWaiting, maxNumSeqs, chunkTokens } = this.shape;
    const numPreempted = Math.min(maxNumSeqs, chunkTokens);
    if (load.numWaiting > maxWaiting + numPreempted) this.faults.push(`P1: ${name} has ${load.numWaiting} waiting`);
    const [oldest] = held.values();
    if (oldest) {
      held.delete(oldest.key);
      held.set(oldest.key, oldest);
      const block = oldest.kind === 'state' ? undefined : pool.find(oldest);
      const stateFault = oldest.kind === 'state' ? this.#faultOfState(oldest, loop.engine, executable) : undefined;
      if (stateFault !== undefined) this.faults.push(`K3: ${name}: ${stateFault}`);
      const fault =
        block === undefined ? undefined : this.truth.fault(oldest.digest, executable.contentHashOfBlock(block));
      if (fault !== undefined) this.faults.push(`K3: ${name}: ${fault}`);
    }
    // Sequences of a step that hangs end with their process, once its watchdog has seen it.
    const mayEnd = !executable.isHanging && load.numRunning + load.numWaiting > this.fabric.numServed(process);
    if (!mayEnd) engine.orphanedSinceMs = undefined;
    else engine.orphanedSinceMs ??= this.simulation.nowMs;
    // A process that was paused meanwhile could end nothing.
    if (this.simulation.nowMs - Math.max(engine.orphanedSinceMs ?? Infinity, process.resumedMs) > MAX_ORPHANED_MS)
      this.faults.push(`R2: ${name} has ${load.numRunning + load.numWaiting} sequences, and fewer calls`);
    const window = Math.floor(this.shape.dramSlots / 4);
    const numEarly = [...slots.values()].filter(({ id }) => loop.engine.stateOf(id) === 'waiting').length;
    if (numEarly <= Math.ceil(window / 2)) engine.crowdedSinceMs = undefined;
    else engine.crowdedSinceMs ??= this.simulation.nowMs;
    if (this.simulation.nowMs - (engine.crowdedSinceMs ?? Infinity) > CROWDED_MS)
      this.faults.push(`P1: sequences that wait hold ${numEarly} of ${window} slots for arrivals at ${name}`);
  }

  /** Work that an engine says is left is that of sequences which it has. */
  #checkWork(name: string, { work, numRunning, numWaiting }: EngineLoad): void {
    if (!work) return;
    workSchema.parse(work);
    const numCounted = work.generating.sequences + work.coming.sequences;
    if (Math.max(numCounted, work.prompts.sequences) > numRunning + numWaiting)
      this.faults.push(`${name} has ${numRunning + numWaiting} sequences, and work of ${JSON.stringify(work)}`);
  }

  #config<Table extends OptionTable>(role: Role, name: string, table: Table): ConfigOf<Table> {
    const { blockSize, dramSlots, storeSlots, diskRecords, localPrefillTokens, chunkTokens, maxNumSeqs, maxWaiting } =
      this.shape;
    const slotBytes = slotLength(this.#spec.slotBytes);
    const values: Record<string, string | number | true> = {
      name,
      model: simModel,
      hub_bind: this.bus ? '' : HUB,
      cluster: CLUSTER,
      join: HUB,
      ...(role !== 'router' && this.shape.hasFixedPorts ? { bind: `${name}:7000` } : {}),
      block_size: blockSize,
      chunk_tokens: chunkTokens,
      max_num_seqs: maxNumSeqs,
      max_waiting: maxWaiting,
      tbt_target_ms: this.shape.tbtTargetMs,
      queue_order: this.shape.queueOrder,
      request_timeout_ms: this.shape.requestMs,
      max_requests: this.shape.maxRequests,
      ...(this.shape.keys === undefined ? {} : { keys: KEYS_FILE }),
      silence_ms: SILENCE_MS,
      // Comments are tested by themselves: here an answer's status says what became of its request.
      sse_keep_alive_ms: 0,
      stalled_reader_ms: STALLED_READER_MS,
      step_timeout_ms: STEP_TIMEOUT_MS,
      drain_timeout_ms: DRAIN_MS,
      transport: this.shape.transport,
      disk_writes: this.shape.diskWrites,
      dram_bytes: (role === 'store' ? storeSlots : dramSlots) * slotBytes,
      disk_bytes: diskRecords * 4_096,
      local_prefill_tokens: localPrefillTokens,
      policy: this.shape.policy,
      ...(this.shape.strictRoles ? { strict_roles: true } : {}),
      pooling: this.shape.isMeanPooled ? 'mean' : 'last',
    };
    const flags = flagsFor(
      table,
      Object.fromEntries(Object.entries(values).map(([key, value]) => [key, value === true || String(value)])),
    );
    return readCommandLine(table, { command: role, tables: { [role]: table } }, flags, {}).config;
  }
}

type RoleOf<Table extends OptionTable> = Pick<RoleContext, 'role' | 'fail' | 'drain'> & {
  readonly config: ConfigOf<Table>;
};

function failoversOf({ context }: HttpApp): number {
  return context.requests
    .list(1_000)
    .reduce((sum, { record }) => sum + Math.max(0, record.counts.attempts.length - 1), 0);
}
