/**
 * The cache of records in host memory against a naive model under seeded random events: what is found, what goes first, what is pinned,
 * how much is on loan (P1). Not covered: the bytes of records (record.test.ts) and readers in other threads. Budget: 5 s.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { chainOf, type BlockHash, type BlockKey, type Digest } from '../../shared/kv/block_key.ts';
import { RecordCache, type BorrowedRecord } from '../../shared/kv/record_cache.ts';
import { Slab, slotLength } from '../../shared/kv/slab.ts';

const format = 'ab'.repeat(16) as Digest;
const hashes = chainOf(
  format,
  1,
  Array.from({ length: 64 }, (_, i) => i),
);
const BYTES = 1_000;
const LENGTH = slotLength(BYTES);

/** A cache of `numSlots` records of BYTES, with the wanted keys and what it evicted. */
function cacheOf(numSlots: number): {
  cache: RecordCache;
  slab: Slab;
  wanted: Set<BlockKey>;
  evicted: BlockKey[];
} {
  const slab = new Slab(numSlots * LENGTH);
  const wanted = new Set<BlockKey>();
  const evicted: BlockKey[] = [];
  const cache = new RecordCache(slab, {
    onEvict: ({ hash }) => evicted.push(hash.key),
    isWanted: (key) => wanted.has(key),
  });
  return { cache, slab, wanted, evicted };
}

/** Puts a record whose first byte is `mark`. @returns whether there was room. */
function put({ cache, slab }: ReturnType<typeof cacheOf>, hash: BlockHash, mark: number): boolean {
  const slot = cache.acquireSlot(BYTES);
  if (slot === undefined) return false;
  new Uint8Array(slab.memory.buffer)[slot] = mark;
  if (!cache.put({ hash, format, slot, bytes: BYTES })) cache.releaseSlot(slot);
  return true;
}

/** Names of records in the order in which they go: oldest use first, and the pins and loans on each. */
class NaiveCache {
  order: BlockKey[] = [];
  readonly pins = new Map<BlockKey, number>();

  touch(key: BlockKey): void {
    this.order = [...this.order.filter((one) => one !== key), key];
  }

  pinned(key: BlockKey): boolean {
    return (this.pins.get(key) ?? 0) > 0;
  }

  /** The next record to evict, or undefined: unpinned ones first, wanted ones last. */
  victim(wanted: ReadonlySet<BlockKey>): BlockKey | undefined {
    const free = this.order.filter((key) => !this.pinned(key));
    return free.find((key) => !wanted.has(key)) ?? free[0];
  }
}

test('what is found and what goes is what a list in order of use says, whatever is pinned, borrowed and wanted', () => {
  const seed = Number(process.env['SEED'] ?? 1);
  const random = new Random(seed);
  const numSlots = 16;
  const all = cacheOf(numSlots);
  const { cache, slab, wanted, evicted } = all;
  const model = new NaiveCache();
  const borrows: { key: BlockKey; borrowed: BorrowedRecord; mark: number }[] = [];
  const marks = new Map<BlockKey, number>();
  for (let event = 0; event < 5_000; event++) {
    const hash = hashes[random.below(40)]!;
    const { key } = hash;
    const kind = random.below(100);
    if (kind < 45) {
      const isKnown = model.order.includes(key);
      const expected = model.order.length < numSlots ? undefined : model.victim(wanted);
      const numBefore = evicted.length;
      const mark = random.below(256);
      const hadRoom = put(all, hash, mark);
      if (expected !== undefined) {
        assert.deepEqual(evicted.slice(numBefore), [expected], `SEED=${seed}`);
        model.order = model.order.filter((one) => one !== expected);
      } else assert.equal(evicted.length, numBefore);
      assert.equal(hadRoom, expected !== undefined || model.order.length < numSlots);
      // The victim may have been the record of the same key.
      if (hadRoom && !(isKnown && expected !== key)) {
        model.touch(key);
        marks.set(key, mark);
      }
    } else if (kind < 65) {
      const borrowed = cache.borrow(hash);
      assert.equal(borrowed !== undefined, model.order.includes(key));
      if (!borrowed) continue;
      model.touch(key);
      assert.equal(borrowed.record[0], marks.get(key), 'the record of that block, and no other');
      const isFull = borrows.filter((loan) => loan.borrowed.slot !== undefined).length >= numSlots / 4;
      assert.equal(borrowed.slot === undefined, isFull, 'a quarter is lent in place, then copies');
      if (borrowed.slot !== undefined) model.pins.set(key, (model.pins.get(key) ?? 0) + 1);
      borrows.push({ key, borrowed, mark: marks.get(key)! });
    } else if (kind < 80 && borrows.length > 0) {
      const { key: ended, borrowed, mark } = borrows.splice(random.below(borrows.length), 1)[0]!;
      assert.equal(borrowed.record[0], mark, 'a borrowed record stays as it is');
      borrowed.release();
      borrowed.release();
      if (borrowed.slot !== undefined) model.pins.set(ended, model.pins.get(ended)! - 1);
    } else if (kind < 88) {
      if (!wanted.delete(key)) wanted.add(key);
    } else if (kind < 92 && !model.pinned(key)) {
      cache.remove(key);
      model.order = model.order.filter((one) => one !== key);
    } else {
      assert.equal(cache.find(hash) !== undefined, model.order.includes(key));
      if (model.order.includes(key)) model.touch(key);
    }
    assert.equal(cache.size, model.order.length);
    assert.equal(slab.numInUse, cache.size, 'every slot has a record');
    assert.equal(cache.numSlotsInTransit, 0);
  }
  for (const { borrowed } of borrows) borrowed.release();
  assert.equal(cache.numBorrowable(BYTES), numSlots / 4);
  assert(cache.counters.evictions > 100);
});

