/** Blocks that wait to be copied out: their order and their bound. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { ExportQueue } from '../../shared/engine/export_queue.ts';
import { chainOf, type ChainLink, type Digest } from '../../shared/kv/block_key.ts';

const links = chainOf(
  'ab'.repeat(16) as Digest,
  1,
  Array.from({ length: 6 }, (_, i) => i),
);

function open(maxBlocks: number): { queue: ExportQueue; failed: number[]; next: (count: number) => number[] } {
  const failed: number[] = [];
  const indexOf = (link: ChainLink): number => links.findIndex(({ key }) => key === link.key);
  const queue = new ExportQueue(maxBlocks, (link) => failed.push(indexOf(link)));
  return { queue, failed, next: (count) => queue.next(count).map(({ link }) => indexOf(link)) };
}

test('blocks that somebody waits for come first, the others in order; each once', () => {
  const { queue, next } = open(10);
  for (const link of links) queue.computed(link, links[0]!.key);
  queue.asked(links[4]!);
  queue.asked(links[4]!);
  assert.deepEqual(next(3), [4, 0, 1]);
  assert.deepEqual(next(99), [4, 0, 1, 2, 3, 5]);
  for (const entry of queue.next(3)) queue.copied(entry);
  assert.deepEqual(next(99), [2, 3, 5]);
});

test('a block that is asked for keeps its anchor, and one computed again while it is copied gets it', () => {
  const { queue } = open(10);
  queue.computed(links[1]!, links[0]!.key);
  queue.asked(links[1]!);
  const [entry] = queue.next(1);
  assert.equal(queue.copied(entry!), links[0]!.key);
  queue.asked(links[2]!);
  const [copying] = queue.next(1);
  assert.equal(copying?.anchor, undefined);
  queue.computed(links[2]!, links[0]!.key);
  assert.equal(queue.copied(copying!), links[0]!.key);
  assert.equal(queue.size, 0);
});

test('as many wait as the device has blocks: the oldest goes for one more, and who waits for it is told (P1)', () => {
  const { queue, failed, next } = open(4);
  queue.asked(links[0]!);
  for (const link of links.slice(1, 5)) queue.computed(link, links[1]!.key);
  assert.deepEqual(failed, [0]);
  queue.computed(links[5]!, links[1]!.key);
  assert.deepEqual(failed, [0], 'nobody waited for the second');
  assert.deepEqual(next(99), [2, 3, 4, 5]);
  queue.failed(links[3]!.key);
  assert.equal(queue.size, 3);
});
