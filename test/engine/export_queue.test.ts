/** Blocks that wait to be copied out: their order and their bound. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { ExportQueue } from '../../shared/engine/export_queue.ts';
import { chainOf, type BlockHash, type Digest } from '../../shared/kv/block_key.ts';

const hashes = chainOf(
  'ab'.repeat(16) as Digest,
  1,
  Array.from({ length: 6 }, (_, i) => i),
);

function open(maxBlocks: number): { queue: ExportQueue; failed: number[]; next: (count: number) => number[] } {
  const failed: number[] = [];
  const indexOf = (hash: BlockHash): number => hashes.findIndex(({ key }) => key === hash.key);
  const queue = new ExportQueue(maxBlocks, (hash) => failed.push(indexOf(hash)));
  return { queue, failed, next: (count) => queue.next(count).map(({ hash }) => indexOf(hash)) };
}

test('blocks that somebody waits for come first, the others in order; each once', () => {
  const { queue, next } = open(10);
  for (const hash of hashes) queue.computed(hash, hashes[0]!.key);
  queue.requested(hashes[4]!);
  queue.requested(hashes[4]!);
  assert.deepEqual(next(3), [4, 0, 1]);
  assert.deepEqual(next(99), [4, 0, 1, 2, 3, 5]);
  for (const entry of queue.next(3)) queue.copied(entry);
  assert.deepEqual(next(99), [2, 3, 5]);
});

test('a block that is asked for keeps its anchor, and one computed again while it is copied gets it', () => {
  const { queue } = open(10);
  queue.computed(hashes[1]!, hashes[0]!.key);
  queue.requested(hashes[1]!);
  const [entry] = queue.next(1);
  assert.equal(queue.copied(entry!), hashes[0]!.key);
  queue.requested(hashes[2]!);
  const [copying] = queue.next(1);
  assert.equal(copying?.anchor, undefined);
  queue.computed(hashes[2]!, hashes[0]!.key);
  assert.equal(queue.copied(copying!), hashes[0]!.key);
  assert.equal(queue.size, 0);
});

test('as many wait as the device has blocks: the oldest goes for one more, and who waits for it is told (P1)', () => {
  const { queue, failed, next } = open(4);
  queue.requested(hashes[0]!);
  for (const hash of hashes.slice(1, 5)) queue.computed(hash, hashes[1]!.key);
  assert.deepEqual(failed, [0]);
  queue.computed(hashes[5]!, hashes[1]!.key);
  assert.deepEqual(failed, [0], 'nobody waited for the second');
  assert.deepEqual(next(99), [2, 3, 4, 5]);
  queue.failed(hashes[3]!.key);
  assert.equal(queue.size, 3);
});
