/**
 * A tenant guesses the prompts of another one by the time to the first token, in a simulated cluster: it finds nothing out, where within the
 * other's tenant, or without keys, it would. Links have no jitter and no other request runs, which helps who guesses more than any real network would.
 * Isolated, since the simulation counts decisions in the classes of production. Budget: 20 s.
 */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { keyDigest, keyTextOf } from '../../shared/base/client_keys.ts';
import { Random } from '../../shared/base/random.ts';
import { SimCluster, type Node, type Shape } from '../sim/simulated_cluster.ts';
import { makeHybrid, plainRun, SIM_VOCAB, windowLayers } from '../sim/simulated_device.ts';
import { greedy } from '../support/request.ts';

/** Prompts that tenant A sends in each of two worlds; as many others are probed, too. */
const NUM_PROMPTS = 100;
/** The same in the runs that show what could be seen. */
const NUM_OF_CONTROL = 20;
const AT_A_TIME = 5;
const PROMPT_TOKENS = 64;
const MAX_TOKENS = 2;
/** Times are seen to the microsecond, so that sums of equal times are equal. */
const CLOCK_MS = 0.001;
/** Between two questions: blocks of the one before are with the store, and heartbeats have told of them. */
const PAUSE_MS = 50;
const START_MS = 5_000;
const READER = { readMs: 0, stopsAt: Infinity, leavesAt: Infinity };

/** Who asks, and whose blocks are found. */
interface Who {
  readonly key: string;
  readonly tenant: string;
}
const keyOf = (n: number): string => keyTextOf(Buffer.alloc(32, n));
const A: Who = { key: keyOf(1), tenant: 'research' };
const A_TOO: Who = { key: keyOf(2), tenant: 'research' };
const B: Who = { key: keyOf(3), tenant: 'sales' };
const NOBODY: Who = { key: '', tenant: '' };
const keys = JSON.stringify(
  [A, A_TOO, B].map(({ key, tenant }, i) => ({ name: `k${i}`, sha256: keyDigest(key).toString('hex'), tenant })),
);

/** Devices have room for a part of the prompts; the store has all. */
const shape: Shape = {
  numPrefill: 1,
  numDecode: 1,
  numStores: 1,
  blockSize: 4,
  minFrameBytes: 1,
  hasState: false,
  numStateSlots: 0,
  stateInterval: 1,
  isMeanPooled: false,
  numBlocks: 1_000,
  chunkTokens: 64,
  maxNumSeqs: 8,
  maxModelLen: 100,
  dramSlots: 64,
  storeSlots: 512,
  diskRecords: 100_000,
  localPrefillTokens: 6,
  policy: 'auto',
  strictRoles: false,
  hasPipelines: false,
  stepMs: 20,
  tbtTargetMs: 0,
  queueOrder: 'first_come',
  numAhead: 1,
  numPages: 16,
  maxWaiting: 64,
  flowWindow: 8,
  linkBytesPerMs: Infinity,
  hasFixedPorts: true,
  maxRequests: 64,
  requestMs: 60_000,
  hasBusServer: false,
  numRouters: 1,
  transport: 'auto',
  diskWrites: 'behind',
  limits: {},
};

interface Probe {
  readonly ttftMs: number;
  readonly cachedTokens: number;
}

/** A cluster, and who asks it. */
class Guessing {
  readonly cluster: SimCluster;
  readonly #random: Random;

  constructor(random: Random, hasKeys: boolean) {
    this.#random = random;
    windowLayers([0, 0]);
    makeHybrid(false);
    this.cluster = new SimCluster(hasKeys ? { ...shape, keys } : shape, random);
  }

  async start(): Promise<void> {
    const { routers, nodes, simulation } = this.cluster;
    for (const node of [...routers, ...nodes]) this.cluster.start(node);
    await simulation.run(START_MS, () => false, this.#check);
    assert(nodes.every(({ running }) => running));
  }

  readonly #check = (): void => {
    const [fault] = this.cluster.faults;
    assert.equal(fault, undefined);
  };

