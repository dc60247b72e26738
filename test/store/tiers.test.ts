/** A store says whether it read a record from disk when it lends it. Budget: 5 s. */
import assert from 'node:assert/strict';
import { afterEach, beforeEach, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { silentLog } from '../../shared/base/log.ts';
import { chainOf, type BlockHash, type Digest } from '../../shared/kv/block_key.ts';
import { sealRecord, type RecordLayout } from '../../shared/kv/record.ts';
import { slotBytes } from '../../shared/kv/slab.ts';
import { Announcer } from '../../shared/node/announcer.ts';
import type { TransferThread } from '../../shared/net/transfer_thread/transfer_thread.ts';
import { StoreTiers } from '../../services/store/tiers.ts';
import { evenSpec } from '../support/kv.ts';

const format = 'ab'.repeat(16) as Digest;
const layout: RecordLayout = {
  format,
  numericsClass: 'test',
  spec: evenSpec({ numLayers: 2, blockSize: 4, payloadBytes: 1_024 }),
};
const BYTES = layout.spec.slotBytes;
const hashes = chainOf(
  format,
  4,
  Array.from({ length: 4 * 6 }, (_, i) => i),
);
const never = new AbortController().signal;

let tiers: StoreTiers;
let stopped: AbortController;

beforeEach(() => {
  stopped = new AbortController();
  const thread = { call: () => Promise.resolve() } as never;
  tiers = new StoreTiers({
    worker: thread,
    readers: [],
    dramBytes: 1 << 20,
    diskBytes: 1 << 20,
    clock: systemClock,
    log: silentLog,
    transferThread: { call: () => Promise.resolve() } as unknown as TransferThread,
    announcer: new Announcer('s', () => undefined, systemClock, stopped.signal),
    isShared: false,
    openDisk: () => Promise.reject(new Error('nobody opens it')),
    records: () => '',
    signal: stopped.signal,
  });
  // A disk that has every block, and whose reads only seal a record in the slot.
  Object.assign(tiers.disk, {
    entryOf: ({ key, digest }: BlockHash) => ({ key, digest, at: 0, bytes: BYTES, format }),
    get: (hash: BlockHash, slot: number) => {
      sealRecord(slotBytes(tiers.slab.memory, slot, BYTES), layout, hash);
      return Promise.resolve(true);
    },
  });
});
afterEach(() => {
  stopped.abort();
});

async function isFromDisk(hash: BlockHash): Promise<boolean> {
  const lent = await tiers.borrow(hash, 'r', 0, never);
  assert(lent);
  lent.release();
  return lent.isFromDisk ?? false;
}

test('a record that was read from disk says so the first time, and is one of DRAM from then on', async () => {
  assert.equal(await isFromDisk(hashes[0]!), true);
  assert.equal(await isFromDisk(hashes[0]!), false);
});

test('a record that was read ahead of its turn comes from disk too, however it is lent', async () => {
  tiers.expect(hashes.slice(0, 3));
  await systemClock.turn();
  const resident = tiers.borrowResident(hashes[1]!);
  assert.equal(resident?.isFromDisk, true);
  resident.release();
  assert.equal(await isFromDisk(hashes[0]!), true);
  for (const hash of hashes.slice(0, 2)) assert.equal(await isFromDisk(hash), false);
});

test('two readers that wait for one read both have the record from disk', async () => {
  assert.deepEqual(await Promise.all([isFromDisk(hashes[4]!), isFromDisk(hashes[4]!)]), [true, true]);
});

test('a record that was offered is one of DRAM, and so is one that was evicted unread and offered again', async () => {
  const offer = (hash: BlockHash): void => {
    const slot = tiers.dram.acquireSlot(BYTES)!;
    sealRecord(slotBytes(tiers.slab.memory, slot, BYTES), layout, hash);
    tiers.accept({ hash, format, slot, bytes: BYTES });
  };
  tiers.expect(hashes.slice(5, 6));
  await systemClock.turn();
  tiers.dram.remove(hashes[5]!.key);
  offer(hashes[5]!);
  assert.equal(await isFromDisk(hashes[5]!), false);
});
