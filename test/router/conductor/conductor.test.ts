/** The conductor: what it knows becomes a snapshot, what it decided is remembered and can be decided again. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { chainOf, type Digest } from '../../../shared/kv/block_key.ts';
import { keyWords } from '../../../shared/protocol/packing.ts';
import type { Registration } from '../../../shared/protocol/membership.ts';
import type { ClusterView } from '../../../services/router/cluster/cluster_view.ts';
import { Instance } from '../../../services/router/cluster/instance.ts';
import { Conductor } from '../../../services/router/conductor/conductor.ts';
import { LongestPrefixPolicy } from '../../../services/router/conductor/longest_prefix_policy.ts';
import { PrefixIndex } from '../../../services/router/cluster/prefix_index.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';

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
  const conductor = new Conductor({ view, index, policy, clock: new SimulatedClock(), tieBreak: 0 });
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
    const again = policy.decide(question, JSON.parse(JSON.stringify(snapshot)) as typeof snapshot);
    assert.deepEqual(again, decision);
  }
  for (let i = 0; i < 300; i++) conductor.decide({ ...asked, requestId: `r${i}` });
  assert.equal(conductor.log.length, 256, '(P1)');
  assert.equal(conductor.log.at(-1)?.requestId, 'r299');
});

test('a large cluster’s decisions are remembered for as many instances, not for as many decisions (P1)', () => {
  const many = Array.from({ length: 400 }, (_, i) => instance('decode', `d${i}`));
  const policy = new LongestPrefixPolicy(8);
  const conductor = new Conductor({
    view: viewOf(many),
    index: new PrefixIndex(),
    policy,
    clock: new SimulatedClock(),
    tieBreak: 0,
  });
  const avoided = { has: () => false, isHolder: () => true };
  for (let i = 0; i < 100; i++) conductor.decide({ requestId: `r${i}`, numTokens: 42, keys, maxLength: 64, avoided });
  assert.equal(conductor.log.length, Math.floor(16_384 / 400));
  assert.equal(conductor.log.at(-1)?.requestId, 'r99');
});