describe('a record', () => {
  test('is found by its digest, not by its key alone (K2)', () => {
    const all = cacheOf(2);
    const [hash] = hashes;
    put(all, hash!, 1);
    const colliding = { ...hash!, digest: 'cd'.repeat(16) as Digest };
    assert.equal(all.cache.find(colliding), undefined);
    assert.equal(all.cache.borrow(colliding), undefined);
    assert(all.cache.has(hash!.key));
  });

  test('of a key that is held already is counted and dropped, and its slot stays with the caller', () => {
    const { cache } = cacheOf(4);
    const [hash] = hashes;
    const [first, second] = [cache.acquireSlot(BYTES)!, cache.acquireSlot(BYTES)!];
    assert(cache.put({ hash: hash!, format, slot: first, bytes: BYTES }));
    assert(!cache.put({ hash: hash!, format, slot: second, bytes: BYTES }));
    assert.equal(cache.numSlotsInTransit, 1);
    cache.releaseSlot(second);
    assert.deepEqual({ offered: cache.counters.offered, stored: cache.counters.stored }, { offered: 2, stored: 1 });
  });

  test('that is pinned outlives any need for room, until it is unpinned as often', () => {
    const all = cacheOf(1);
    const [hash, other] = hashes;
    put(all, hash!, 1);
    all.cache.pin(hash!.key);
    all.cache.pin(hash!.key);
    assert.equal(all.cache.acquireSlot(BYTES), undefined);
    all.cache.unpin(hash!.key);
    assert.equal(all.cache.acquireSlot(BYTES), undefined);
    all.cache.unpin(hash!.key);
    assert(put(all, other!, 2));
    assert.deepEqual(all.evicted, [hash!.key]);
  });
});

test('for a larger record the neighbours of the oldest go with it', () => {
  const { cache, evicted } = cacheOf(4);
  for (const hash of hashes.slice(0, 4)) {
    const slot = cache.acquireSlot(BYTES)!;
    cache.put({ hash, format, slot, bytes: BYTES });
  }
  const slot = cache.acquireSlot(2 * LENGTH);
  assert(slot !== undefined);
  assert.deepEqual(evicted, [hashes[0]!.key, hashes[1]!.key]);
});

test('below the low-water mark the oldest records go ahead of need, a turn at a time; wanted and pinned ones stay', async () => {
  const numSlots = 200;
  const slab = new Slab(numSlots * LENGTH);
  const many = chainOf(
    format,
    1,
    Array.from({ length: numSlots }, (_, i) => 1_000 + i),
  );
  const spared = new Set([many[0]!.key]);
  const evicted: BlockKey[] = [];
  let next: () => void = () => undefined;
  const cache = new RecordCache(slab, {
    onEvict: ({ hash }) => evicted.push(hash.key),
    isWanted: (key) => spared.has(key),
    turn: () =>
      new Promise((resolve) => {
        next = resolve;
      }),
  });
  cache.pin(many[1]!.key);
  for (const hash of many) cache.put({ hash, format, slot: cache.acquireSlot(BYTES)!, bytes: BYTES });
  assert.equal(evicted.length, 0, 'nothing goes within the turn that stores');
  next();
  await new Promise((resolve) => setImmediate(resolve));
  // 4 % of 200 records.
  assert.deepEqual(
    evicted,
    many.slice(2, 10).map(({ key }) => key),
  );
});
