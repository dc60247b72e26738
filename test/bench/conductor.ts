/**
 * Decisions of the conductor at full size: a prompt of 3,000 blocks is looked up in the prefix index, the cluster becomes a snapshot,
 * and the policy decides. Heartbeats and block events come between the decisions, as in a cluster.
 *
 * The blocks of a prompt lie in 1 to 50 ranges with holders of their own; every tenth prompt begins with a range that all instances
 * hold. A third of the instances are prefill instances. Links are measured between many of them.
 */
import { Random } from '../../shared/base/random.ts';
import type { Clock } from '../../shared/base/clock.ts';
import type { InstanceWork } from '../../shared/protocol/instance_work.ts';
import type { Role } from '../../shared/protocol/membership.ts';
import { DecodeSightings } from '../../shared/placement/decode_sightings.ts';
import { Instance } from '../../shared/placement/instance.ts';
import type { AllMembers } from '../../shared/placement/members_view.ts';
import { ModelView } from '../../services/router/cluster/model_view.ts';
import { PrefixIndex } from '../../shared/placement/prefix_index/prefix_index.ts';
import { Conductor } from '../../shared/placement/conductor.ts';
import type { Policy } from '../../shared/placement/policy.ts';
import { percentile, type Figure } from './figures.ts';

export interface ConductorBenchOptions {
  readonly policies: Readonly<Record<string, () => Policy>>;
  readonly numInstances: readonly number[];
  readonly promptBlocks: number;
  readonly numDecisions: number;
  readonly clock: Clock;
  readonly onFigure: (figure: Figure) => void;
}

const MODEL = 'model';
const BLOCK_SIZE = 32;
const MAX_RANGES = 50;
const NUM_PROMPTS = 100;
/** Decisions that are not counted: code is compiled, and the index marks what its queries walk. */
const NUM_WARM = 200;

interface Cluster {
  readonly instances: readonly Instance[];
  readonly view: ModelView;
  readonly index: PrefixIndex;
  readonly prompts: readonly Int32Array[];
  readonly random: Random;
}

export function benchConductor(options: ConductorBenchOptions): Figure[] {
  const figures: Figure[] = [];
  for (const numInstances of options.numInstances) {
    for (const [name, policyOf] of Object.entries(options.policies)) {
      const times = decisions(clusterOf(numInstances, options), policyOf(), options);
      for (const share of [0.5, 0.99]) {
        const value = percentile(times, share);
        const figure = { name: `conductor/${name}/${numInstances}-instances/p${100 * share}`, value, unit: 'ms' };
        figures.push(figure);
        options.onFigure(figure);
      }
    }
  }
  return figures;
}

/** Returns the milliseconds of each decision. */
function decisions(cluster: Cluster, policy: Policy, { clock, numDecisions }: ConductorBenchOptions): number[] {
  const { instances, view, index, prompts, random } = cluster;
  const conductor = new Conductor({ view, index, policy, clock, random, tieBreak: 0 });
  for (let i = 0; i < 12; i++) measureLinks(conductor, instances, cluster);
  const avoided = { has: () => false, isHolder: () => true };
  const times: number[] = [];
  const placed: (() => void)[] = [];
  const held: { readonly holder: string; readonly keys: Int32Array }[] = [];
  for (let i = 0; i < NUM_WARM + numDecisions; i++) {
    const keys = prompts[random.below(prompts.length)]!;
    const numTokens = (keys.length / 2) * BLOCK_SIZE + 7;
    const asked = { requestId: `r${i}`, numTokens, keys, maxLength: numTokens + 1_000, avoided, outputTokens: 300 };
    const startMs = performance.now();
    const outcome = conductor.decide(asked);
    const ms = performance.now() - startMs;
    if (i >= NUM_WARM) times.push(ms);
    if (outcome.kind !== 'place') throw new Error(`the request was not placed: ${outcome.kind}`);
    const { decode, prefill, work } = outcome.chosen;
    for (const [instance, its] of [
      [decode, work.decode],
      [prefill, work.prefill],
    ] as const) {
      if (!instance || !its) continue;
      const placement = instance.place(its);
      placed.push(() => {
        instance.end(placement);
      });
    }
    measureLinks(conductor, [decode], cluster);
    if (placed.length > 4 * instances.length) placed.shift()?.();
    for (let k = 0; k < 4; k++) hear(instances[random.below(instances.length)]!, random, clock.nowMs());
    // The decode instance has the whole prompt then, until it needs the room.
    const stored = { holder: decode.id, keys };
    index.apply(stored.holder, { operation: 'stored', tier: 'device', keys });
    held.push(stored);
    const evicted = held.length > prompts.length ? held.shift() : undefined;
    if (evicted) index.apply(evicted.holder, { operation: 'removed', tier: 'device', keys: evicted.keys });
  }
  return times;
}

