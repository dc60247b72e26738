/**
 * The simulated cluster: instances of step-time models under the production conductor and prefix index.
 *
 *   engines ──heartbeats──► instances (the router's view) ─┐
 *      └──────block events──► prefix index ────────────────┴──► conductor ──► placement
 */
import { Random } from '../../shared/base/random.ts';
import type { BlockRun, Tier } from '../../shared/protocol/block_events.ts';
import type { Registration, Role } from '../../shared/protocol/membership.ts';
import { Instance } from '../../shared/placement/instance.ts';
import type { Placements } from '../../shared/placement/open_placements.ts';
import type { ClusterModel, MembersView } from '../../shared/placement/members_view.ts';
import { PrefixIndex } from '../../shared/placement/prefix_index/prefix_index.ts';
import { Conductor } from '../../shared/placement/conductor.ts';
import type { Policy } from '../../shared/placement/policy.ts';
import { FullEngine } from './full_engine.ts';
import type { EngineContext, EngineSizes, ReplayEngine } from './replay_engine.ts';
import type { Activity } from './loop_activity.ts';
import type { ReplayTime } from './replay_time.ts';
import { LINK_LATENCY_MS } from './simulated_links.ts';
import { SimulatedEngine } from './simulated_engine.ts';
import type { TenantLedger } from './tenant_ledger.ts';
import type { TraceHash, TraceHashes } from './trace_hashes.ts';

/** Milliseconds between two heartbeats, and the least between two that placements cause, as in shared/node/cluster_member.ts. */
const HEARTBEAT_MS = 500;
const MIN_HEARTBEAT_MS = 50;
/** Milliseconds for which block events are collected before they are published. */
const BLOCK_EVENTS_MS = 10;
const ROUTER = 'replay';

/** A simulated instance as engine and as the router's view of it. */
export interface SimulatedNode {
  readonly engine: ReplayEngine;
  readonly instance: Instance;
  /** Number of the last placement that the engine has seen. */
  seen: number;
  heardMs: number;
  isHeartbeatDue: boolean;
  readonly runs: { isStored: boolean; tier: Tier; words: number[] }[];
}

/** Parts of a simulated cluster. */
export interface ClusterOptions {
  readonly time: ReplayTime;
  readonly seed: number;
  readonly policy: Policy;
  readonly hashes: TraceHashes;
  readonly numPrefill: number;
  readonly numDecode: number;
  readonly sizesOf: (index: number) => EngineSizes;
  readonly maxModelLen: number;
  /** Returns what counts the milliseconds of a further instance by tenant. */
  readonly ledgerOf: () => TenantLedger;
  /** Loops of production engines; undefined: engines are simulated by the light model. */
  readonly activity?: Activity | undefined;
}

/** Instances, the router's view of them, and its conductor. */
export class SimulatedCluster {
  readonly nodes: readonly SimulatedNode[];
  readonly conductor: Conductor;
  readonly index = new PrefixIndex();
  readonly #time: ReplayTime;
  readonly #byId = new Map<string, SimulatedNode>();
  readonly #byAddress = new Map<string, SimulatedNode>();
  #isPlaced = false;

