/** The device block pool against a naive model under seeded random events; E1 after each. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { BlockPool } from '../../shared/engine/block_pool.ts';
import { chainOf, KeyChain, tenantIdOf, type BlockKey, type Digest } from '../../shared/kv/block_key.ts';

const format = '00112233445566778899aabbccddeeff' as Digest;
const hashesOf = (tokens: readonly number[]): ReturnType<typeof chainOf> => chainOf(format, 4, tokens);

test('E1: free, cached and used blocks are all blocks, whatever happens; a used block is nobody else’s', () => {
  const seed = Number(process.env['SEED'] ?? 1);
  const random = new Random(seed);
  const announced = new Set<BlockKey>();
  const pool = new BlockPool(24, (key) => assert(announced.delete(key), 'only what was stored is removed'));
  const held: { blocks: number[]; hashes: ReturnType<typeof hashesOf>; numSealed: number }[] = [];
  for (let event = 0; event < 5_000; event++) {
    const pick = random.below(10);
    if (pick < 4) {
      const hashes = hashesOf(Array.from({ length: 4 + random.below(28) }, () => random.below(2)));
      const acquired = pool.acquire(hashes, hashes.length);
      if (acquired) held.push({ blocks: acquired.blocks, hashes, numSealed: acquired.numHits });
      else assert(hashes.length > 0);
    } else if (pick < 7 && held.length > 0) {
      const one = held[random.below(held.length)]!;
      if (one.numSealed < one.blocks.length) {
        const hash = one.hashes[one.numSealed]!;
        if (pool.seal(one.blocks[one.numSealed]!, hash)) announced.add(hash.key);
        one.numSealed++;
      }
    } else if (held.length > 0) {
      pool.release(held.splice(random.below(held.length), 1)[0]!.blocks);
    }
    pool.checkIntegrity();
    const owners = new Map<number, BlockKey | undefined>();
    for (const { blocks, hashes } of held) {
      blocks.forEach((block, i) => {
        const before = owners.get(block);
        assert(!owners.has(block) || before === hashes[i]!.key, `block ${block} has two meanings, SEED=${seed}`);
        owners.set(block, hashes[i]!.key);
      });
    }
    assert.deepEqual(new Set(pool.keys()), announced);
  }
});

test('the blocks of a tenant that nobody uses are freed; those in use and those of others stay (E1)', () => {
  const removed: BlockKey[] = [];
  const pool = new BlockPool(12, (key) => removed.push(key));
  const tenant = tenantIdOf('a');
  const own = new KeyChain(format, 4, [], undefined, tenant).extend([1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);
  const others = hashesOf([9, 9, 9, 9, 8, 8, 8, 8]);
  for (const hashes of [own, others]) {
    const { blocks } = pool.acquire([], hashes.length)!;
    blocks.forEach((block, i) => assert(pool.seal(block, hashes[i]!)));
    pool.release(blocks);
  }
  const used = pool.acquire(own.slice(0, 1), 1)!;
  assert.deepEqual(pool.nameOf({ key: own[0]!.key, parent: own[0]!.parent, digest: own[0]!.digest })?.tenant, tenant);
  assert.deepEqual(pool.forget(tenant), { numFreed: 2, numUsed: 1 });
  pool.checkIntegrity();
  assert.deepEqual(new Set(removed), new Set(own.slice(1).map(({ key }) => key)));
  assert.equal(pool.numHeld(others), 2);
  pool.release(used.blocks);
  assert.deepEqual(pool.forget(tenant), { numFreed: 1, numUsed: 0 });
  assert.equal(pool.numHeld(own), 0);
  pool.checkIntegrity();
});

test('an acquisition that does not fit changes nothing', () => {
  const pool = new BlockPool(4, () => undefined);
  const first = pool.acquire(hashesOf([1, 1, 1, 1]), 3)!;
  const before = pool.numAvailable;
  assert.equal(pool.acquire(hashesOf([2, 2, 2, 2]), 2), undefined);
  assert.equal(pool.numAvailable, before);
  pool.release(first.blocks);
  pool.checkIntegrity();
});

test('the least recently used block goes first, and the head of a run stays longest', () => {
  const removed: BlockKey[] = [];
  const pool = new BlockPool(4, (key) => removed.push(key));
  const old = hashesOf([1, 1, 1, 1, 2, 2, 2, 2]);
  const young = hashesOf([3, 3, 3, 3, 4, 4, 4, 4]);
  for (const hashes of [old, young]) {
    const { blocks } = pool.acquire(hashes, 2)!;
    hashes.forEach((hash, i) => pool.seal(blocks[i]!, hash));
    pool.release(blocks);
  }
  pool.acquire(hashesOf([5, 5, 5, 5]), 3);
  assert.deepEqual(removed, [old[1]!.key, old[0]!.key, young[1]!.key]);
});

test('K2: a key whose digest is another is a miss', () => {
  const pool = new BlockPool(2, () => undefined);
  const [hash] = hashesOf([1, 2, 3, 4]);
  const { blocks } = pool.acquire([hash!], 1)!;
  pool.seal(blocks[0]!, hash!);
  pool.release(blocks);
  const colliding = { ...hash!, digest: 'f'.repeat(32) as Digest };
  assert.equal(pool.find(hash!), blocks[0]);
  assert.equal(pool.find(colliding), undefined);
  assert.equal(pool.acquire([colliding], 1)!.numHits, 0);
});

test('blocks outside every window go before what was used longer ago, until somebody hits them again', () => {
  const removed: BlockKey[] = [];
  const pool = new BlockPool(4, (key) => removed.push(key));
  const old = hashesOf([1, 1, 1, 1]);
  const passed = hashesOf([3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5]);
  const first = pool.acquire(old, 1)!;
  pool.seal(first.blocks[0]!, old[0]!);
  pool.release(first.blocks);
  const { blocks } = pool.acquire(passed, 3)!;
  passed.forEach((hash, i) => pool.seal(blocks[i]!, hash));
  pool.release(blocks.slice(0, 2), 0);
  pool.release(blocks.slice(2));
  const again = pool.acquire(passed.slice(0, 1), 1)!;
  assert.equal(again.numHits, 1);
  pool.release(again.blocks);
  pool.acquire(hashesOf([9, 9, 9, 9, 8, 8, 8, 8]), 2);
  assert.deepEqual(removed, [passed[1]!.key, old[0]!.key]);
});
