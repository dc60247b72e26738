/**
 * One seed: a cluster, at least ten requests, faults, and what must hold. The same seed is the same run, event for event.
 *
 *   start ──► requests and faults ──► faults end ──► every request has ended ──► nothing is left open, used or waiting
 */
import { Random } from '../../shared/base/random.ts';
import type { BlockKey } from '../../shared/kv/block_key.ts';
import { ask } from '../../shared/net/network.ts';
import { tiers, type Tier } from '../../shared/protocol/block_events.ts';
import { holderId, type InstanceLoad, type Member } from '../../shared/protocol/membership.ts';
import type { SnapshotPage } from '../../shared/protocol/messages.ts';
import { keyWords, unpackKeyWords } from '../../shared/protocol/packing.ts';
import type { Instance } from '../../services/router/cluster/instance.ts';
import type { HttpApp } from '../../services/router/router.ts';
import { Faults } from './faults.ts';
import { lies } from './liar.ts';
import { SimCluster, type Node, type Shape, type SimEngine } from './simulated_cluster.ts';
import { windowLayers } from './simulated_device.ts';
import type { Answer } from './simulated_http.ts';
import { SimProcess } from './simulation.ts';
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
/** Seeds to one whose embeddings are means. */
const MEAN_POOLED = 4;
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
  readonly #cluster: SimCluster;
  readonly #faults: Faults;
  readonly #isCrowded: boolean;
  readonly #outcomes: ('running' | 'finished' | 'left' | 'stalled' | 'refused' | 'late')[] = [];
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
    const r = this.#random;
    // Few blocks for many sequences, and all of them fetched: they push each other out while their blocks are on their way.
    const isCrowded = r.chance(1, 4);
    this.#isCrowded = isCrowded;
    const hasBusServer = r.chance(1, 3);
    const shape: Omit<Shape, 'minFrameBytes' | 'hasState' | 'limits' | 'isMeanPooled'> = {
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
    const isMeanPooled = seed % MEAN_POOLED === 2;
    this.#cluster = new SimCluster({ ...shape, minFrameBytes, hasState, limits, isMeanPooled }, r);
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
    this.#ask(index, wish, { leavesAt, stopsAt, readMs }).catch((error: unknown) => {
      this.#fail(`request ${index}: ${String(error)}`);
    });
  }

  /** Until it has an answer: a router that dies, or ends in order, is asked again when it is back. */
  async #ask(
    index: number,
    wish: Wish,
    reader: { readonly readMs: number; readonly stopsAt: number; readonly leavesAt: number },
  ): Promise<void> {
    const { http, simulation, routers } = this.#cluster;
    const clock = simulation.clockOf(http.client);
    for (;;) {
      const { requestMs } = this.#cluster.shape;
      const beganMs = simulation.nowMs;
      const answer = await http.ask(wish.path, JSON.stringify(wish.body), reader);
      const isAgain = isGoing(answer);
      // A request may end with an error only after its deadline.
      const isLate =
        requestMs < REQUEST_MS && simulation.nowMs - beganMs >= requestMs && answer.text.includes('{"error":{');
      const isEarly =
        answer.text.includes(ENDED) && routers.every(({ drainsUntilMs }) => simulation.nowMs < drainsUntilMs);
      const fault = isEarly
        ? 'R2: the router ended it, and had time'
        : isAgain || isLate
          ? undefined
          : faultOf(wish, answer);
      if (fault !== undefined) this.#fail(`request ${index} ${JSON.stringify(wish.body)}: ${fault}`);
      if (answer.end === 'left') this.#outcomes[index] = 'left';
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
    const numActive = requests.list(1_000).filter(({ totalMs }) => totalMs === undefined).length;
    if (numActive > 0) this.#fail(`R2: ${numActive} requests are active`);
    const { numRequests, numAnswers } = admission;
    if (!admission.isIdle) this.#fail(`R2: ${numRequests} requests and ${numAnswers} answers are under way`);
    if (bodies.allBytes !== 0) this.#fail(`R2: ${bodies.allBytes} bytes of bodies are held`);
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
    const lent = role === 'store' ? 0 : Math.floor(this.#cluster.shape.dramSlots / 4);
    if (load.lent !== lent) this.#fail(`R2: ${load.lent} slots of host memory are lent at ${name}, not ${lent}`);
    const stored = PAGE_BYTES * disk.committed.size;
    const taken = load.tiers.disk?.bytes ?? 0;
    if (taken !== stored) this.#fail(`R2: ${name} has taken ${taken} bytes of its disk for ${stored}`);
  }

  #checkEngine({ name }: Node, { loop, slots, grammars }: SimEngine): void {
    const { pool, load } = loop.engine;
    pool.checkIntegrity();
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
      for (const key of pages.flatMap((page) => keysOf(page))) {
        keys.add(key);
        const [range] = index.ranges(keyWords([key]));
        if (!range?.heldBy.some(({ holder }) => holder === holderId(instance.member))) {
          this.#fail(`the index does not know that ${instance.member.name} has ${key}`);
        }
      }
    }
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
    if (node?.engine) compare('device', new Set(node.engine.loop.engine.pool.keys()));
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
        ...{
          finished: count('finished'),
          left: count('left'),
          stalled: count('stalled'),
          refused: count('refused'),
          late: count('late'),
        },
        ...{ failovers: numFailovers, preemptions: numPreemptions, flips: fabric.numFlips, retries: this.#numRetries },
        channelRecords: this.#cluster.numChannelRecords,
        channelFrames: this.#cluster.numChannelFrames,
        parted: this.#cluster.numParted,
        servedMs: Math.round(this.#servedMs),
      },
    };
  }
}

/** The router is going, or has enough to do: its client asks again. */
function isGoing({ status, text }: Answer): boolean {
  const isLater = status === 503 && /draining|requests are in flight/.test(text);
  return isLater || text.includes(ENDED);
}

function keysOf(page: { readonly keys: Buffer }): BlockKey[] {
  return [...new BigUint64Array(unpackKeyWords(page.keys).buffer)] as BlockKey[];
}
