/**
 * Members of a pool that answer at once, many in one process: each has a connection to the hub, an address and heartbeats of its own, holds blocks, and
 * takes and evicts some. Started by watch.ts; says `joined` to its parent once all are members.
 */
import { every, systemClock } from '../../shared/base/clock.ts';
import { shapeOf } from '../../shared/engine/architectures/registry.ts';
import { chainOf, type BlockHash, type BlockKey } from '../../shared/kv/block_key.ts';
import { formatDigest } from '../../shared/kv/format.ts';
import { WantedKeys } from '../../shared/kv/wanted_keys.ts';
import { readModelFolder } from '../../shared/model/model_folder.ts';
import { shapeDigest } from '../../shared/model/model_shape.ts';
import { createFetchHandlers } from '../../shared/net/fetch/fetch_server.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { DecodeServer } from '../../shared/net/decode/served_decodes.ts';
import type { Handler } from '../../shared/net/network.ts';
import { RoutersSeen } from '../../shared/node/routers_seen.ts';
import type { Tier } from '../../shared/protocol/block_events.ts';
import { iterationBuckets } from '../../shared/protocol/engine_histograms.ts';
import type { Flow, InstanceLoad, Member, Role } from '../../shared/protocol/membership.ts';
import type { Report, RequestContext, Source } from '../../shared/protocol/messages.ts';
import { unpackTokens } from '../../shared/protocol/packing.ts';
import { copySource } from '../support/borrowing.ts';
import { hubOf, joinAsFake, type FakeMember } from '../support/fake_member.ts';
import { FORMAT } from './fake_instance.ts';
import { BLOCK_SIZE, chatTokens, numChats } from './watch_prompts.ts';

/** Roles of five members in turn: 2 in 5 prefill, 2 in 5 decode, 1 in 5 stores. */
const ROLES = ['prefill', 'decode', 'prefill', 'decode', 'store'] as const satisfies Role[];
const BLOCK_BYTES = 98_304;
const CHURN_MS = 1_000;
/** Flows of a heartbeat. */
const MAX_LINKS = 8;

const [hub = '', modelPath = '', first = '0', last = '1', all = '1', blocks = '1'] = process.argv.slice(2);
const folder = readModelFolder(modelPath);
const { vocabSize } = folder.config;
const modelConfig = shapeDigest(shapeOf(folder));
const root = formatDigest(FORMAT);
const numStores = Math.floor(Number(all) / ROLES.length);
const numEngines = Number(all) - numStores;

/** One member, whose load follows from its calls. */
class InstantMember {
  readonly role: Role;
  readonly #index: number;
  readonly #seen = new RoutersSeen();
  readonly #network = new GrpcNetwork('', systemClock);
  readonly #flows = new Map<string, Flow>();
  /** Blocks of the device, the one that was used least recently first. */
  readonly #held = new Map<BlockKey, BlockHash>();
  readonly #counts = { running: 0, steps: 0, hits: 0, misses: 0, evictions: 0 };
  #fake: FakeMember | undefined;

  constructor(index: number) {
    this.#index = index;
    this.role = ROLES[index % ROLES.length] ?? 'store';
  }

  async join(): Promise<void> {
    const epoch = `e${process.pid}-${this.#index}`;
    const { fetch, snapshot } = createFetchHandlers(
      () => ({
        wanted: new WantedKeys(),
        ...copySource(() => Promise.resolve(undefined)),
        snapshot: () => this.#announcer.snapshot(),
      }),
      { maxStreams: 64 },
    );
    const calls = { fetch, snapshot, decode: this.#decode };
    const { address } = await this.#network.listen('127.0.0.1:0', calls, epoch);
    const member: Member = { name: `${this.role}-${this.#index}`, role: this.role, address, pid: process.pid, epoch };
    const seen = this.#seen;
    const engine = {
      format: FORMAT,
      modelConfig,
      numericsClass: 'none',
      maxModelLen: 2_048,
      vocabSize,
      device: 'none',
    };
    await new Promise<void>((resolve) => {
      this.#fake = joinAsFake({
        member,
        clock: systemClock,
        openBus: hubOf(hub, '', this.#network, systemClock),
        ...(this.role === 'store' ? {} : { engine }),
        load: () => this.#load(),
        seen: () => seen.placements,
        onJoined: resolve,
      });
      this.#holdChats();
    });
    every(systemClock, CHURN_MS, new AbortController().signal, () => {
      this.#churn();
    });
  }

  get #announcer(): FakeMember['announcer'] {
    if (!this.#fake) throw new Error('it has not joined');
    return this.#fake.announcer;
  }

  /** Announces its share of the chats: engines the whole of them, stores the first half, a quarter of that on disk too. */
  #holdChats(): void {
    const group = Math.floor(this.#index / ROLES.length);
    const isStore = this.role === 'store';
    const rank = isStore ? group : group * (ROLES.length - 1) + (this.#index % ROLES.length);
    for (let chat = rank; chat < numChats(Number(blocks)); chat += isStore ? numStores : numEngines) {
      const hashes = chainOf(root, BLOCK_SIZE, chatTokens(chat, vocabSize));
      if (!isStore) for (const hash of hashes) this.#hold('device', hash);
      else
        for (const [i, hash] of hashes.slice(0, hashes.length / 2).entries()) {
          this.#hold('dram', hash);
          if (i % 4 === 0) this.#announcer.stored('disk', hash);
        }
    }
  }

  #hold(tier: Tier, hash: BlockHash): void {
    this.#held.set(hash.key, hash);
    this.#announcer.stored(tier, hash);
  }

