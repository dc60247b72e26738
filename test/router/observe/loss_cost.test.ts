/** The cost of a node's loss against what a router finds lost once the node is gone. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Random } from '../../../shared/base/random.ts';
import { systemClock } from '../../../shared/base/clock.ts';
import type { InstanceWork } from '../../../shared/protocol/instance_work.ts';
import type { AllMembers } from '../../../shared/placement/members_view.ts';
import type { Instance } from '../../../shared/placement/instance.ts';
import { PrefixIndex } from '../../../shared/placement/prefix_index/prefix_index.ts';
import { GoneKeys } from '../../../services/router/record/gone_keys.ts';
import { LossCosts } from '../../../services/router/observe/loss_cost.ts';

const step = { constantMs: 10, rowMs: 0.1, pairMs: 0, contextMs: 0, sequenceMs: 0 };

function engine(id: string, rowMs: number): Instance {
  const work = { step: { ...step, rowMs }, chunkTokens: 100, blockBytes: 1_000 } as InstanceWork;
  return { id, model: 'harbour', load: { work, tiers: {} } } as unknown as Instance;
}

function store(id: string): Instance {
  const tiers = { dram: { blocks: 10, bytes: 5_000 }, disk: { blocks: 10, bytes: 15_000 } };
  return { id, model: undefined, load: { tiers } } as unknown as Instance;
}

function costsOf(index: PrefixIndex, members: readonly Instance[], clock = systemClock): LossCosts {
  const model = { format: { blockSize: 16 } };
  const view = { all: () => members, model, models: new Map([['harbour', model]]) } as unknown as AllMembers;
  return new LossCosts(index, view, clock);
}

test('the blocks that only a node has are those that are lost with it, whatever the order of events', () => {
  const random = new Random(40);
  for (const victim of ['a/e', 'b/e', 'c/e', 's/e']) {
    const gone = new GoneKeys(systemClock);
    const index = new PrefixIndex(10_000, gone);
    const holders = ['a/e', 'b/e', 'c/e', 's/e'];
    const members = [engine('a/e', 0.1), engine('b/e', 0.1), engine('c/e', 0.1), store('s/e')];
    for (let i = 0; i < 3_000; i++) {
      const keys = Int32Array.of(random.below(600), 1);
      const operation = random.chance(2, 3) ? 'stored' : 'removed';
      index.apply(random.pick(['a/e', 'b/e', 'c/e', 's/e']), {
        operation,
        tier: random.pick(['device', 'dram']),
        keys,
      });
      // One of them has been lost before, and is only half swept out.
      if (i === 2_500) index.removeHolder(holders.find((one) => one !== victim) ?? '');
    }
    const cost = costsOf(index, members).get().get(victim);
    const held = (): Set<number> =>
      new Set(
        Array.from({ length: 600 }, (_, key) => key).filter((key) => index.ranges(Int32Array.of(key, 1)).length > 0),
      );
    const before = held();
    index.removeHolder(victim);
    const numLost = before.size - held().size;
    assert.ok(numLost > 0);
    assert.equal(cost?.only_blocks, numLost, victim);
    while (index.size > before.size - numLost) index.ranges(Int32Array.of(0, 0));
    const reported = [...before].filter(
      (key) => gone.find(key, 1)?.node === victim[0] && gone.find(key, 1)?.how === 'lost',
    );
    assert.equal(reported.length, numLost, `${victim}: reported as lost`);
  }
});

test('the time is that of full chunks on the fastest engine that is left', () => {
  const index = new PrefixIndex(100);
  const keys = Int32Array.from({ length: 2 * 10 }, (_, i) => i);
  index.apply('fast/e', { operation: 'stored', tier: 'device', keys });
  index.apply('s/e', { operation: 'stored', tier: 'dram', keys: keys.map((word) => word + 100) });
  const costs = costsOf(index, [engine('slow/e', 0.9), engine('fast/e', 0.1), store('s/e')]).get();
  // 10 ms and 100 rows of 0.9 ms make 1 ms a token; 0.1 ms rows make 0.2 ms a token.
  assert.deepEqual(costs.get('fast/e'), { only_blocks: 10, only_bytes: 10_000, recompute_ms: 160 });
  assert.deepEqual(costs.get('s/e'), { only_blocks: 10, only_bytes: 10_000, recompute_ms: 32 });
  assert.deepEqual(costs.get('slow/e'), { only_blocks: 0, only_bytes: 0, recompute_ms: 0 });
});

test('without an engine that reports its work the time is not known; costs are kept for a second', () => {
  let nowMs = 0;
  const clock = { ...systemClock, nowMs: () => nowMs };
  const index = new PrefixIndex(100);
  const costs = costsOf(index, [store('s/e')], clock);
  const stored = (key: number): void => {
    index.apply('s/e', { operation: 'stored', tier: 'dram', keys: Int32Array.of(key, 1) });
  };
  stored(1);
  assert.deepEqual(costs.get().get('s/e'), { only_blocks: 1, only_bytes: 1_000, recompute_ms: null });
  stored(2);
  nowMs = 999;
  assert.equal(costs.get().get('s/e')?.only_blocks, 1);
  nowMs = 1_000;
  assert.equal(costs.get().get('s/e')?.only_blocks, 2);
});

test('costs of a thousand nodes take one pass over them', () => {
  let numReads = 0;
  const members = Array.from({ length: 1_000 }, (_, i) => {
    const one = engine(`e${i}/e`, 0.1 + i / 1_000);
    const { load } = one;
    return Object.defineProperty(one, 'load', {
      get: () => {
        numReads++;
        return load;
      },
    });
  });
  const costs = costsOf(new PrefixIndex(100), members).get();
  assert.equal(costs.size, 1_000);
  assert.ok(numReads < 10_000, `${numReads} loads were read`);
});
