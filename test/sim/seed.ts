/**
 * One seed: a cluster, at least ten requests, faults, and what must hold. The same seed is the same run, event for event.
 *
 *   start ──► requests and faults ──► faults end ──► every request has ended ──► nothing is left open, used or waiting
 */
import { Random } from '../../shared/base/random.ts';
import { queueOrderNames } from '../../shared/engine/queue_order.ts';
import type { BlockKey } from '../../shared/kv/block_key.ts';
import { ask } from '../../shared/net/network.ts';
import { tiers, type Tier } from '../../shared/protocol/block_events.ts';
import { holderId, type InstanceLoad, type Member } from '../../shared/protocol/membership.ts';
import type { SnapshotPage } from '../../shared/protocol/messages.ts';
import { keyWords, unpackKeyWords } from '../../shared/protocol/packing.ts';
import { unpackParents } from '../../shared/protocol/parent_keys.ts';
import type { Instance } from '../../shared/placement/instance.ts';
import { policyNames, type PolicyName } from '../../shared/placement/policy_registry.ts';
import type { TargetTexts } from '../../services/router/api/exchange.ts';
import type { HttpApp } from '../../services/router/router.ts';
import { Faults } from './faults.ts';
import { lies } from './liar.ts';
import { SimCluster, type Node, type Shape, type SimEngine } from './simulated_cluster.ts';
import { makeHybrid, windowLayers } from './simulated_device.ts';
import type { Answer, Reader } from './simulated_http.ts';
import { SimProcess } from './simulation.ts';
import { sourceFault } from './source_checks.ts';
import { drawTargets, isRejection } from './target_checks.ts';
import { faultsOfUnknownProcesses } from './unknown_processes.ts';
import { MAX_LENGTH, drawPrefixes, drawWish, faultOf, type Wish } from './wish.ts';

export interface SeedResult {
  readonly seed: number;
  readonly numEvents: number;
  readonly numRequests: number;
  readonly numFaults: number;
  readonly traceHash: number;
  /** Checks that failed; empty when the seed passes. */
  readonly failures: readonly string[];
  readonly trace: readonly string[];
  readonly stats: Readonly<Record<string, number>>;
}

/** Requests may take so long, faults and all; or, where the seed says so, not long enough for every fault. */
const REQUEST_MS = 60_000;
const SHORT_REQUEST_MS = 2_500;
/** Until everything that is to end has ended, once faults have. */
const QUIET_MS = 2 * REQUEST_MS + 10_000;
/** Streams end, exports settle, heartbeats say so, offers reach the stores. */
const SETTLE_MS = 4_000;
/** A client whose router died asks again after this. */
const RETRY_MS = 300;
/** More than a holder serves at a time. */
const MANY_SNAPSHOTS = 20;
/** Queries after which all keys of gone holders are swept out of the index of a simulated router. */
const MOST_SWEEPS = 16;
/** Bytes of a store's disk that each record takes. */
const PAGE_BYTES = 4_096;
/** Error message of a router that ends before the request does. */
const ENDED = 'the router ended before the request did';
/** Tokens that rows see of each layer; most models see all. */
const WINDOWS = [
  [0, 0],
  [0, 9],
  [0, 0],
  [0, 0],
  [7, 10],
  [0, 0],
  [0, 0],
] as const;
/** Whole records that a fetch asks for ahead of its reader, at most. */
const AHEAD = [256, 1, 2, 5];
/** Seeds to one whose processes hang after their goodbye. */
const GOODBYE_HANGS = 8;
/** Seeds to one whose model has a recurrent layer between those that keep KV. */
const HYBRIDS = 3;
/** Blocks of a prompt between two saved states. */
const STATE_INTERVALS = [1, 2, 3, 8, 100];
/** Seeds to one whose embeddings are means. */
const MEAN_POOLED = 4;
/** Seeds to one that begins with a policy by name, that has strict roles, and whose policy changes while it runs. */
const OTHER_POLICIES = 3;
const STRICT_ROLES = 7;
const POLICY_CHANGES = 4;
/** Seeds to one whose clients name targets. */
const TARGETS = 3;
/** Seeds to one whose prompts are computed in pipelines. */
const PIPELINES = 4;
/** A reader that stops is cut off by its router. */
const STOPS_AT = 200;

