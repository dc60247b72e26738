/**
 * One seed: a cluster, at least ten requests, faults, and what must hold. The same seed is the same run, event for event.
 *
 *   start ──► requests and faults ──► faults end ──► every request has ended ──► nothing is left open, used or waiting
 */
import assert from 'node:assert/strict';
import type { Failure } from '../../shared/base/failure.ts';
import { asFailure } from '../../shared/base/failure.ts';
import { Random } from '../../shared/base/random.ts';
import { neutralSampling } from '../../shared/instance/engine_call.ts';
import type { SamplingParams } from '../../shared/engine/sampler.ts';
import { holderId } from '../../shared/protocol/membership.ts';
import { tiers, type Tier } from '../../shared/protocol/block_events.ts';
import type { SamplingMessage, SnapshotPage } from '../../shared/protocol/messages.ts';
import { unpackKeys } from '../../shared/protocol/packing.ts';
import { ask } from '../../shared/net/network.ts';
import { lies } from './liar.ts';
import { SimCluster, type Node, type Shape } from './simulated_cluster.ts';
import { plainTokens, SIM_VOCAB, type SimGeneration } from './simulated_device.ts';
import { SimProcess } from './simulation.ts';

export interface SeedResult {
  readonly seed: number;
  readonly numEvents: number;
  readonly numRequests: number;
  readonly numFaults: number;
  readonly traceHash: number;
  /** What went otherwise than it must. */
  readonly failures: readonly string[];
  readonly trace: readonly string[];
  readonly stats: Readonly<Record<string, number>>;
}

/** Requests may take so long, faults and all. */
const REQUEST_MS = 60_000;
/** Until everything that is to end has ended, once faults have. */
const QUIET_MS = 130_000;
const STOP_TOKEN = 7;

/** As the router sends it. */
function messageOf({ logitBias, ...rest }: SamplingParams): SamplingMessage {
  return { ...rest, biasTokens: logitBias.map(([token]) => token), biasValues: logitBias.map(([, bias]) => bias) };
}

interface Client {
  readonly generation: SimGeneration;
  readonly got: number[];
  /** Leaves when it has so many tokens. */
  readonly leavesAt: number | undefined;
  readonly readMs: number;
  outcome: 'running' | 'finished' | 'left' | 'failed';
  failure: Failure | undefined;
}

export async function runSeed(seed: number): Promise<SeedResult> {
  listenForStrays();
  const run = new SeedRun(seed);
  await run.run();
  return run.result();
}