  /** Evicts the block that it has had for longest, and has it again the next time: a pool that is full changes all the time. */
  #churn(): void {
    const [oldest] = this.#held.values();
    const tier = this.role === 'store' ? 'dram' : 'device';
    this.#counts.steps++;
    if (!oldest) return;
    this.#held.delete(oldest.key);
    this.#announcer.removed(tier, oldest.key);
    this.#counts.evictions++;
    this.#hold(tier, oldest);
  }

  readonly #decode: Handler<'decode'> = new DecodeServer(
    systemClock,
    ({ context, tokens, sources }, _call, output) => {
      const report = this.#compute(context, tokens, sources);
      const position = tokens.length / 4;
      output.token({ token: 7, logprob: [], topTokens: [], topLogprobs: [], position }, 'length', report);
      return { take: () => undefined };
    },
    ({ context, tokens, sources }, _call, output) => {
      const report = this.#compute(context, tokens, sources);
      const numTokens = tokens.length / 4;
      output.prefill({ numReady: numTokens - (numTokens % BLOCK_SIZE), numRun: report.computedTokens, report });
    },
  ).handler;

  /** Takes a prompt: finds blocks here and at the sources, and announces all. */
  #compute(context: RequestContext | null, packed: Buffer, sources: readonly Source[]): Report {
    if (context) this.#seen.saw(context);
    const tokens = unpackTokens(packed);
    const hashes = chainOf(root, BLOCK_SIZE, tokens);
    const missing = hashes.findIndex(({ key }) => !this.#held.has(key));
    const numHeld = missing < 0 ? hashes.length : missing;
    const numLeft = hashes.length - numHeld;
    const numSourced = sources.reduce((sum, { start, end }) => sum + end - start, 0);
    const numFetched = Math.max(0, Math.min(numLeft, numSourced));
    for (const { address, start, end } of sources) this.#move(address, end - start);
    for (const hash of hashes.slice(numHeld)) this.#hold('device', hash);
    const [cachedTokens, fetchedTokens] = [numHeld * BLOCK_SIZE, numFetched * BLOCK_SIZE].map((count) =>
      Math.min(count, tokens.length - 1),
    ) as [number, number];
    this.#counts.hits += numHeld + numFetched;
    this.#counts.misses += numLeft - numFetched;
    this.#counts.running = 1 + (this.#counts.steps % 3);
    void this.#fake?.cluster.loadChanged();
    return {
      cachedTokens,
      fetchedTokens: Math.min(fetchedTokens, tokens.length - 1 - cachedTokens),
      computedTokens: Math.max(1, tokens.length - cachedTokens - fetchedTokens),
      queueMs: 0,
      loadMs: 0,
      computeMs: 1,
      fetchedBytes: numFetched * BLOCK_BYTES,
      links: [],
      sources: null,
    };
  }

  #move(from: string, numBlocks: number): void {
    const { bytes = 0, records = 0, ms = 0 } = this.#flows.get(from) ?? {};
    const moved = { bytes: bytes + numBlocks * BLOCK_BYTES, records: records + numBlocks, ms: ms + numBlocks };
    this.#flows.delete(from);
    this.#flows.set(from, { from, way: 'socket', ...moved, failures: 0 });
  }

  #load(): InstanceLoad {
    const { running, steps, hits, misses, evictions } = this.#counts;
    this.#counts.running = 0;
    const tier = {
      blocks: this.#held.size,
      bytes: this.#held.size * BLOCK_BYTES,
      capacityBytes: 400 * BLOCK_BYTES,
      hits,
      misses,
      evictions,
      dedupFactor: 1.25,
    };
    const common = { running, waiting: steps % 2, preemptions: 0, openStreams: steps % 4, isDraining: false };
    const links = [...this.#flows.values()].slice(-MAX_LINKS);
    if (this.role === 'store')
      return { ...common, lastStepMs: 0, divergent: 0, links, tiers: { dram: tier, disk: { ...tier, evictions: 0 } } };
    const none = { sequences: 0, contextTokens: 0 };
    return {
      ...common,
      lastStepMs: 10 + (steps % 7),
      kvUsage: this.#held.size / 400,
      arriving: 0,
      lent: 0,
      deferred: 0,
      kvFetch: { waiting_to_start: 0, in_progress: 0, completed_waiting: 0 },
      kv: { blocks: 400, hostBlocks: 400 },
      iterationTokens: { counts: iterationBuckets.map((_, i) => steps + i), sum: steps },
      fetched: { memory: 0, socket: steps * BLOCK_BYTES, call: 0 },
      links,
      work: {
        step: { constantMs: 5, rowMs: 0.1, pairMs: 1e-5, contextMs: 1e-5, sequenceMs: 0.1 },
        chunkTokens: 512,
        maxNumSeqs: 64,
        pacedStepMs: 0,
        prompts: { tokens: 0, pairs: 0, sequences: 0 },
        generating: none,
        coming: none,
        numBlocks: 400,
        freeBlocks: 400 - this.#held.size,
        waitingBlocks: 0,
        blockBytes: BLOCK_BYTES,
        promptsMs: 0,
        ends: [],
      },
      tiers: { device: tier, dram: { ...tier, blocks: 0, bytes: 0 } },
    };
  }
}

const members = Array.from({ length: Number(last) - Number(first) }, (_, i) => new InstantMember(Number(first) + i));
await Promise.all(members.map((member) => member.join()));
process.send?.('joined');
