/** The ring of keys that nobody holds: fed by a real prefix index, and against a naive model. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Random } from '../../../shared/base/random.ts';
import { PrefixIndex } from '../../../shared/placement/prefix_index/prefix_index.ts';
import { GoneKeys } from '../../../services/router/record/gone_keys.ts';

const START_MS = 1_700_000_000_000;

function made(maxKeys?: number): { clock: { ms: number; wallMs: () => number }; gone: GoneKeys; index: PrefixIndex } {
  const clock = { ms: START_MS, wallMs: () => clock.ms };
  const gone = new GoneKeys(clock, maxKeys);
  return { clock, gone, index: new PrefixIndex(10_000, gone) };
}

/** Keys [from, from + count) as two words each. */
function keysOf(from: number, count: number): Int32Array {
  return Int32Array.from({ length: 2 * count }, (_, i) => (i % 2 === 0 ? from + i / 2 : 7));
}

test('a block is evicted when its last holder removes it from its last tier, not before', () => {
  const { clock, gone, index } = made();
  const keys = keysOf(1, 3);
  index.apply('decode-1/a', { operation: 'stored', tier: 'device', keys });
  index.apply('decode-1/a', { operation: 'stored', tier: 'dram', keys });
  index.apply('store-1/b', { operation: 'stored', tier: 'disk', keys });
  index.apply('decode-1/a', { operation: 'removed', tier: 'device', keys });
  index.apply('store-1/b', { operation: 'removed', tier: 'disk', keys });
  assert.equal(gone.find(1, 7), undefined);
  clock.ms += 5_000;
  index.apply('decode-1/a', { operation: 'removed', tier: 'dram', keys: keysOf(1, 2) });
  const expected = { how: 'evicted', node: 'decode-1', tier: 'dram', at: START_MS + 5_000 };
  assert.deepEqual(gone.find(1, 7), expected);
  assert.deepEqual(gone.find(2, 7), expected);
  assert.equal(gone.find(3, 7), undefined);
  assert.equal(gone.size, 2);
});

test('a block is lost with its last holder, also before the sweep has reached it', () => {
  const { clock, gone, index } = made();
  const keys = keysOf(1, 9_000);
  index.apply('decode-1/a', { operation: 'stored', tier: 'device', keys });
  clock.ms += 1_000;
  index.removeHolder('decode-1/a');
  clock.ms += 1_000;
  const expected = { how: 'lost', node: 'decode-1', tier: 'device', at: START_MS + 1_000 };
  const numSwept = gone.size;
  assert.ok(numSwept < 9_000, 'the sweep must not be through for this test');
  for (let key = 1; key <= 9_000; key++) {
    const unswept = index.goneUnswept(key, 7);
    assert.ok((unswept === undefined) !== (gone.find(key, 7) === undefined), `key ${key}`);
    if (unswept)
      assert.deepEqual([unswept.holder, unswept.how, unswept.atMs], ['decode-1/a', 'lost', START_MS + 1_000]);
    else assert.deepEqual(gone.find(key, 7), expected);
  }
  // A block that comes back before the sweep gets there leaves its entry, too.
  const back = Array.from({ length: 9_000 }, (_, i) => i + 1).find((key) => index.goneUnswept(key, 7)) ?? 0;
  index.apply('decode-2/b', { operation: 'stored', tier: 'device', keys: keysOf(back, 1) });
  assert.equal(index.goneUnswept(back, 7), undefined);
  assert.deepEqual(gone.find(back, 7), expected);
  while (index.size > 1) index.ranges(keysOf(1, 1));
  assert.equal(gone.size, 9_000);
});

test('what a snapshot of the holder does not have is evicted; a snapshot that fails changes nothing', () => {
  const { gone, index } = made();
  index.apply('store-1/a', { operation: 'stored', tier: 'dram', keys: keysOf(1, 4) });
  index.apply('store-1/a (snapshot 1)', { operation: 'stored', tier: 'dram', keys: keysOf(1, 9) });
  index.dropStaged('store-1/a (snapshot 1)');
  index.apply('store-1/a (snapshot 2)', { operation: 'stored', tier: 'dram', keys: keysOf(1, 3) });
  index.replaceHolder('store-1/a', 'store-1/a (snapshot 2)');
  while (index.size > 3) index.ranges(keysOf(1, 1));
  assert.equal(gone.size, 1);
  assert.deepEqual([gone.find(4, 7)?.how, gone.find(4, 7)?.node], ['evicted', 'store-1']);
});

test('the ring keeps the newest keys, the newest event of each, against a naive model', () => {
  const random = new Random(20);
  const maxKeys = 64;
  const { clock, gone } = made(maxKeys);
  const written: { key: number; at: number }[] = [];
  for (let i = 0; i < 5_000; i++) {
    const key = random.below(200);
    clock.ms += 100;
    gone.onGone(key, 0, { holder: `node-${key % 7}/e`, how: 'evicted', atMs: clock.ms, tiers: 1 });
    written.push({ key, at: clock.ms });
    const kept = new Map(written.slice(-maxKeys).map((one) => [one.key, one.at]));
    for (let asked = 0; asked < 200; asked++) {
      const found = gone.find(asked, 0);
      assert.equal(found?.at, kept.get(asked), `key ${asked} after ${i + 1} events`);
      if (found) assert.equal(found.node, `node-${asked % 7}`);
    }
  }
});
