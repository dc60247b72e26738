/**
 * A made-up cluster for tests of the dashboard: bodies of the router's APIs for any number of nodes, blocks and requests. The same seed and
 * the same times give the same bodies.
 */
import { Random } from '../../shared/base/random.ts';
import type {
  BlockRunView,
  BlocksBody,
  ClusterEvent,
  Health,
  HistoryBody,
  LinkView,
  LookupBody,
  NodeView,
  PoolBody,
  RequestPage,
  RequestRow,
  ReuseBody,
  StreamTick,
  TierView,
  TokenSources,
} from '../../shared/protocol/router_api.ts';
import { SERIES } from './dashboard_series.ts';

const GIB = 2 ** 30;
const BLOCK_BYTES = 2 * 2 ** 20;

/** How large the made-up cluster is. */
export interface WorldSize {
  readonly nodes: number;
  readonly blocks: number;
  readonly requests: number;
  readonly seed: number;
}

/** The cluster. `tick` moves it on. */
export class World {
  readonly #random: Random;
  readonly #size: WorldSize;
  readonly #router: PoolBody['router'];
  readonly nodes: NodeView[];
  flows: LinkView[] = [];
  events: ClusterEvent[] = [];
  requests: RequestRow[] = [];
  #at: number;
  #nextRequest = 1;