export async function runSeed(seed: number): Promise<SeedResult> {
  listenForStrays();
  const run = new SeedRun(seed);
  await run.run();
  return run.result();
}

/** Receives errors that nothing caught. An error of a seed that is over is reported in the next seed. */
let onStray: (error: unknown) => void = () => undefined;
let isListening = false;
function listenForStrays(): void {
  if (isListening) return;
  isListening = true;
  for (const event of ['unhandledRejection', 'uncaughtException']) {
    process.on(event, (error: unknown) => {
      onStray(error);
    });
  }
}

class SeedRun {
  readonly #seed: number;
  readonly #random: Random;
  /** For targets alone, so that the other samples of a seed stay what they are. */
  readonly #targetRandom: Random;
  readonly #cluster: SimCluster;
  readonly #faults: Faults;
  readonly #isCrowded: boolean;
  readonly #outcomes: ('running' | 'finished' | 'left' | 'stalled' | 'refused' | 'rejected' | 'late')[] = [];
  readonly #failures: string[] = [];
  readonly #prefixes: ReturnType<typeof drawPrefixes>;
  /** Prompts with their outputs: the next turn of a chat begins with one. */
  readonly #said: number[][] = [];
  #numRetries = 0;
  /** From the end of the faults to that of the last request. */
  #servedMs = 0;