function clusterOf(numInstances: number, { promptBlocks, clock }: ConductorBenchOptions): Cluster {
  const random = new Random(11);
  const instances = Array.from({ length: numInstances }, (_, i) => instanceOf(i, clock));
  for (const instance of instances) hear(instance, random, clock.nowMs());
  const byName = new Map(instances.map((one) => [one.member.name, one]));
  const sightings = new DecodeSightings(clock);
  const all = (): Instance[] => [...byName.values()];
  const of = (role: Role): Instance[] => all().filter(({ member }) => member.role === role);
  const model = { format: { blockSize: BLOCK_SIZE }, digest: '' } as never;
  // The members as the router's own view answers for them, without the bus under it.
  const members: AllMembers = {
    model,
    models: new Map([[MODEL, model]]),
    otherRouters: [],
    all,
    of,
    generating: () => of('decode'),
    byHolder: (id) => {
      const instance = byName.get(id.slice(0, id.lastIndexOf('/')));
      return instance?.id === id ? instance : undefined;
    },
    decodeSeenMs: (numTokens, name) => sightings.lastMs(({ role }) => role === 'decode', of('decode'), numTokens, name),
    changed: () => Promise.resolve(),
  };
  const index = new PrefixIndex();
  const prompts = Array.from({ length: NUM_PROMPTS }, (_, i) => {
    const keys = Int32Array.from({ length: 2 * promptBlocks }, () => random.u32());
    hold(index, keys, instances, i % 10 === 0, random);
    return keys;
  });
  return { instances, view: new ModelView(members, MODEL), index, prompts, random };
}

function instanceOf(i: number, clock: Clock): Instance {
  const role = i % 3 === 0 ? 'prefill' : 'decode';
  const member = {
    name: `${role}-${i}`,
    role,
    address: `10.0.${i >> 8}.${i & 255}:9000`,
    pid: 1,
    epoch: `epoch${i}`,
  } as const;
  const engine = { maxModelLen: 1 << 17 } as never;
  return new Instance({ member, protocolVersion: 1, engine }, clock.nowMs(), { last: 0 }, MODEL);
}

/** Lets holders store the blocks of a prompt in 1 to MAX_RANGES ranges, each with 1 to 8 holders that it has besides its neighbours'. */
function hold(index: PrefixIndex, keys: Int32Array, all: readonly Instance[], isHot: boolean, random: Random): void {
  const numBlocks = keys.length / 2;
  const numRanges = 1 + random.below(MAX_RANGES);
  const ends = Array.from({ length: numRanges - 1 }, () => 1 + random.below(numBlocks - 1)).sort((a, b) => a - b);
  let start = 0;
  for (const [at, end] of [...ends, numBlocks].entries()) {
    if (end === start) continue;
    const holders =
      isHot && at === 0 ? all : Array.from({ length: 1 + random.below(8) }, () => all[random.below(all.length)]!);
    for (const { id } of holders)
      index.apply(id, {
        operation: 'stored',
        tier: 'dram',
        keys: keys.subarray(2 * start, 2 * end),
      });
    start = end;
  }
}

/** Has instances report fetches from two others. */
function measureLinks(
  conductor: Conductor,
  readers: readonly Instance[],
  { instances, random }: Pick<Cluster, 'instances' | 'random'>,
): void {
  for (const reader of readers) {
    const links = Array.from({ length: 2 }, () => ({
      address: instances[random.below(instances.length)]!.member.address,
      bytes: 1 << 26,
      way: 'socket',
      movingMs: 10 + random.below(90),
      latencyMs: 1,
    }));
    const none = { cachedTokens: 0, fetchedTokens: 0, computedTokens: 0, queueMs: 0, loadMs: 0, computeMs: 0 };
    conductor.learn(reader, { ...none, fetchedBytes: 0, links, sources: null });
  }
}

/** Receives a heartbeat of an instance at work. */
function hear(instance: Instance, random: Random, nowMs: number): void {
  const work: InstanceWork = {
    step: { constantMs: 12, rowMs: 0.11, pairMs: 1.7e-6, contextMs: 2.9e-5, sequenceMs: 0.01 },
    chunkTokens: 2_048,
    maxNumSeqs: 256,
    pacedStepMs: 40,
    promptsMs: random.below(3_000),
    prompts: { tokens: random.below(30_000), pairs: random.below(1 << 30), sequences: random.below(8) },
    generating: { sequences: random.below(100), contextTokens: random.below(1_000_000) },
    coming: { sequences: random.below(8), contextTokens: random.below(100_000) },
    numBlocks: 40_000,
    freeBlocks: random.below(20_000),
    waitingBlocks: 0,
    blockBytes: 10 << 20,
    ends: Array.from({ length: 8 }, (_, i) => ({ ms: 500 * (i + 1), sequences: i + 1, blocks: 500 * (i + 1) })),
  };
  const load = { running: random.below(100), waiting: random.below(8), preemptions: 0, lastStepMs: 20 };
  instance.receiveHeartbeat({ load: { ...load, isDraining: false, work, tiers: {} }, blocks: 0, seen: {} }, 'r', nowMs);
}