  constructor(options: ClusterOptions) {
    const { time, seed, numPrefill, numDecode, policy } = options;
    this.#time = time;
    const placements: Placements = { last: 0 };
    const nodes: SimulatedNode[] = [];
    for (let i = 0; i < numPrefill + numDecode; i++) nodes.push(this.#node(options, i, placements));
    this.nodes = nodes;
    const byRole: Record<Role, Instance[]> = { router: [], store: [], prefill: [], decode: [] };
    for (const { instance } of nodes) byRole[instance.member.role].push(instance);
    const all = nodes.map(({ instance }) => instance);
    const view: MembersView = {
      model: { format: { blockSize: options.sizesOf(0).blockTokens } } as unknown as ClusterModel,
      otherRouters: [],
      all: () => all,
      of: (role) => byRole[role],
      generating: () => all,
      byHolder: (id) => this.#byId.get(id)?.instance,
      decodeSeenMs: () => time.nowMs,
      changed: () => Promise.reject(new Error('a replay has no promises')),
    };
    const random = new Random(seed);
    this.conductor = new Conductor({
      view,
      index: this.index,
      policy,
      clock: time.clock,
      random,
      tieBreak: 0,
      isLogging: false,
    });
    for (const node of nodes) this.#heartbeat(node);
  }

  #node(options: ClusterOptions, i: number, placements: Placements): SimulatedNode {
    const { time, seed, numPrefill, hashes, maxModelLen } = options;
    const role = i < numPrefill ? 'prefill' : 'decode';
    const name = `${role}-${i < numPrefill ? i : i - numPrefill}`;
    const member = { name, role, address: `${name}:1`, pid: 1, epoch: 'e' } as const;
    const context: EngineContext = {
      time,
      random: new Random(seed * 65_537 + i),
      hashes,
      ledger: options.ledgerOf(),
      events: {
        onBlock: (isStored, tier, hash) => {
          this.#onBlock(node, isStored, tier, hash);
        },
        onFetched: (from, to, bytes, { movingMs }) => {
          if (this.#isPlaced) return;
          const link = { address: `${from.name}:1`, bytes, movingMs, latencyMs: LINK_LATENCY_MS, way: 'socket' };
          this.conductor.links.learn(`${to.name}/e`, [link]);
        },
      },
    };
    const { activity } = options;
    const sizes = options.sizesOf(i);
    const engine = activity
      ? new FullEngine(name, sizes, { ...context, activity })
      : new SimulatedEngine(name, sizes, context);
    const registration = { member, protocolVersion: 0, engine: { maxModelLen } } as unknown as Registration;
    const instance = new Instance(registration, 0, placements);
    const node: SimulatedNode = { engine, instance, seen: 0, heardMs: -Infinity, isHeartbeatDue: false, runs: [] };
    this.#byId.set(instance.id, node);
    this.#byAddress.set(member.address, node);
    return node;
  }

  nodeOf(instance: Instance): SimulatedNode {
    const node = this.#byId.get(instance.id);
    if (!node) throw new Error(`${instance.id} is no instance of this cluster`);
    return node;
  }

  atAddress(address: string): SimulatedNode {
    const node = this.#byAddress.get(address);
    if (!node) throw new Error(`no instance has the address ${address}`);
    return node;
  }

  /** Records that the engine saw a placement; its heartbeat follows within MIN_HEARTBEAT_MS, as in production. */
  saw(node: SimulatedNode, placement: number): void {
    node.seen = Math.max(node.seen, placement);
    if (node.isHeartbeatDue || this.#isPlaced) return;
    node.isHeartbeatDue = true;
    this.#time.at(node.heardMs + MIN_HEARTBEAT_MS, () => {
      node.isHeartbeatDue = false;
      this.#sendHeartbeat(node);
    });
  }

  /** The last request was placed: heartbeats, block events and speeds of links, which only placements read, end. */
  placedAll(): void {
    this.#isPlaced = true;
  }

  #heartbeat(node: SimulatedNode): void {
    if (this.#isPlaced) return;
    if (this.#time.nowMs - node.heardMs >= HEARTBEAT_MS - 1) this.#sendHeartbeat(node);
    this.#time.at(node.heardMs + HEARTBEAT_MS, () => {
      this.#heartbeat(node);
    });
  }

  #sendHeartbeat(node: SimulatedNode): void {
    if (this.#isPlaced) return;
    const { engine, instance, seen } = node;
    node.heardMs = this.#time.nowMs;
    const { numHeld: running, numWaiting: waiting, numPreemptions: preemptions, work } = engine;
    const load = { running, waiting, preemptions, lastStepMs: 0, isDraining: false, tiers: {}, work };
    instance.receiveHeartbeat({ load, blocks: 0, seen: { [ROUTER]: seen } }, ROUTER, this.#time.nowMs);
  }

  #onBlock(node: SimulatedNode, isStored: boolean, tier: Tier, { low, high }: TraceHash): void {
    if (this.#isPlaced) return;
    const { runs } = node;
    if (runs.length === 0)
      this.#time.after(BLOCK_EVENTS_MS, () => {
        this.#publish(node);
      });
    const last = runs.at(-1);
    if (last?.isStored === isStored && last.tier === tier) last.words.push(low, high);
    else runs.push({ isStored, tier, words: [low, high] });
  }

  #publish({ runs, instance }: SimulatedNode): void {
    if (this.#isPlaced) return;
    for (const { isStored, tier, words } of runs) {
      const run: BlockRun = { operation: isStored ? 'stored' : 'removed', tier, keys: Int32Array.from(words) };
      this.index.apply(instance.id, run);
    }
    runs.length = 0;
  }
}
