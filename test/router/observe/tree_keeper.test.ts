/** How long a router keeps the prefix tree, and what it is fed by: snapshots of holders at the first look, events and requests afterwards. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Failure } from '../../../shared/base/failure.ts';
import { silentLog } from '../../../shared/base/log.ts';
import type { BlockRun } from '../../../shared/protocol/block_events.ts';
import { packParents } from '../../../shared/protocol/parent_keys.ts';
import type { IndexFeed } from '../../../services/router/cluster/index_feed.ts';
import { Instance } from '../../../shared/placement/instance.ts';
import { PrefixIndex } from '../../../shared/placement/prefix_index/prefix_index.ts';
import type { BlocksBody } from '../../../shared/protocol/router_api.ts';
import { TreeKeeper } from '../../../services/router/observe/tree_keeper.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';
import { playedNetwork } from '../../support/played_network.ts';

const ALL = { root: undefined, depth: 100, limit: 100 };

const wordsOf = (keys: readonly number[]): Int32Array =>
  Int32Array.from(keys.flatMap((key) => [key, key === 0 ? 0 : 9]));

function chain(keys: readonly number[]): { keys: Int32Array; parents: Int32Array } {
  return { keys: wordsOf(keys), parents: wordsOf([0, ...keys.slice(0, -1)]) };
}

/** A keeper over two holders: one has blocks 1 to 3, the other does not answer. */
class Scene {
  readonly clock = new SimulatedClock();
  readonly index = new PrefixIndex(1_000);
  readonly feed: Pick<IndexFeed, 'onStored'> = { onStored: undefined };
  readonly keeper: TreeKeeper;
  /** Snapshots that were asked for. */
  readonly asked = { count: 0 };

  constructor() {
    const { clock, index, feed, asked } = this;
    const members = ['a', 'b'].map(
      (name) =>
        new Instance({ member: { name, role: 'store', address: name, pid: 1, epoch: 'e' }, protocolVersion: 1 }, 0),
    );
    const network = playedNetwork({
      snapshot: async function* () {
        await clock.turn();
        if (++asked.count % 2 === 0) throw new Failure('unavailable', 'it does not answer');
        const { keys, parents } = chain([1, 2, 3]);
        yield {
          epoch: 'a/e',
          sequence: 1,
          tier: 0,
          keys: Buffer.from(keys.buffer),
          parents: packParents(keys, parents),
        };
      },
    });
    index.apply('a/e', { operation: 'stored', tier: 'device', keys: wordsOf([1, 2, 3]) });
    index.apply('b/e', { operation: 'stored', tier: 'device', keys: wordsOf([7]) });
    this.keeper = new TreeKeeper({
      feed,
      index,
      network,
      clock,
      log: silentLog,
      signal: new AbortController().signal,
      view: { all: () => members, byHolder: (id) => members.find((one) => one.id === id) },
    });
  }

  stored(holder: string, run: Omit<BlockRun, 'operation' | 'tier'>): void {
    const whole = { operation: 'stored', tier: 'device', ...run } as const;
    this.index.apply(holder, whole);
    this.feed.onStored?.(whole);
  }

  /** Looks, while simulated time goes on by a moment. */
  async look(): Promise<BlocksBody> {
    const looking = this.keeper.look(ALL);
    await this.clock.run(this.clock.nowMs() + 900);
    const body = await looking;
    assert.ok(body);
    return body;
  }
}

test('the first look asks every holder for its blocks; one that does not answer is left out, and events go on from there', async () => {
  const scene = new Scene();
  scene.keeper.use(wordsOf([1]));
  assert.equal(scene.keeper.isKept, false, 'nothing is kept before somebody looks');
  const first = await scene.look();
  assert.deepEqual([first.is_ready, first.total_blocks, scene.asked.count], [true, 3, 2]);
  assert(first.is_truncated, 'it is said that something is left out');
  assert.deepEqual(
    first.runs.map(({ length, used_at }) => [length, used_at]),
    [[3, null]],
  );
  scene.stored('b/e', { keys: wordsOf([4, 7]), parents: wordsOf([3, 0]) });
  await scene.clock.run(scene.clock.nowMs() + 1_000);
  const second = await scene.look();
  assert.equal(scene.asked.count, 2, 'nobody is asked again');
  assert.deepEqual(
    second.runs.map(({ length, blocks, used_at }) => [length, blocks, used_at === null]),
    [
      [3, 4, true],
      [1, 1, false],
      [1, 1, false],
    ],
  );
});

test('blocks that a request looks for are used then', async () => {
  const scene = new Scene();
  await scene.look();
  scene.keeper.use(wordsOf([1, 2]));
  const usedAt = 1_000 * Math.floor(scene.clock.wallMs() / 1_000);
  await scene.clock.run(scene.clock.nowMs() + 1_000);
  assert.equal((await scene.look()).runs[0]?.used_at, usedAt);
});

test('a minute after the last look the tree is dropped, and events cost nothing any more', async () => {
  const scene = new Scene();
  await scene.look();
  await scene.clock.run(scene.clock.nowMs() + 50_000);
  await scene.look();
  await scene.clock.run(scene.clock.nowMs() + 50_000);
  assert.equal(scene.keeper.isKept, true);
  await scene.clock.run(scene.clock.nowMs() + 11_000);
  assert.equal(scene.keeper.isKept, false);
  assert.equal(scene.feed.onStored, undefined);
  await scene.look();
  assert.equal(scene.asked.count, 4, 'the holders are asked anew');
});
