/** Host memory for arrivals: its bound, and who may have how much of it. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { FetchSlots } from '../../shared/instance/fetch_slots.ts';
import { RecordCache } from '../../shared/kv/record_cache.ts';
import { Slab } from '../../shared/kv/slab.ts';
import { chainOf, type Digest } from '../../shared/kv/block_key.ts';

const never = new AbortController().signal;

function open(size: number): FetchSlots {
  const cache = new RecordCache(new Slab(64 * 32), { onEvict: () => undefined, isWanted: () => false });
  return new FetchSlots(cache, 64, size);
}

test('sequences that are not admitted hold half of the window at most, all of them together all of it (P1)', async () => {
  const fetchSlots = open(4);
  let numTaken = 0;
  const take = (isAdmitted: boolean): Promise<number> =>
    Promise.resolve(fetchSlots.acquire(() => isAdmitted, never)).then((slot) => (numTaken++, slot));
  const early = Array.from({ length: 3 }, () => take(false));
  await systemClock.turn();
  assert.equal(numTaken, 2, 'the third waits');
  const admitted = Array.from({ length: 3 }, () => take(true));
  await systemClock.turn();
  assert.equal(numTaken, 4, 'the window is full');
  fetchSlots.release((await admitted[0]) ?? -1);
  await systemClock.turn();
  assert.equal(numTaken, 5, 'the admitted one that waits comes first');
  fetchSlots.release((await early[0]) ?? -1);
  await systemClock.turn();
  assert.equal(numTaken, 6);
});

test('a sequence that is preempted counts as not admitted, with what it holds', async () => {
  const fetchSlots = open(4);
  let isAdmitted = true;
  const held = [await fetchSlots.acquire(() => isAdmitted, never), await fetchSlots.acquire(() => isAdmitted, never)];
  isAdmitted = false;
  let hasMore = false;
  void Promise.resolve(fetchSlots.acquire(() => isAdmitted, never)).then(() => (hasMore = true));
  await systemClock.turn();
  assert(!hasMore, 'it has half of the window already');
  await fetchSlots.acquire(() => true, never);
  fetchSlots.release(held[0] ?? -1);
  await systemClock.turn();
  assert(hasMore);
});

test('a record on its way to disk is not evicted, the others are, and without any there is no slot', () => {
  const evicted: string[] = [];
  const cache = new RecordCache(new Slab(64 * 3), {
    onEvict: ({ hash }) => evicted.push(hash.digest),
    isWanted: () => false,
  });
  const hashes = chainOf(
    'ab'.repeat(16) as Digest,
    4,
    Array.from({ length: 16 }, (_, i) => i),
  );
  for (const hash of hashes.slice(0, 3))
    cache.put({ hash, format: 'ab'.repeat(16) as Digest, slot: cache.acquireSlot(64) ?? -1, bytes: 64 });
  for (const hash of hashes.slice(0, 2)) cache.pin(hash.key);
  const [first, , third] = hashes;
  assert.notEqual(cache.acquireSlot(64), undefined);
  assert.deepEqual(evicted, [third?.digest]);
  assert.equal(cache.acquireSlot(64), undefined, 'all that is left is pinned');
  if (first) cache.unpin(first.key);
  assert.notEqual(cache.acquireSlot(64), undefined);
  assert.deepEqual(evicted, [third?.digest, first?.digest]);
});
