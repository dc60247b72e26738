/** The conductor: what it knows becomes a snapshot, what it decided is remembered and can be decided again. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { chainOf, type Digest } from '../../shared/kv/block_key.ts';
import { keyWords } from '../../shared/protocol/packing.ts';
import type { InstanceWork } from '../../shared/protocol/instance_work.ts';
import type { Report } from '../../shared/protocol/messages.ts';
import type { Registration } from '../../shared/protocol/membership.ts';
import type { ClusterView } from '../../services/router/cluster/cluster_view.ts';
import { Instance } from '../../shared/placement/instance.ts';
import { Conductor } from '../../shared/placement/conductor.ts';
import { decideAgain, type LoggedDecision } from '../../shared/placement/decision_log.ts';
import { LongestPrefixPolicy } from '../../shared/placement/longest_prefix_policy.ts';
import { PrefixIndex } from '../../shared/placement/prefix_index/prefix_index.ts';
import { SimulatedClock } from '../sim/simulated_clock.ts';

const tokens = Array.from({ length: 40 }, (_, i) => i);
const keys = keyWords(chainOf('0'.repeat(32) as Digest, 4, tokens).map(({ key }) => key));

function instance(role: 'prefill' | 'decode' | 'store', name: string): Instance {
  const member = { name, role, address: `${name}:1`, pid: 1, epoch: 'e' };
  const engine = { maxModelLen: 128 } as NonNullable<Registration['engine']>;
  return new Instance({ member, protocolVersion: 1, ...(role === 'store' ? {} : { engine }) }, 0);
}

const all = [instance('decode', 'd1'), instance('decode', 'd2'), instance('prefill', 'p1'), instance('store', 's1')];
const viewOf = (instances: readonly Instance[]): ClusterView =>
  ({
    model: { format: { blockSize: 4 } },
    of: (role: string) => instances.filter(({ member }) => member.role === role),
    generating: () => instances.filter(({ member }) => member.role === 'decode'),
    byHolder: (id: string) => instances.find((one) => one.id === id),
    decodeSeenMs: () => 0,
    otherRouters: [],
  }) as unknown as ClusterView;
const view = viewOf(all);

test('blocks are asked of those who are not avoided; the log has what was known, and the policy says the same of it again', () => {
  const index = new PrefixIndex();
  for (const holder of ['s1/e', 'gone/e'])
    index.apply(holder, { operation: 'stored', tier: 'dram', keys: keys.subarray(0, 18) });
  const policy = new LongestPrefixPolicy(8);
  const conductor = new Conductor({
    view,
    index,
    policy,
    clock: new SimulatedClock(),
    random: new Random(1),
    tieBreak: 0,
  });
  const nobody = { has: () => false, isHolder: () => true };
  const asked = { requestId: 'r1', numTokens: 42, keys, maxLength: 64, avoided: nobody };
  const first = conductor.decide(asked);
  assert(first.kind === 'place');
  assert.equal(first.chosen.decode, all[0]);
  assert.deepEqual(first.chosen.decodeSources, [{ address: 's1:1', start: 0, end: 9, isComputing: false }]);
  const withoutStore = { ...nobody, isHolder: (one: Instance) => one.member.name !== 's1' };
  const second = conductor.decide({ ...asked, avoided: withoutStore });
  assert(second.kind === 'place');
  assert.equal(second.chosen.prefill, all[2], 'nobody else has them');
  assert.equal(conductor.log.length, 2);
  for (const { question, snapshot, decision } of conductor.log) {
    const record = JSON.parse(JSON.stringify({ question, snapshot })) as Pick<LoggedDecision, 'question' | 'snapshot'>;
    assert.deepEqual(JSON.parse(JSON.stringify(decideAgain(record, policy))), JSON.parse(JSON.stringify(decision)));
  }
  for (let i = 0; i < 300; i++) conductor.decide({ ...asked, requestId: `r${i}` });
  assert.equal(conductor.log.length, 256, '(P1)');
  assert.equal(conductor.log.at(-1)?.requestId, 'r299');
});

test('the snapshot has the work of each instance, the links that matter, when one was last placed on cold, and random numbers', async () => {
  const [d1, d2, p1, s1] = ['d1', 'd2', 'p1', 's1'].map((name) =>
    instance(name.startsWith('d') ? 'decode' : name === 'p1' ? 'prefill' : 'store', name),
  ) as [Instance, Instance, Instance, Instance];
  const index = new PrefixIndex();
  index.apply('s1/e', { operation: 'stored', tier: 'dram', keys: keys.subarray(0, 18) });
  const clock = new SimulatedClock();
  const asPolicy = new LongestPrefixPolicy(8);
  const conductor = new Conductor({
    view: viewOf([d1, d2, p1, s1]),
    index,
    policy: asPolicy,
    clock,
    random: new Random(3),
    tieBreak: 0,
  });
  const work: InstanceWork = {
    step: { constantMs: 1, rowMs: 1, pairMs: 0, contextMs: 0, sequenceMs: 0 },
    chunkTokens: 64,
    maxNumSeqs: 8,
    pacedStepMs: 0,
    promptsMs: 0,
    ends: [],
    prompts: { tokens: 0, pairs: 0, sequences: 0 },
    generating: { sequences: 0, contextTokens: 0 },
    coming: { sequences: 0, contextTokens: 0 },
    numBlocks: 64,
    freeBlocks: 64,
    waitingBlocks: 0,
    blockBytes: 1_000,
  };
  const load = { running: 0, waiting: 0, preemptions: 0, lastStepMs: 1, isDraining: false, tiers: {}, work };
  for (const one of [d1, p1]) one.receiveHeartbeat({ load, blocks: 0, seen: {} }, 'r1', 0);
  const moved = { bytes: 1 << 20, movingMs: 4, latencyMs: 1, way: 'socket' };
  const from = (...addresses: string[]): Report => ({
    cachedTokens: 0,
    fetchedTokens: 0,
    computedTokens: 0,
    queueMs: 0,
    loadMs: 0,
    computeMs: 0,
    fetchedBytes: 0,
    sources: null,
    links: addresses.map((address) => ({ address, ...moved })),
  });
  conductor.learn(d1, from('s1:1', 'p1:1', 'elsewhere:1'));
  conductor.learn(instance('decode', 'gone'), from('s1:1'));
  const avoided = { has: () => false, isHolder: () => true };
  const asked = { requestId: 'r', numTokens: 46, keys, maxLength: 64, avoided, outputTokens: 7, waitedMs: 3 };
  const first = conductor.decide(asked);
  assert(first.kind === 'place');
  // d1 and d2 are equal, so the first by name computes what is left, with the help of p1.
  assert.equal(first.chosen.decode, d1);
  assert.deepEqual(first.chosen.work.prefill?.prompts, { tokens: 4, pairs: 37 + 38 + 39 + 40, sequences: 1 });
  d1.place(first.chosen.work.decode);
  await clock.run(100);
  const cold = conductor.decide({ ...asked, keys: keys.subarray(18) });
  assert(cold.kind === 'place');
  await clock.run(130);
  conductor.decide(asked);
  const [one, , three] = conductor.log;
  assert(one && three);
  assert.deepEqual([one.question.outputTokens, one.question.waitedMs], [7, 3]);
  assert.deepEqual(
    one.snapshot.links.map((link) => [link.from, link.to, link.bytesPerMs]),
    ['elsewhere:1', 'p1:1', 's1:1'].map((address) => [address, 'd1/e', (1 << 20) / 4]),
  );
  assert.equal(one.snapshot.otherLink.bytesPerMs, (1 << 20) / 4);
  assert.deepEqual(
    three.snapshot.decode.map((each) => each.work?.coming.sequences),
    [1, undefined],
  );
  const coldOf = ({ snapshot }: LoggedDecision): (number | undefined)[] =>
    [...snapshot.decode, ...snapshot.prefill].map(({ coldAtMs }) => coldAtMs);
  assert.deepEqual(coldOf(one), [undefined, undefined, undefined]);
  assert.deepEqual(coldOf(three), [
    cold.chosen.decode === d1 ? 100 : undefined,
    cold.chosen.decode === d2 ? 100 : undefined,
    cold.chosen.prefill ? 100 : undefined,
  ]);
  assert.deepEqual([one.snapshot.turn, three.snapshot.turn], [0, 2]);
  assert.notDeepEqual(one.snapshot.random, three.snapshot.random);
  for (const number of one.snapshot.random) assert(number >= 0 && number < 1);
  conductor.forget(p1);
  conductor.decide(asked);
  assert.deepEqual(
    conductor.log.at(-1)?.snapshot.links.map((link) => link.from),
    ['elsewhere:1', 's1:1'],
  );
});

test('a large cluster’s decisions are remembered for as many instances, not for as many decisions (P1)', () => {
  const many = Array.from({ length: 400 }, (_, i) => instance('decode', `d${i}`));
  const policy = new LongestPrefixPolicy(8);
  const conductor = new Conductor({
    view: viewOf(many),
    index: new PrefixIndex(),
    policy,
    clock: new SimulatedClock(),
    random: new Random(1),
    tieBreak: 0,
  });
  const avoided = { has: () => false, isHolder: () => true };
  for (let i = 0; i < 100; i++) conductor.decide({ requestId: `r${i}`, numTokens: 42, keys, maxLength: 64, avoided });
  assert.equal(conductor.log.length, Math.floor(16_384 / 400));
  assert.equal(conductor.log.at(-1)?.requestId, 'r99');
});
