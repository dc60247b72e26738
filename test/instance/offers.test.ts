/** Home stores of blocks by rendezvous hashing, and the queue of blocks to offer. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { silentLog } from '../../shared/base/log.ts';
import { homeStore, Offers } from '../../shared/instance/offers.ts';
import type { BlockKey, Digest } from '../../shared/kv/block_key.ts';
import { answeringOnce } from '../../shared/net/network.ts';
import type { Member } from '../../shared/protocol/membership.ts';
import { unpackHashes } from '../../shared/protocol/packing.ts';
import { SimulatedClock } from '../sim/simulated_clock.ts';
import { playedNetwork } from '../support/played_network.ts';

const stores = ['a', 'b', 'c', 'd'].map((name): Member => ({
  name,
  role: 'store',
  address: `${name}:1`,
  pid: 1,
  epoch: 'e',
}));
const random = new Random(1);
const anchors = Array.from({ length: 4_000 }, () => (BigInt(random.u32()) << 32n) + BigInt(random.u32()));

test('anchors spread evenly, and when a store leaves only its own move', () => {
  const before = anchors.map((anchor) => homeStore(anchor, stores)?.name);
  for (const { name } of stores) {
    const share = before.filter((home) => home === name).length / anchors.length;
    assert(Math.abs(share - 0.25) < 0.04, `${name} has ${share}`);
  }
  const after = anchors.map((anchor) => homeStore(anchor, stores.slice(1))?.name);
  before.forEach((home, i) => {
    if (home !== 'a') assert.equal(after[i], home);
  });
  assert.equal(homeStore(1n, []), undefined);
});

test('a store keeps its blocks when it comes back under its name, whatever its address', () => {
  const moved = stores.map((store) => ({ ...store, address: 'elsewhere:2', epoch: 'f' }));
  for (const anchor of anchors.slice(0, 100))
    assert.equal(homeStore(anchor, stores)?.name, homeStore(anchor, moved)?.name);
});

test('a block’s home is derived once, not every time the queue is looked at; a store that comes later gets its share', async () => {
  const clock = new SimulatedClock();
  let numStores = 2;
  let numReads = 0;
  const counted = stores.map((store) =>
    Object.defineProperty({ ...store }, 'name', { get: () => (numReads++, store.name) }),
  );
  let numAsked = 0;
  const offers = new Offers({
    clock,
    log: silentLog,
    format: 'ab'.repeat(16) as Digest,
    numerics: 1n,
    recordBytes: { block: 1_024, state: 0 },
    source: 's:1',
    // Nobody answers: what is offered stays on its way.
    network: playedNetwork({
      offer: answeringOnce<'offer'>(() => {
        numAsked++;
        return new Promise(() => undefined);
      }),
    }),
    signal: new AbortController().signal,
    stores: () => counted.slice(0, numStores),
  });
  for (const anchor of anchors.slice(0, 3_000)) {
    offers.add(
      { anchor: anchor as BlockKey, key: anchor as BlockKey, parent: 0n as BlockKey, digest: '00' as Digest },
      0n,
    );
  }
  const before = numReads;
  await clock.run(3_000);
  assert.equal(numAsked, 2, 'one offer at a time to each store');
  const numLooks = 3_000 / 30;
  assert(numReads - before < numLooks * 20, `${numReads - before} names were hashed or compared in ${numLooks} looks`);
  numStores = 4;
  await clock.run(3_100);
  assert.equal(numAsked, 4, 'the new stores are offered their share of what waits');
});

test('8,192 blocks wait to be offered; more are not offered, the pool is a cache (P1)', async () => {
  const clock = new SimulatedClock();
  let numOffered = 0;
  const offers = new Offers({
    clock,
    log: silentLog,
    format: 'ab'.repeat(16) as Digest,
    numerics: 1n,
    recordBytes: { block: 1_024, state: 0 },
    source: 's:1',
    network: playedNetwork({
      offer: answeringOnce<'offer'>(({ hashes }) => {
        numOffered += hashes.length / 32;
        return { stored: 0, held: 0, durable: 0 };
      }),
    }),
    signal: new AbortController().signal,
    stores: () => stores,
  });
  for (let i = 0; i < 10_000; i++) {
    const key = BigInt(i) as BlockKey;
    offers.add({ anchor: key, key, parent: 0n as BlockKey, digest: '00'.repeat(16) as Digest }, 0n);
  }
  await clock.run(60_000);
  assert.equal(numOffered, 8_192);
});

test('blocks and states of one home store go in two offers, one after the other, each with the size of its records', async () => {
  const clock = new SimulatedClock();
  const notified: { readonly keys: readonly bigint[]; readonly recordBytes: number }[] = [];
  let numOpen = 0;
  const offers = new Offers({
    clock,
    log: silentLog,
    format: 'ab'.repeat(16) as Digest,
    numerics: 1n,
    recordBytes: { block: 1_024, state: 4_096 },
    source: 's:1',
    network: playedNetwork({
      offer: answeringOnce<'offer'>(async ({ hashes, recordBytes }) => {
        assert.equal(++numOpen, 1, 'one offer at a time to a store');
        notified.push({ keys: unpackHashes(hashes).map(({ key }) => key), recordBytes });
        await clock.sleep(50);
        numOpen--;
        return { stored: 0, held: 0, durable: 0 };
      }),
    }),
    signal: new AbortController().signal,
    stores: () => stores.slice(0, 1),
  });
  for (let i = 1; i <= 6; i++) {
    const key = BigInt(i) as BlockKey;
    const hash = { anchor: key, key, parent: 0n as BlockKey, digest: '00'.repeat(16) as Digest };
    offers.add(i % 3 === 0 ? { ...hash, kind: 'state' } : hash, 0n);
  }
  await clock.run(1_000);
  assert.deepEqual(notified, [
    { keys: [1n, 2n, 4n, 5n], recordBytes: 1_024 },
    { keys: [3n, 6n], recordBytes: 4_096 },
  ]);
});