  constructor(size: WorldSize, at: number, epoch = 'epoch-1') {
    this.#size = size;
    this.#random = new Random(size.seed);
    this.#at = at;
    this.#router = {
      name: 'router@127.0.0.1:8000',
      epoch,
      started_at: at - 3_600_000,
      requests: 0,
      answers: 0,
      body_bytes: 0,
      promises: 0,
    };
    this.nodes = Array.from({ length: size.nodes }, (_, i) => this.#node(i));
    this.flows = this.#flows();
    this.#event('router_started', null, 'The router started.');
    for (const { name, role } of this.nodes.slice(0, 30)) this.#event('joined', name, `${role} ${name} joined.`);
    for (let i = 0; i < size.requests; i++)
      this.requests.unshift(this.#request(at - ((size.requests - i) * 900_000) / size.requests));
  }

  /** Moves the cluster on to a time. `requests` new ones arrive. @returns what changed since the tick before. */
  tick(at: number, requests = 3): StreamTick {
    this.#at = at;
    const numChanged = Math.min(this.nodes.length, 20);
    const changed = Array.from({ length: numChanged }, () => this.#random.below(this.nodes.length));
    for (const i of changed) this.nodes[i] = this.#moved(this.nodes[i]!);
    const flows = Array.from({ length: Math.min(10, this.flows.length) }, () => this.#random.below(this.flows.length));
    for (const i of flows) this.flows[i] = this.#movedLink(this.flows[i]!);
    const added = Array.from({ length: requests }, () => this.#request(at));
    this.requests.unshift(...added);
    this.requests.length = Math.min(this.requests.length, 10_000);
    return {
      ...this.#head(),
      nodes: changed.map((i) => this.nodes[i]!),
      gone: [],
      flows: flows.map((i) => this.flows[i]!),
      events: [],
      requests: added,
    };
  }

  /** The first tick of a connection: everything, and the newest 100 requests and events. */
  first(): StreamTick {
    const { nodes, flows } = this;
    return {
      ...this.#head(),
      nodes,
      gone: [],
      flows,
      events: this.events.slice(0, 100),
      requests: this.requests.slice(0, 100),
    };
  }

  /** Loses a node: an event, and a tick without it. */
  lose(name: string): StreamTick {
    const at = this.nodes.findIndex((node) => node.name === name);
    const [node] = this.nodes.splice(at, 1);
    const text = `${node?.role} ${name} was lost: no heartbeat for 3 s.`;
    const event = this.#event('lost', name, text);
    return { ...this.#head(), nodes: [], gone: [name], flows: [], events: [event], requests: [] };
  }

  /** Changes a node's state. */
  setState(name: string, state: string, reason: string | null = null): StreamTick {
    const at = this.nodes.findIndex((node) => node.name === name);
    this.nodes[at] = { ...this.nodes[at]!, state, unreachable: reason };
    const event = this.#event(state === 'alive' ? 'reachable' : 'unreachable', name, `${name} is ${state}.`);
    return { ...this.#head(), nodes: [this.nodes[at]], gone: [], flows: [], events: [event], requests: [] };
  }

  pool(): PoolBody {
    const { nodes, flows } = this;
    const router = this.#router;
    const index = { index_keys: this.#size.blocks, index_bytes: this.#size.blocks * 48 };
    const policy = {
      name: 'shortest_time',
      places_by: 'predicted time to first token',
      version: 0,
      since: '',
      set_by: null,
    };
    const models = ['harbour-8b', 'harbour-small'];
    return {
      as_of: this.#at,
      router,
      health: this.#health(),
      nodes,
      flows,
      ...index,
      other_routers: [],
      models,
      policy,
      model: null,
      links: [],
      bus: { name: 'hub', connected: true, unverified: 0, replayed: 0 },
    };
  }

  history(scope: string, stepMs: number, length: number): HistoryBody {
    const tiers = ['device', 'dram', 'disk'].flatMap((tier) => [`${tier}_bytes`, `${tier}_capacity_bytes`]);
    const names = [...Object.keys(SERIES), ...tiers];
    const start = this.#at - (length - 1) * stepMs;
    const series = names.map((name, n) => {
      const scale = SERIES[name] ?? (name.includes('capacity') ? 40 * GIB : 24 * GIB);
      const swing = name.includes('capacity') ? 0 : 0.3;
      const value = (i: number): number => scale * (1 + swing * Math.sin((start / stepMs + i) / 40 + n));
      return [name, Array.from({ length }, (_, i) => Number(value(i).toPrecision(4)))] as const;
    });
    return { as_of: this.#at, scope, start_at: start, step_ms: stepMs, series: Object.fromEntries(series) };
  }

  reuse(): ReuseBody {
    const curve = Array.from({ length: 16 }, (_, i) => ({
      bytes: 2 ** (i + 28),
      hit_ratio: Number((0.86 * (1 - Math.exp(-(2 ** (i - 8))))).toFixed(3)),
    }));
    const tier = (capacity: number, ratio: number, doubled: number) => ({
      capacity_bytes: capacity,
      hit_ratio: ratio,
      hit_ratio_doubled: doubled,
    });
    const tiers = {
      device: tier(16 * GIB, 0.31, 0.42),
      dram: tier(64 * GIB, 0.54, 0.74),
      disk: tier(512 * GIB, 0.85, 0.86),
    };
    return { as_of: this.#at, sampled_keys: 1_562, accesses: 48_211, curve, tiers };
  }

  requestPage(limit: number, cursor: number): RequestPage {
    const requests = this.requests.slice(cursor, cursor + limit);
    const next = cursor + limit < this.requests.length ? String(cursor + limit) : null;
    return { as_of: this.#at, requests, next, kept: this.requests.length };
  }

  blocks(limit: number): BlocksBody {
    const random = new Random(this.#size.seed + 1);
    const holders = this.nodes.slice(0, 8).map(({ name }) => name);
    const runs: BlockRunView[] = [];
    const grow = (parent: string | null, depth: number, blocks: number): void => {
      if (blocks < 1 || runs.length >= limit) return;
      const length = Math.max(1, Math.min(blocks, 1 + random.below(12)));
      const left = blocks - length;
      const children = left === 0 ? 0 : Math.min(left, 1 + random.below(5));
      const key = (runs.length + 1).toString(16).padStart(16, '0');
      const held = holders.flatMap((_, i) => (random.below(3) === 0 ? [[i, ['dram']] as const] : []));
      const used_at = this.#at - random.below(3_600_000);
      runs.push({
        key,
        parent,
        depth,
        length,
        blocks,
        children,
        held_by: held.length > 0 ? held : [[0, ['device']]],
        used_at,
      });
      for (let i = 0; i < children; i++) grow(key, depth + length, Math.floor(left / children));
    };
    for (const share of [0.5, 0.25, 0.15, 0.1]) grow(null, 0, Math.floor(this.#size.blocks * share));
    return {
      as_of: this.#at,
      is_ready: true,
      total_blocks: this.#size.blocks,
      holders,
      runs,
      is_truncated: runs.length >= limit,
    };
  }

  lookup(text: string): LookupBody {
    const texts = text.split(/(?<=\s)/);
    const half = Math.floor(texts.length / 2);
    const [node, other] = this.nodes;
    const placement = (decode: string, price: number, isChosen: boolean) => ({
      decode,
      prefill: null,
      price_ms: price,
      parts: { queue: price / 3, load: price / 3, compute: price / 3 },
      is_chosen: isChosen,
      reason: isChosen ? 'lowest predicted time' : 'dearer',
    });
    return {
      as_of: this.#at,
      model: 'harbour-8b',
      block_size: 16,
      texts,
      prompt_tokens: texts.length,
      ranges: [{ start: 0, end: half, held_by: [{ node: node!.name, tiers: ['device'] }] }],
      misses: [{ start: half, end: texts.length, reason: 'never_seen' }],
      cached_tokens: half,
      unplaced: null,
      placements: [placement(node!.name, 12.5, true), ...(other ? [placement(other.name, 31, false)] : [])],
    };
  }

  #head(): Pick<StreamTick, 'as_of' | 'router' | 'health' | 'now'> {
    const swing = (n: number): number => 1 + 0.3 * Math.sin(this.#at / 40_000 + n);
    const now = Object.entries(SERIES).map(([name, scale], n) => [name, Number((scale * swing(n)).toPrecision(4))]);
    return {
      as_of: this.#at,
      router: { name: this.#router.name, epoch: this.#router.epoch },
      health: this.#health(),
      now: Object.fromEntries(now) as Record<string, number>,
    };
  }

  #health(): Health {
    const sick = this.nodes.filter(({ state }) => state !== 'alive');
    const problems = sick.slice(0, 5).map(({ name, state, unreachable }) => `${name} is ${unreachable ?? state}`);
    return { state: problems.length > 0 ? 'degraded' : 'ok', problems };
  }

  #event(kind: ClusterEvent['kind'], node: string | null, text: string): ClusterEvent {
    const role = this.nodes.find(({ name }) => name === node)?.role ?? null;
    const event = { id: (this.events[0]?.id ?? 0) + 1, at: this.#at, kind, node, role, model: null, text };
    this.events.unshift(event);
    return event;
  }

  #tier(capacity: number, share: number): TierView {
    const bytes = Math.floor(capacity * share);
    return {
      blocks: Math.floor(bytes / BLOCK_BYTES),
      bytes,
      capacity_bytes: capacity,
      hits: this.#random.below(90_000),
      misses: this.#random.below(40_000),
      evictions: this.#random.below(20_000),
      dedup_factor: 1.2,
      formats: null,
      fault: null,
    };
  }

  #node(i: number): NodeView {
    const role = i % 5 === 4 ? 'store' : i % 2 === 0 ? 'decode' : 'prefill';
    const share = (): number => 0.2 + this.#random.below(80) / 100;
    const tiers =
      role === 'store'
        ? { dram: this.#tier(64 * GIB, share()), disk: this.#tier(512 * GIB, share()) }
        : { device: this.#tier(16 * GIB, share()), dram: this.#tier(8 * GIB, share()) };
    const only = this.#random.below(4_000);
    return {
      name: `${role}-${i + 1}`,
      role,
      model: role === 'store' ? null : 'harbour-8b',
      address: `10.0.${i >> 8}.${i & 255}:7001`,
      pid: 1_000 + i,
      epoch: `e${i}`,
      device: 'NVIDIA L4',
      numerics_class: 'webgpu-f16',
      state: 'alive',
      unreachable: null,
      running: this.#random.below(12),
      waiting: this.#random.below(3),
      kv_usage: role === 'store' ? null : share(),
      last_step_ms: 18.5,
      preemptions: 0,
      fetched_bytes: { memory: 0, socket: this.#random.below(9 * GIB), call: 0 },
      tiers,
      heard_ms: 120,
      heartbeats: 6_000,
      joined_at: this.#at - 3_000_000 - i * 1_000,
      loss: {
        only_blocks: only,
        only_bytes: only * BLOCK_BYTES,
        recompute_ms: role === 'store' ? only * 9 : only * 9.5,
      },
    };
  }

  #moved(node: NodeView): NodeView {
    return {
      ...node,
      running: this.#random.below(12),
      waiting: this.#random.below(3),
      heard_ms: this.#random.below(900),
    };
  }

  #flows(): LinkView[] {
    const links = Array.from({ length: Math.min(this.nodes.length * 2, 2_000) }, (_, i) => ({
      from: this.nodes[(i * 7) % this.nodes.length]!.name,
      to: this.nodes[(i * 3 + 1) % this.nodes.length]!.name,
    }));
    const seen = new Set<string>();
    return links
      .filter(({ from, to }) => from !== to && !seen.has(`${from} ${to}`) && seen.add(`${from} ${to}`))
      .map((ends, i) => ({
        ...ends,
        way: i % 4 === 3 ? 'memory' : 'socket',
        bytes: this.#random.below(90 * GIB),

        records: this.#random.below(40_000),
        ms: this.#random.below(600_000),
        failures: this.#random.below(20) === 0 ? 3 : 0,
        bytes_per_s: i % 3 === 0 ? 0 : this.#random.below(900_000_000),
      }));
  }

  #movedLink(link: LinkView): LinkView {
    const rate = this.#random.below(900_000_000);
    return { ...link, bytes: link.bytes + rate, records: link.records + 40, ms: link.ms + 90, bytes_per_s: rate };
  }

  #request(at: number): RequestRow {
    const id = `req-${String(this.#nextRequest++).padStart(6, '0')}`;
    const prompt = 200 + this.#random.below(6_000);
    const sources = this.#sources(prompt);
    const isFailed = this.#random.below(60) === 0;
    const ttft = 20 + sources.computed / 8 + this.#random.below(40);
    const instances = this.nodes.filter(({ role }) => role !== 'store');
    const decode = instances[this.#random.below(Math.max(1, instances.length))]?.name ?? null;
    return {
      id,
      client_id: null,
      client: null,
      key: null,
      tenant: null,
      endpoint: '/v1/chat/completions',
      model: 'harbour-8b',
      started_at: at,
      phase: isFailed ? 'failed' : 'finished',
      finish_reason: isFailed ? null : 'stop',
      error: isFailed ? 'the decode instance was lost, and no other has room' : null,
      prompt_tokens: prompt,
      output_tokens: isFailed ? 0 : 1 + this.#random.below(400),
      sources,
      ttft_ms: isFailed ? null : ttft,
      total_ms: ttft + 900,
      decode,
      prefill: null,
      attempts: isFailed ? 2 : 1,
      reason: `lowest predicted time: ${ttft.toFixed(1)} ms, of which 12.0 ms queue; ${sources.device} of ${prompt} tokens are on its device`,
      misses: { never_seen: sources.computed, tail: 0 },
    };
  }

  #sources(prompt: number): TokenSources {
    let left = prompt;
    const some = (share: number): number => {
      const tokens = Math.min(left, this.#random.below(Math.max(1, Math.floor(prompt * share))));
      left -= tokens;
      return tokens;
    };
    const hits = {
      device: some(0.6),
      dram: some(0.4),
      instance: some(0.3),
      store_dram: some(0.3),
      store_disk: some(0.1),
    };
    return { ...hits, handoff: 0, computed: left };
  }
}