/** Told of what nobody catches, also of a seed that is over: it is found in the next one. */
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
  readonly #clients: Client[] = [];
  readonly #failures: string[] = [];
  readonly #prefixes: number[][];
  #numFaults = 0;
  #areFaultsOver = false;
  #faultsOverMs = 0;

  constructor(seed: number) {
    this.#seed = seed;
    this.#random = new Random(seed * 7_919 + 1);
    const r = this.#random;
    const shape: Shape = {
      numPrefill: r.below(3),
      numDecode: 1 + r.below(3),
      numStores: r.below(3),
      blockSize: 4,
      numBlocks: r.pick([26, 28, 60]),
      chunkTokens: r.pick([5, 16, 64]),
      maxNumSeqs: 1 + r.below(8),
      maxModelLen: 100,
      dramSlots: r.pick([16, 24, 64]),
      diskRecords: r.pick([0, 6, 40]),
      localPrefillTokens: r.pick([0, 6, 1_000]),
      stepMs: r.pick([0.5, 3, 20]),
    };
    this.#cluster = new SimCluster(shape, r);
    this.#prefixes = Array.from({ length: 3 }, () => this.#tokens(12 + r.below(40)));
  }

  #tokens(count: number): number[] {
    return Array.from({ length: count }, () => this.#random.below(SIM_VOCAB));
  }

  async run(): Promise<void> {
    onStray = (error) => {
      this.#fail(`nobody caught: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`);
    };
    await this.#live();
  }

  async #live(): Promise<void> {
    const { simulation, nodes } = this.#cluster;
    try {
      await this.#cluster.startRouter();
      for (const node of nodes) this.#cluster.start(node);
      if (this.#random.chance(1, 4)) await this.#cluster.startLiar(this.#random.pick(lies), this.#prefixes);
      const numRequests = 10 + this.#random.below(6);
      const spanMs = 300 + this.#random.below(3_500);
      for (let i = 0; i < numRequests; i++) {
        simulation.at(this.#random.below(spanMs), this.#cluster.router, 'a client asks', () => {
          this.#begin();
        });
      }
      const numFaults = 3 + this.#random.below(6);
      for (let i = 0; i < numFaults; i++) {
        simulation.at(100 + this.#random.below(spanMs), undefined, 'fault', () => {
          this.#fault();
        });
      }
      simulation.at(spanMs + 200, undefined, 'faults end', () => {
        this.#endFaults();
      });
      const check = (owner: SimProcess | undefined): void => {
        this.#check(owner);
      };
      const isServed = (): boolean =>
        this.#areFaultsOver &&
        this.#clients.length === numRequests &&
        this.#clients.every(({ outcome }) => outcome !== 'running');
      await simulation.run(spanMs + QUIET_MS, () => isServed() || this.#failures.length > 0, check);
      if (this.#failures.length > 0) return;
      for (const [i, { outcome }] of this.#clients.entries()) {
        if (outcome === 'running') this.#fail(`R1: request ${i} has not ended ${QUIET_MS} ms after the faults`);
      }
      // Streams end, exports settle, heartbeats say so, offers reach the stores.
      await simulation.run(simulation.nowMs + 4_000, () => this.#failures.length > 0, check);
      if (this.#failures.length === 0) await this.#checkQuiet();
    } catch (error) {
      this.#fail(error instanceof Error ? (error.stack ?? error.message) : String(error));
    }
  }

  #fail(what: string): void {
    this.#failures.push(what);
  }

  #begin(): void {
    const r = this.#random;
    const prefix = r.chance(3, 4) ? (this.#prefixes[r.below(this.#prefixes.length)] ?? []) : [];
    const tokens = [...prefix.slice(0, prefix.length - r.below(4)), ...this.#tokens(1 + r.below(16))];
    const sampling: SamplingParams = {
      ...neutralSampling,
      temperature: r.pick([0, 0.8, 1.2]),
      topK: r.pick([0, 5]),
      topP: r.pick([1, 0.9]),
      seed: r.u32(),
      presencePenalty: r.pick([0, 0, 0.7]),
    };
    const generation: SimGeneration = {
      tokens,
      maxLength: tokens.length + 2 + r.below(24),
      stopTokenIds: r.chance(1, 2) ? [STOP_TOKEN] : [],
      sampling,
      salt: r.pick(['', '', '', 'tenant']),
    };
    const client: Client = {
      ...{ generation, got: [], outcome: 'running', failure: undefined },
      leavesAt: r.chance(1, 6) ? r.below(10) : undefined,
      readMs: r.chance(1, 6) ? 50 : 0,
    };
    this.#clients.push(client);
    void this.#ask(client, this.#clients.length - 1);
  }

  async #ask(client: Client, index: number): Promise<void> {
    const { core, requests, simulation, router } = this.#cluster;
    const clock = simulation.clockOf(router);
    const { tokens, maxLength, stopTokenIds, sampling, salt } = client.generation;
    const record = requests.open(`r${index}`, '/v1/completions', { clientId: undefined, traceId: undefined });
    const gone = new AbortController();
    if (client.leavesAt === 0) void clock.sleep(5).then(() => gone.abort());
    const stream = core.relay.generate(
      {
        ...{ requestId: `r${index}`, traceId: `t${index}`, tokens, maxLength, isOpenEnded: false, stopTokenIds },
        sampling: messageOf(sampling),
        scope: { adapter: '', salt },
        timeoutMs: REQUEST_MS,
      },
      record,
      gone.signal,
    );
    try {
      for await (const { token, finish } of stream) {
        const expected = tokens.length + client.got.length;
        if (token.position !== expected) this.#fail(`R1: token ${token.position} of request ${index}, not ${expected}`);
        client.got.push(token.id);
        if (finish) client.outcome = 'finished';
        if (client.leavesAt !== undefined && client.got.length >= client.leavesAt) break;
        if (client.readMs > 0) await clock.sleep(client.readMs);
      }
      if (client.outcome === 'running') client.outcome = 'left';
    } catch (error) {
      client.failure = asFailure(error);
      client.outcome = gone.signal.aborted ? 'left' : 'failed';
    }
    requests.close(record, client.outcome === 'finished' ? 'finished' : 'cancelled', 'stop');
    this.#judge(client, index);
  }

  /** The one oracle: the tokens are those of the plain function, as far as they came. */
  #judge({ generation, got, outcome, failure, leavesAt }: Client, index: number): void {
    const want = plainTokens(generation);
    const isPrefix = got.every((token, i) => token === want[i]);
    if (!isPrefix) {
      const at = got.findIndex((token, i) => token !== want[i]);
      this.#fail(`request ${index} differs at token ${at}: ${got.join()} is not ${want.join()}`);
    } else if (outcome === 'finished' && got.length !== want.length && leavesAt === undefined) {
      this.#fail(`request ${index} finished with ${got.length} of ${want.length} tokens`);
    } else if (outcome === 'failed') {
      this.#fail(`R1: request ${index} failed: ${failure?.code} ${failure?.message}`);
    }
  }

  #alive(...roles: string[]): Node[] {
    return this.#cluster.nodes.filter(({ role, process }) => roles.includes(role) && !process.isDead);
  }

  #pickAlive(...roles: string[]): Node | undefined {
    const alive = this.#alive(...roles);
    return alive[this.#random.below(alive.length)];
  }

  #fault(): void {
    if (this.#areFaultsOver) return;
    const r = this.#random;
    const { simulation, fabric, router } = this.#cluster;
    this.#numFaults++;
    const node = this.#pickAlive('prefill', 'decode', 'store');
    if (!node) return;
    const after = (ms: number, label: string, run: () => void): void => {
      simulation.at(ms, undefined, label, run);
    };
    const kinds: (() => void)[] = [
      () => {
        this.#cluster.kill(node);
        after(50 + r.below(1_500), `restart ${node.name}`, () => {
          if (node.process.isDead) this.#cluster.start(node);
        });
      },
      () => {
        simulation.note(`${node.name} is paused`);
        const { process } = node;
        simulation.pause(process);
        after(200 + r.below(6_000), `resume ${node.name}`, () => {
          simulation.resume(process);
        });
      },
      () => {
        const other = this.#pickAlive('prefill', 'decode', 'store')?.process ?? router;
        const peer = r.chance(1, 2) ? router : other;
        simulation.note(`cut ${node.name} ${peer.name}`);
        fabric.cut(node.process, peer);
      },
      () => {
        const peer = r.chance(1, 2) ? router : (this.#pickAlive('prefill', 'decode', 'store')?.process ?? router);
        if (peer === node.process) return;
        const [from, to] = r.chance(1, 2) ? [node.process, peer] : [peer, node.process];
        simulation.note(`partition ${from.name}>${to.name}`);
        fabric.partition(from, to);
        const isBothWays = r.chance(1, 2);
        if (isBothWays) fabric.partition(to, from);
        after(100 + r.below(8_000), `heal ${from.name} ${to.name}`, () => {
          fabric.heal(from, to);
          if (isBothWays) fabric.heal(to, from);
        });
      },
      () => {
        fabric.faults.flipsPerMillion = 200_000;
        after(300 + r.below(2_000), 'no more flips', () => (fabric.faults.flipsPerMillion = 0));
      },
      () => {
        fabric.faults.duplicatesPerMillion = 300_000;
        fabric.faults.reordersPerMillion = 300_000;
        after(300 + r.below(2_000), 'the bus is in order', () => {
          fabric.faults.duplicatesPerMillion = 0;
          fabric.faults.reordersPerMillion = 0;
        });
      },
      () => {
        fabric.latencyMs = r.pick([2, 30]);
        after(500 + r.below(1_500), 'links are fast again', () => (fabric.latencyMs = 0.2));
      },
      () => {
        node.process.wallOffsetMs += (r.below(2_000) - 1_000) * 3_600;
        simulation.note(`the wall clock of ${node.name} jumps`);
      },
      () => {
        const { disk } = node;
        simulation.note(`the disk of ${node.name} is full, slow or rotten`);
        const kind = r.below(3);
        if (kind === 0) disk.writeError = 'ENOSPC: no space left on device';
        else if (kind === 1) disk.slowness = 300;
        else for (let i = 0; i < 5; i++) disk.rot((bound) => r.below(Math.max(1, bound)));
        after(500 + r.below(2_000), 'the disk is well', () => {
          disk.writeError = undefined;
          disk.slowness = 1;
        });
      },
    ];
    kinds[r.below(kinds.length)]?.();
  }

  #endFaults(): void {
    this.#areFaultsOver = true;
    const { simulation, fabric, nodes } = this.#cluster;
    this.#faultsOverMs = simulation.nowMs;
    fabric.healAll();
    Object.assign(fabric.faults, { flipsPerMillion: 0, duplicatesPerMillion: 0, reordersPerMillion: 0 });
    fabric.latencyMs = 0.2;
    for (const node of nodes) {
      simulation.resume(node.process);
      node.disk.writeError = undefined;
      node.disk.slowness = 1;
    }
    // As a supervisor does, also for those that end by themselves.
    const revive = (): void => {
      for (const node of nodes) if (node.process.isDead) this.#cluster.start(node);
      simulation.at(500, undefined, 'supervisor', revive);
    };
    revive();
  }

  /** After every event: what must hold of the process whose event it was. */
  #check(owner: SimProcess | undefined): void {
    for (const fault of this.#cluster.faults.splice(0)) this.#fail(fault);
    if (!owner || owner.isDead) return;
    const node = this.#cluster.nodes.find(({ process }) => process === owner);
    node?.engine?.loop.engine.pool.checkIntegrity();
  }

  /** R2, and the index: with nothing to do, nothing is open, used or waiting anywhere. */
  async #checkQuiet(): Promise<void> {
    const { core, fabric, nodes, requests } = this.#cluster;
    if (requests.numActive > 0) this.#fail(`R2: ${requests.numActive} requests are active`);
    for (const call of fabric.openCalls(['fetch', 'offer', 'prefill', 'decode', 'snapshot'])) {
      this.#fail(`R2: a ${call.name} call of ${call.client.name} to ${call.address} is open`);
    }
    for (const node of nodes) {
      const instance = core.view.all().find(({ member }) => member.name === node.name);
      if (!instance || node.process.isDead) {
        this.#fail(`${node.name} is not in the cluster ${node.failure ?? ''}`);
        continue;
      }
      if (instance.numPlaced !== 0) this.#fail(`R2: ${instance.numPlaced} requests are placed at ${node.name}`);
      const { load } = instance;
      const open = [load?.running, load?.waiting, load?.openStreams];
      if (open.some((count) => count !== 0)) this.#fail(`R2: ${node.name} says running, waiting, open: ${open.join()}`);
      if (node.engine) this.#checkEngine(node, node.engine);
    }
    if (this.#failures.length === 0) await this.#checkIndex();
  }

  #checkEngine({ name }: Node, { loop }: NonNullable<Node['engine']>): void {
    const { pool, load } = loop.engine;
    pool.checkIntegrity();
    if (load.numRunning + load.numWaiting > 0)
      this.#fail(`R2: ${name} has ${load.numRunning}+${load.numWaiting} sequences`);
    if (pool.numAvailable !== pool.numBlocks) {
      this.#fail(`R2: ${pool.numBlocks - pool.numAvailable} blocks of ${name} are used by nobody`);
    }
  }

  /** What the router believes that holders have is what they have. */
  async #checkIndex(): Promise<void> {
    const { core, fabric, simulation } = this.#cluster;
    const auditor = new SimProcess('auditor');
    const network = fabric.networkOf(auditor);
    const keys = new Set<bigint>();
    for (const instance of core.view.all()) {
      const pages: SnapshotPage[] = [];
      let isDone = false;
      const options = { signal: new AbortController().signal, timeoutMs: 10_000 };
      const reading = (async () => {
        for await (const page of ask(network, instance.member.address, 'snapshot', {}, options)) pages.push(page);
        isDone = true;
      })();
      await simulation.run(
        simulation.nowMs + 1_000,
        () => isDone,
        () => undefined,
      );
      assert(isDone, `${instance.member.name} gives no snapshot`);
      await reading;
      this.#checkAnnounced(instance.member.name, pages);
      for (const key of pages.flatMap((page) => unpackKeys(page.keys))) {
        keys.add(key);
        const link = { key, parent: key, digest: '' as never };
        if (!core.index.runs([link]).has(holderId(instance.member))) {
          this.#fail(`the index does not know that ${instance.member.name} has ${key}`);
        }
      }
    }
    if (core.index.size !== keys.size) {
      this.#fail(`the index has ${core.index.size} keys, holders have ${keys.size}`);
    }
  }

  /** What a holder says it has in its device and on its disk is what is there. */
  #checkAnnounced(name: string, pages: readonly SnapshotPage[]): void {
    const node = this.#cluster.nodes.find((one) => one.name === name);
    const said = (tier: Tier): Set<bigint> =>
      new Set(pages.filter((page) => page.tier === tiers.indexOf(tier)).flatMap((page) => unpackKeys(page.keys)));
    const compare = (tier: Tier, held: ReadonlySet<bigint>): void => {
      const announced = said(tier);
      const missing = [...held].filter((key) => !announced.has(key)).length;
      const extra = [...announced].filter((key) => !held.has(key)).length;
      if (missing + extra > 0)
        this.#fail(`${name} announces ${extra} blocks of its ${tier} that are not there, ${missing} not at all`);
    };
    if (node?.engine) compare('device', new Set(node.engine.loop.engine.pool.keys()));
    if (node?.role === 'store') compare('disk', new Set(node.disk.committed.keys()));
  }

  result(): SeedResult {
    const { simulation, numFailovers, fabric } = this.#cluster;
    const count = (outcome: string): number => this.#clients.filter((client) => client.outcome === outcome).length;
    return {
      seed: this.#seed,
      numEvents: simulation.numEvents,
      numRequests: this.#clients.length,
      numFaults: this.#numFaults,
      traceHash: simulation.traceHash >>> 0,
      failures: this.#failures,
      trace: simulation.trace,
      stats: {
        finished: count('finished'),
        left: count('left'),
        failed: count('failed'),
        failovers: numFailovers,
        preemptions: this.#cluster.numPreemptions,
        flips: fabric.numFlips,
        endMs: Math.round(simulation.nowMs - this.#faultsOverMs),
      },
    };
  }
}
