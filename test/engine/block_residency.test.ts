/** How long device blocks stay. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { BlockPool } from '../../shared/engine/block_pool.ts';
import { BlockResidency } from '../../shared/engine/block_residency.ts';
import { KeyChain, type Digest } from '../../shared/kv/block_key.ts';
import { SimulatedClock } from '../sim/simulated_clock.ts';

/** A pool of two blocks, each of which is followed. */
function smallPool() {
  const clock = new SimulatedClock();
  const residency = new BlockResidency(2, clock);
  const pool = new BlockPool(2, () => undefined, undefined, residency);
  const chain = new KeyChain('00'.repeat(16) as Digest, 4);
  chain.extend(Uint32Array.from({ length: 16 }, (_, i) => i));
  return { clock, residency, pool, hashes: chain.hashes };
}

test('lifetime, idle time and gaps between uses are counted when a block is evicted, and not before', async () => {
  const { clock, residency, pool, hashes } = smallPool();
  const [hash] = hashes;
  assert(hash);
  const { blocks } = pool.acquire([], 1) ?? { blocks: [] };
  assert(pool.seal(blocks[0]!, hash));
  pool.release(blocks);
  for (const ms of [1_000, 4_000]) {
    await clock.run(ms);
    pool.release(pool.acquire([hash], 1)!.blocks);
  }
  await clock.run(10_000);
  assert.deepEqual(residency.state.blockLifetime, { counts: [], sum: 0 });
  assert(pool.acquire([], 2));
  const { blockLifetime, blockIdle, blockReuseGap } = residency.state;
  assert.equal(blockLifetime.sum, 10);
  assert.equal(blockIdle.sum, 6);
  assert.equal(blockReuseGap.sum, 3);
  for (const { counts } of [blockLifetime, blockIdle, blockReuseGap])
    assert.equal(
      counts.reduce((sum, count) => sum + count, 0),
      1,
    );
  assert.equal(residency.state, residency.state);
});

test('a block that is freed without a name was never evicted', async () => {
  const { clock, residency, pool } = smallPool();
  pool.release(pool.acquire([], 2)!.blocks);
  await clock.run(1_000);
  assert(pool.acquire([], 2));
  assert.deepEqual(residency.state.blockLifetime, { counts: [], sum: 0 });
});

test('of a large pool one block in sixteen is followed', async () => {
  const clock = new SimulatedClock();
  const residency = new BlockResidency(4_096, clock);
  for (let block = 0; block < 4_096; block++) residency.allocated(block);
  await clock.run(1_500);
  for (let block = 0; block < 4_096; block++) residency.evicted(block);
  assert.equal(residency.state.blockLifetime.sum, 1.5 * 256);
});
