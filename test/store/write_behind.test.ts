/** Records written after the reply: once, in order, bounded, and waited for. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { chainOf, type Digest } from '../../shared/kv/block_key.ts';
import type { DiskWrite } from '../../services/store/disk_tier.ts';
import type { StoreTiers } from '../../services/store/tiers.ts';
import { MAX_BATCH_BYTES, WriteBehind } from '../../services/store/write_behind.ts';

const format = 'ab'.repeat(16) as Digest;
const hashes = chainOf(
  format,
  4,
  Array.from({ length: 400 }, (_, i) => i),
);
/** Records that fill one transaction. */
const WRITE_BATCH = 32;
const BYTES = MAX_BATCH_BYTES / WRITE_BATCH;
const writes: DiskWrite[] = hashes.map((hash, slot) => ({ hash, format, slot, bytes: BYTES }));
const never = new AbortController().signal;

test('each record is put once and let go of as often as it was pinned; who brings more than there is room for waits', async () => {
  const puts: (readonly DiskWrite[])[] = [];
  const ends: (() => void)[] = [];
  const unpinned: number[] = [];
  const tiers = {
    commit: (batch: readonly DiskWrite[]) => {
      puts.push(batch);
      return new Promise<void>((resolve) => ends.push(resolve));
    },
    release: (batch: readonly DiskWrite[]) => {
      for (const { slot } of batch) unpinned.push(slot);
    },
  } as unknown as StoreTiers;
  const behind = new WriteBehind(tiers);
  behind.add(writes.slice(0, 50));
  // Offered again meanwhile: one that is being written, and one that waits.
  behind.add([writes[3]!, writes[40]!]);
  assert.deepEqual(unpinned, [3, 40]);
  assert.equal(behind.bytes, 50 * BYTES);
  const seen: string[] = [];
  const left = new AbortController();
  const waiting = [
    behind.until(20 * BYTES, never).then(() => seen.push('room')),
    behind.until(0, never).then(() => seen.push('settled')),
    behind.until(0, left.signal).then(() => seen.push('left')),
  ];
  await behind.until(50 * BYTES, never);
  left.abort();
  await waiting[2];
  ends[0]!();
  await waiting[0];
  assert.deepEqual(seen, ['left', 'room']);
  assert.equal(behind.bytes, (50 - WRITE_BATCH) * BYTES);
  ends[1]!();
  await waiting[1];
  assert.deepEqual(seen, ['left', 'room', 'settled']);
  assert.deepEqual(
    puts.map((batch) => batch.map(({ slot }) => slot)),
    [writes.slice(0, WRITE_BATCH), writes.slice(WRITE_BATCH, 50)].map((batch) => batch.map(({ slot }) => slot)),
  );
  assert.deepEqual(unpinned, [3, 40], 'the others are let go of by what commits them');
});