  /** Runs until these requests are answered, and the pause after them is over. */
  async answered(asked: readonly Promise<Probe>[]): Promise<readonly Probe[]> {
    const { simulation } = this.cluster;
    let isOver = false;
    const all = Promise.all(asked).finally(() => {
      isOver = true;
    });
    await simulation.run(Infinity, () => isOver, this.#check);
    await simulation.run(simulation.nowMs + PAUSE_MS, () => false, this.#check);
    return all;
  }

  /** A prompt whose text is as long as that of any other one. */
  draw(): number[] {
    return Array.from({ length: PROMPT_TOKENS }, () => 10 + this.#random.below(SIM_VOCAB - 10));
  }

  /** Asks as a client that streams. */
  async ask(prompt: readonly number[], { key, tenant }: Who): Promise<Probe> {
    const { http, simulation, truth } = this.cluster;
    const maxLength = prompt.length + MAX_TOKENS;
    const plain = plainRun({ tokens: prompt, maxLength, stopTokenIds: [], sampling: greedy });
    truth.learn(prompt, plain, '', tenant);
    const more = { stream: true, stream_options: { include_usage: true }, return_token_ids: true };
    const body = { prompt, max_tokens: MAX_TOKENS, temperature: 0, ignore_eos: true, ...more };
    const headers = key === '' ? {} : { authorization: `Bearer ${key}` };
    const beganMs = simulation.nowMs;
    const { status, text, firstMs } = await http.ask('/v1/completions', JSON.stringify(body), READER, {}, headers);
    assert(status === 200 && firstMs !== undefined, text);
    const events = text.split('\n\n').flatMap((line) => (/^data: \{/.test(line) ? [line.slice(6)] : []));
    const parsed = events.map((event) => JSON.parse(event) as Event);
    const tokens = parsed.flatMap(({ choices: [choice] }) => choice?.token_ids ?? []);
    assert.deepEqual(
      tokens,
      plain.sampled.map(({ token }) => token),
    );
    const details = parsed.at(-1)?.usage?.prompt_tokens_details;
    assert.deepEqual(Object.keys(details ?? {}), ['cached_tokens'], 'an answer says no more of other requests');
    return { ttftMs: CLOCK_MS * Math.round((firstMs - beganMs) / CLOCK_MS), cachedTokens: details?.cached_tokens ?? 0 };
  }

  /** Blocks that a node holds on its device, or on its disk. */
  numHeld({ engine, disk }: Node): number {
    return engine?.held.size ?? disk.committed.size;
  }
}

interface Event {
  readonly choices: readonly { readonly token_ids?: readonly number[] }[];
  readonly usage?: { readonly prompt_tokens_details: { readonly cached_tokens: number } };
}

/** Probability that one of `first` is smaller than one of `second`, equal ones counting half: the area under the curve of who guesses by it. */
function areaUnderCurve(first: readonly number[], second: readonly number[]): number {
  const won = first.flatMap((one) => second.map((other): number => (one < other ? 1 : one === other ? 0.5 : 0)));
  return won.reduce((sum, value) => sum + value, 0) / won.length;
}

/** Probes of prompts that A has sent, and of those that nobody has, in the order in which they were sent. */
interface Guessed {
  readonly known: readonly Probe[];
  readonly fresh: readonly Probe[];
}

const numCached = (probes: readonly Probe[]): number => probes.filter(({ cachedTokens }) => cachedTokens > 0).length;

/** Draws two lists of prompts, of which A sends one, some at a time so that each instance has some; then `who` probes both in random order. */
async function guess(numPrompts: number, sends: 'first' | 'second', { key, tenant }: Who): Promise<Guessed> {
  const random = new Random(4_711);
  const owner = key === '' ? NOBODY : A;
  const guessing = new Guessing(random, key !== '');
  await guessing.start();
  const prompts = Array.from({ length: 2 * numPrompts }, (_, i) => {
    return { prompt: guessing.draw(), isKnown: i < numPrompts === (sends === 'first'), at: random.u32() };
  });
  const sent = prompts.flatMap(({ prompt, isKnown }) => (isKnown ? [prompt] : []));
  const askAsOwner = (some: readonly number[][]): Promise<readonly Probe[]> =>
    guessing.answered(some.map((prompt) => guessing.ask(prompt, owner)));
  for (let i = 0; i < sent.length; i += AT_A_TIME) await askAsOwner(sent.slice(i, i + AT_A_TIME));
  for (const node of guessing.cluster.nodes) assert(guessing.numHeld(node) > 0, `${node.name} holds blocks of A`);
  const guessed: { known: Probe[]; fresh: Probe[] } = { known: [], fresh: [] };
  for (const { prompt, isKnown } of prompts.sort((a, b) => a.at - b.at))
    guessed[isKnown ? 'known' : 'fresh'].push(...(await guessing.answered([guessing.ask(prompt, { key, tenant })])));
  // All the while they are there to be found, by their owner.
  const again = await askAsOwner(sent.slice(0, AT_A_TIME));
  assert.equal(numCached(again), again.length);
  return guessed;
}

/**
 * Both of the two worlds: each prompt is probed where A has sent it, and where nobody has, everything else being equal. What chance decides,
 * such as the instance for a prompt that none has, is the same in both, and says nothing of hits.
 */
async function guessTwice(numPrompts: number, who: Who): Promise<Guessed & { readonly auc: number }> {
  const [one, other] = [await guess(numPrompts, 'first', who), await guess(numPrompts, 'second', who)];
  const [known, fresh] = [
    [...one.known, ...other.known],
    [...one.fresh, ...other.fresh],
  ];
  const times = (probes: readonly Probe[]): number[] => probes.map(({ ttftMs }) => ttftMs);
  return { known, fresh, auc: areaUnderCurve(times(known), times(fresh)) };
}

test('200 prompts of another tenant cannot be told from those that nobody has sent, neither by time nor by usage', async () => {
  const { known, fresh, auc } = await guessTwice(NUM_PROMPTS, B);
  assert.deepEqual([known.length, fresh.length], [200, 200]);
  assert.deepEqual([numCached(known), numCached(fresh)], [0, 0]);
  assert(auc > 0.45 && auc < 0.55, `AUC ${auc}`);
});

test.for([
  ['another key of the same tenant', A_TOO],
  ['a router without keys', NOBODY],
] as const)('within a scope they can, so that the test above could fail: %s', async ([, who]) => {
  const { known, fresh, auc } = await guessTwice(NUM_OF_CONTROL, who);
  assert.deepEqual([numCached(known), numCached(fresh)], [known.length, 0]);
  assert(auc > 0.9, `AUC ${auc}`);
});