  constructor(seed: number) {
    this.#seed = seed;
    this.#random = new Random(seed * 7_919 + 1);
    this.#targetRandom = new Random(seed * 7_919 + 2);
    const r = this.#random;
    // Few blocks for many sequences, and all of them fetched: they push each other out while their blocks are on their way.
    const isCrowded = r.chance(1, 4);
    this.#isCrowded = isCrowded;
    const hasBusServer = r.chance(1, 3);
    const shape: Omit<
      Shape,
      | 'minFrameBytes'
      | 'hasState'
      | 'numStateSlots'
      | 'stateInterval'
      | 'limits'
      | 'isMeanPooled'
      | 'tbtTargetMs'
      | 'queueOrder'
      | 'policy'
      | 'strictRoles'
      | 'hasPipelines'
    > = {
      numPrefill: isCrowded ? 1 + r.below(2) : r.below(3),
      numDecode: isCrowded ? 1 : 1 + r.below(3),
      numStores: r.below(3),
      blockSize: 4,
      numBlocks: isCrowded ? 26 + r.below(8) : r.pick([26, 28, 60]),
      chunkTokens: r.pick([5, 16, 64]),
      maxNumSeqs: isCrowded ? 8 : 1 + r.below(8),
      maxModelLen: MAX_LENGTH,
      dramSlots: isCrowded ? 16 : r.pick([16, 24, 64]),
      storeSlots: r.pick([3, 12, 64]),
      diskRecords: r.pick([0, 6, 40]),
      localPrefillTokens: isCrowded ? 0 : r.pick([0, 6, 1_000]),
      stepMs: r.pick([0.5, 3, 20]),
      numAhead: r.pick([0, 1, 1]),
      numPages: r.pick([0, 2, 16]),
      maxWaiting: r.pick([2, 6, 64]),
      flowWindow: r.pick([2, 8]),
      linkBytesPerMs: isCrowded ? 100 : 100_000,
      hasFixedPorts: r.chance(1, 2),
      maxRequests: isCrowded ? 64 : r.pick([4, 64, 64]),
      requestMs: !isCrowded && r.chance(1, 6) ? SHORT_REQUEST_MS : REQUEST_MS,
      hasBusServer,
      numRouters: hasBusServer ? 1 + r.below(3) : 1,
      transport: r.pick(['auto', 'auto', 'bulk', 'grpc'] as const),
      diskWrites: r.chance(2, 3) ? 'behind' : 'through',
    };
    // Chosen by the seed's number and not by the generator, so that a seed's other samples stay as they are.
    windowLayers(WINDOWS[seed % WINDOWS.length] ?? [0, 0]);
    const maxAhead = AHEAD[Math.floor(seed / WINDOWS.length) % AHEAD.length] ?? 1;
    // Few keys for many blocks: what is found under a key is not yet what was looked for.
    const keyBits = r.chance(1, 5) ? 6 + r.below(4) : 64;
    const transfer = { maxAhead, sliceBytes: r.pick([100, 4_096]) };
    const minFrameBytes = r.pick([1, 1, 4_096]);
    const limits = { keyBits, transfer, backlogBytes: r.pick([20_000, 1 << 24, 1 << 24]) };
    const hasState = seed % HYBRIDS === 1;
    makeHybrid(hasState);
    const mostSlots = [3, shape.maxNumSeqs + 3, 3 * shape.maxNumSeqs + 8];
    const numStateSlots = hasState ? mostSlots[Math.floor(seed / HYBRIDS) % mostSlots.length]! : 0;
    const stateInterval = STATE_INTERVALS[Math.floor(seed / HYBRIDS) % STATE_INTERVALS.length] ?? 1;
    const isMeanPooled = seed % MEAN_POOLED === 2;
    // Not drawn, so that seeds go on to be what they were.
    const tbtTargetMs = seed % 3 === 0 ? 4 * shape.stepMs : 0;
    const hasManyPrefills = seed % (2 * PIPELINES) === 1;
    const placing: Pick<Shape, 'policy' | 'strictRoles' | 'hasPipelines'> = {
      policy: hasManyPrefills
        ? 'longest_prefix'
        : seed % OTHER_POLICIES === 2
          ? policyOf(seed, OTHER_POLICIES)
          : 'auto',
      strictRoles: seed % STRICT_ROLES === 3,
      hasPipelines: seed % PIPELINES === 1 && !hasState,
    };
    const queueOrder = queueOrderNames[seed % queueOrderNames.length] ?? 'first_come';
    const unlike = {
      tbtTargetMs,
      queueOrder,
      minFrameBytes,
      limits,
      isMeanPooled,
      hasState,
      numStateSlots,
      stateInterval,
    };
    this.#cluster = new SimCluster({ ...shape, ...placing, ...unlike }, r);
    // Chosen by the seed's number, so that the other seeds stay what they are.
    this.#cluster.hangsAfterGoodbye = seed % GOODBYE_HANGS === 3;
    this.#faults = new Faults(this.#cluster, r);
    this.#prefixes = drawPrefixes(r);
  }

  async run(): Promise<void> {
    onStray = (error) => {
      this.#fail(`nobody caught: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`);
    };
    try {
      await this.#live();
    } catch (error) {
      this.#fail(error instanceof Error ? (error.stack ?? error.message) : String(error));
    }
  }

  async #live(): Promise<void> {
    const { simulation, nodes, routers } = this.#cluster;
    const r = this.#random;
    for (const router of routers) this.#cluster.start(router);
    for (const node of nodes) this.#cluster.start(node);
    if (r.chance(1, 4)) await this.#cluster.startLiar(r.pick(lies), this.#prefixes);
    const numRequests = 10 + r.below(6);
    const spanMs = this.#isCrowded ? 100 + r.below(300) : 300 + r.below(3_500);
    for (let i = 0; i < numRequests; i++) {
      simulation.at(r.below(spanMs), this.#cluster.http.client, 'a client asks', () => {
        this.#begin();
      });
    }
    const numFaults = 3 + r.below(6);
    for (let i = 0; i < numFaults; i++) {
      simulation.at(100 + r.below(Math.max(spanMs, 1_000)), undefined, 'fault', () => {
        this.#faults.strike();
      });
    }
    if (this.#seed % POLICY_CHANGES === 1)
      simulation.at(spanMs / 2, undefined, 'another policy', () => {
        this.#cluster.faces[0]?.policy.set(policyOf(this.#seed, POLICY_CHANGES));
      });
    simulation.at(Math.max(spanMs, 1_000) + 200, undefined, 'faults end', () => {
      this.#faults.end();
    });
    const check = (owner: SimProcess | undefined): void => {
      this.#check(owner);
    };
    const isServed = (): boolean =>
      this.#faults.areOver &&
      nodes.every(({ process }) => process.isDead || !process.isHanging) &&
      this.#outcomes.length === numRequests &&
      this.#outcomes.every((outcome) => outcome !== 'running');
    const hasFailed = (): boolean => this.#failures.length > 0;
    await simulation.run(spanMs + QUIET_MS, () => isServed() || hasFailed(), check);
    if (hasFailed()) return;
    this.#servedMs = simulation.nowMs - Math.max(this.#faults.overMs, spanMs);
    for (const [i, outcome] of this.#outcomes.entries()) {
      if (outcome === 'running') this.#fail(`R1: request ${i} has not ended ${QUIET_MS} ms after the faults`);
    }
    await simulation.run(simulation.nowMs + SETTLE_MS, hasFailed, check);
    if (!hasFailed()) await this.#checkQuiet();
  }

  #fail(what: string): void {
    this.#failures.push(what);
  }

  #begin(): void {
    const r = this.#random;
    const { isMeanPooled } = this.#cluster.shape;
    const sampled = { prefixes: this.#prefixes, said: this.#said, isCrowded: this.#isCrowded, isMeanPooled };
    const wish = drawWish(r, sampled);
    for (const { prompt, plain } of [...wish.expected, ...(wish.embeddings ?? [])]) {
      this.#cluster.truth.learn(prompt, plain, wish.salt);
      this.#said.push([...prompt, ...plain.sampled.map(({ token }) => token)]);
    }
    const leavesAt = r.chance(1, 6) ? r.pick([0, 1, 150, 600]) : Infinity;
    const stopsAt = r.chance(1, 12) ? STOPS_AT : Infinity;
    const readMs = r.chance(1, 6) ? 50 : 0;
    const index = this.#outcomes.push('running') - 1;
    const hasTargets = this.#seed % TARGETS === 1 && wish.expected.length > 0;
    const targets = hasTargets ? drawTargets(this.#targetRandom, this.#cluster.shape.stepMs) : {};
    this.#ask(index, { ...wish, targets }, { leavesAt, stopsAt, readMs }).catch((error: unknown) => {
      this.#fail(`request ${index}: ${String(error)}`);
    });
  }

  /** Until it has an answer: a router that dies, or ends in order, is asked again when it is back. */
  async #ask(index: number, wish: Wish & { readonly targets: TargetTexts }, reader: Reader): Promise<void> {
    const { http, simulation, routers } = this.#cluster;
    const clock = simulation.clockOf(http.client);
    for (;;) {
      const requestMs = Math.min(this.#cluster.shape.requestMs, Number(wish.targets.totalMs ?? Infinity));
      const beganMs = simulation.nowMs;
      const answer = await http.ask(wish.path, JSON.stringify(wish.body), reader, wish.targets);
      const isAgain = isGoing(answer);
      // A request may end with an error only after its deadline.
      const isLate =
        requestMs < REQUEST_MS && simulation.nowMs - beganMs >= requestMs && answer.text.includes('{"error":{');
      const isRejected = Object.keys(wish.targets).length > 0 && isRejection(answer);
      const isEarly =
        answer.text.includes(ENDED) && routers.every(({ drainsUntilMs }) => simulation.nowMs < drainsUntilMs);
      const fault = isEarly
        ? 'R2: the router ended it, and had time'
        : isAgain || isLate || isRejected
          ? undefined
          : faultOf(wish, answer);
      if (fault !== undefined) this.#fail(`request ${index} ${JSON.stringify(wish.body)}: ${fault}`);
      if (answer.end === 'left') this.#outcomes[index] = 'left';
      else if (answer.end === 'complete' && isRejected) this.#outcomes[index] = 'rejected';
      else if (answer.end === 'complete' && isLate) this.#outcomes[index] = 'late';
      else if (answer.end === 'complete' && !isAgain)
        this.#outcomes[index] = wish.refusedWith === undefined ? 'finished' : 'refused';
      // The router cut the connection of a reader that had stopped reading.
      else if (answer.end === 'reset' && answer.text.length >= reader.stopsAt) this.#outcomes[index] = 'stalled';
      if (this.#outcomes[index] !== 'running' || fault !== undefined) return;
      this.#numRetries++;
      await clock.sleep(RETRY_MS);
    }
  }

  /** After every event: what must hold of the process whose event it was. */
  #check(owner: SimProcess | undefined): void {
    for (const fault of this.#cluster.faults.splice(0)) this.#fail(fault);
    if (!owner || owner.isDead) return;
    const router = this.#cluster.routers.find(({ process }) => process === owner);
    if (router) this.#cluster.checkRouter(router);
    const node = this.#cluster.nodes.find(({ process }) => process === owner);
    if (node) this.#cluster.check(node);
  }

  /** R2, and the index: with nothing to do, nothing is open, used or waiting anywhere. */
  async #checkQuiet(): Promise<void> {
    const { faces, fabric, nodes, routers, http } = this.#cluster;
    if (faces.length < routers.length) this.#fail(`${routers.length - faces.length} routers are not there`);
    if (http.numOpen > 0) this.#fail(`R2: ${http.numOpen} connections of clients are open`);
    for (const call of fabric.openCalls(['fetch', 'offer', 'prefill', 'embed', 'decode', 'snapshot'])) {
      this.#fail(`R2: a ${call.name} call of ${call.client.name} to ${call.address} is open`);
    }
    for (const call of fabric.leavingCalls())
      this.#fail(`R2: a ${call.name} call of ${call.client.name} was cancelled, and ${call.address} has not ended it`);
    for (const app of faces) this.#checkApp(app);
    for (const node of nodes) if (node.engine) this.#checkEngine(node, node.engine);
    for (const app of faces) if (this.#failures.length === 0) await this.#checkIndex(app);
    const { app, process } = http.routers[0] ?? {};
    const epoch = routers.find((router) => router.process === process)?.epoch;
    if (this.#failures.length === 0 && app && epoch) await this.#checkUnknownProcesses(app, epoch);
  }

  /** R2: what a router has under way, and what it knows of the others. */
  #checkApp(app: HttpApp): void {
    const { nodes } = this.#cluster;
    const { admission, requests, bodies } = app.context;
    const records = requests.list(1_000).map(({ record }) => record);
    const numActive = records.filter(({ totalMs }) => totalMs === undefined).length;
    if (numActive > 0) this.#fail(`R2: ${numActive} requests are active`);
    const { numRequests, numAnswers } = admission;
    if (!admission.isIdle) this.#fail(`R2: ${numRequests} requests and ${numAnswers} answers are under way`);
    if (bodies.allBytes !== 0) this.#fail(`R2: ${bodies.allBytes} bytes of bodies are held`);
    const begun = records.find(({ expected, counts }) => expected.rejection && counts.attempts.length > 0);
    if (begun)
      this.#fail(`request ${begun.id} was refused for its targets after ${begun.counts.attempts.length} attempts`);
    for (const record of records) {
      const fault = sourceFault(record);
      if (fault !== undefined) this.#fail(fault);
    }
    if (app.numPromised() !== 0) this.#fail(`R2: blocks of ${app.numPromised()} requests are promised`);
    for (const node of nodes) {
      const instance = app.view.all().find(({ member }) => member.name === node.name);
      if (!instance || node.process.isDead) {
        this.#fail(`${node.name} is not in the cluster ${node.failure ?? ''}`);
        continue;
      }
      if (instance.numPlaced !== 0) this.#fail(`R2: ${instance.numPlaced} requests are placed at ${node.name}`);
      const { load } = instance;
      this.#checkMemory(node, load);
      const open = [load?.running, load?.waiting, load?.openStreams, load?.arriving ?? 0];
      if (open.some((count) => count !== 0))
        this.#fail(`R2: ${node.name} says running, waiting, open, arriving: ${open.join()}`);
    }
  }

  async #checkUnknownProcesses({ view }: HttpApp, epoch: string): Promise<void> {
    const { simulation } = this.#cluster;
    const open = this.#cluster.clusterBusOf.bind(this.#cluster);
    const settle = (isDone: () => boolean): Promise<void> =>
      simulation.run(simulation.nowMs + 1_000, isDone, () => undefined);
    for (const fault of await faultsOfUnknownProcesses(open, epoch, view.all(), settle)) this.#fail(fault);
  }

  /** R2: what was lent came back, and what was reserved was used or given back. */
  #checkMemory({ name, role, disk }: Node, load: InstanceLoad | undefined): void {
    if (!load) return;
    const lent = role === 'store' ? 0 : Math.floor(this.#cluster.shape.dramSlots / 4) + this.#cluster.numStateCredits;
    if (load.lent !== lent) this.#fail(`R2: ${load.lent} slots of host memory are lent at ${name}, not ${lent}`);
    const stored = PAGE_BYTES * disk.committed.size;
    const taken = load.tiers.disk?.bytes ?? 0;
    if (taken !== stored) this.#fail(`R2: ${name} has taken ${taken} bytes of its disk for ${stored}`);
  }

  #checkEngine({ name }: Node, { loop, slots, grammars }: SimEngine): void {
    const { pool, load, states } = loop.engine;
    pool.checkIntegrity();
    states?.pool.checkIntegrity();
    if (states && states.pool.numAvailable !== states.pool.numBlocks)
      this.#fail(`R2: ${states.pool.numBlocks - states.pool.numAvailable} state slots of ${name} are used by nobody`);
    if (load.numRunning + load.numWaiting > 0)
      this.#fail(`R2: ${name} has ${load.numRunning}+${load.numWaiting} sequences`);
    if (pool.numAvailable !== pool.numBlocks) {
      this.#fail(`R2: ${pool.numBlocks - pool.numAvailable} blocks of ${name} are used by nobody`);
    }
    if (grammars.numOpen > 0) this.#fail(`R2: ${grammars.numOpen} states of grammars at ${name} are open for nobody`);
    if (slots.size > 0) this.#fail(`R2: ${slots.size} slots for arrivals are used by nobody at ${name}`);
  }

  /** Checks that the router's index has exactly the blocks that the holders' snapshots name. */
  async #checkIndex({ view, index }: HttpApp): Promise<void> {
    const auditor = new SimProcess('auditor');
    const keys = new Set<bigint>();
    // One that was read leaves room for the next.
    const [first] = view.all();
    if (first && this.#seed % 16 === 0)
      for (let i = 0; i < MANY_SNAPSHOTS; i++) await this.#readSnapshot(auditor, first.member);
    for (const instance of view.all()) {
      const pages = await this.#readSnapshot(auditor, instance.member);
      this.#checkAnnounced(instance, pages);
      if (this.#cluster.shape.limits.keyBits === 64)
        for (const page of pages) {
          const parents = unpackParents(unpackKeyWords(page.keys), page.parents) ?? new Int32Array();
          const parentKeys = new BigUint64Array(parents.buffer) as unknown as BlockKey[];
          for (const [i, key] of keysOf(page).entries()) {
            const fault = this.#cluster.truth.faultOfParent(key, parentKeys[i]!);
            if (fault !== undefined) this.#fail(`${instance.member.name} announces that ${fault}`);
          }
        }
      for (const key of pages.flatMap((page) => keysOf(page))) {
        keys.add(key);
        const [range] = index.ranges(keyWords([key]));
        if (!range?.heldBy.some(({ holder }) => holder === holderId(instance.member))) {
          this.#fail(`the index does not know that ${instance.member.name} has ${key}`);
        }
      }
    }
    // Keys of holders that have gone are swept out a part at a time, by queries too: without a block to ask for there was none.
    for (let i = 0; i < MOST_SWEEPS && index.size !== keys.size; i++) index.ranges(new Int32Array(0));
    if (index.size !== keys.size) this.#fail(`the index has ${index.size} keys, holders have ${keys.size}`);
  }

  async #readSnapshot(reader: SimProcess, { name, address }: Member): Promise<SnapshotPage[]> {
    const { fabric, simulation } = this.#cluster;
    const pages: SnapshotPage[] = [];
    const reading = { isDone: false };
    const options = { signal: new AbortController().signal, timeoutMs: 10_000 };
    const read = (async () => {
      for await (const page of ask(fabric.networkOf(reader), address, 'snapshot', {}, options)) pages.push(page);
      reading.isDone = true;
    })();
    await Promise.race([
      read,
      simulation.run(
        simulation.nowMs + 1_000,
        () => reading.isDone,
        () => undefined,
      ),
    ]);
    if (!reading.isDone) throw new Error(`${name} gives no snapshot`);
    return pages;
  }

  /** Checks that the blocks a holder announces, on device and on disk, are the blocks it has, and their number in host memory. */
  #checkAnnounced({ member: { name }, load }: Instance, pages: readonly SnapshotPage[]): void {
    const node = this.#cluster.nodes.find((one) => one.name === name);
    const said = (tier: Tier): Set<bigint> =>
      new Set(pages.filter((page) => page.tier === tiers.indexOf(tier)).flatMap((page) => keysOf(page)));
    const compare = (tier: Tier, held: ReadonlySet<bigint>): void => {
      const announced = said(tier);
      const missing = [...held].filter((key) => !announced.has(key)).length;
      const extra = [...announced].filter((key) => !held.has(key)).length;
      if (missing + extra > 0)
        this.#fail(`${name} announces ${extra} blocks of its ${tier} that are not there, ${missing} not at all`);
    };
    const [inDram, held] = [said('dram').size, load?.tiers.dram?.blocks];
    if (node && inDram !== held) this.#fail(`${name} announces ${inDram} blocks in host memory, and has ${held}`);
    if (node?.engine) {
      const { pool, states } = node.engine.loop.engine;
      compare('device', new Set([...pool.keys(), ...(states?.pool.keys() ?? [])]));
    }
    if (node?.role === 'store') compare('disk', new Set(node.disk.committed.keys()));
  }

  result(): SeedResult {
    const { simulation, numFailovers, fabric, numPreemptions } = this.#cluster;
    const count = (outcome: string): number => this.#outcomes.filter((one) => one === outcome).length;
    return {
      seed: this.#seed,
      numEvents: simulation.numEvents,
      numRequests: this.#outcomes.length,
      numFaults: this.#faults.numFaults,
      traceHash: simulation.traceHash >>> 0,
      failures: this.#failures,
      trace: simulation.trace,
      stats: {
        finished: count('finished'),
        left: count('left'),
        stalled: count('stalled'),
        refused: count('refused'),
        rejected: count('rejected'),
        late: count('late'),
        failovers: numFailovers,
        preemptions: numPreemptions,
        flips: fabric.numFlips,
        retries: this.#numRetries,
        pipelines: this.#cluster.numPipelines,
        pipelineRanges: this.#cluster.numRanges,
        channelRecords: this.#cluster.numChannelRecords,
        channelFrames: this.#cluster.numChannelFrames,
        parted: this.#cluster.numParted,
        servedMs: Math.round(this.#servedMs),
      },
    };
  }
}

/** Every policy in turn, over seeds that are `step` apart. */
function policyOf(seed: number, step: number): PolicyName {
  return policyNames[Math.floor(seed / step) % policyNames.length] ?? 'auto';
}

/** The router is going, or has enough to do: its client asks again. */
function isGoing({ status, text }: Answer): boolean {
  const isLater = status === 503 && /draining|requests are in flight/.test(text);
  return isLater || text.includes(ENDED);
}

function keysOf(page: { readonly keys: Buffer }): BlockKey[] {
  return [...new BigUint64Array(unpackKeyWords(page.keys).buffer)] as BlockKey[];
}
