/** Calls of several clients share a thread fairly; those of one come in their order. Budget: 5 s. */
import assert from 'node:assert/strict';
import { pathToFileURL } from 'node:url';
import { test } from 'vitest';
import { CallQueue } from '../../shared/base/call_queue.ts';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import type { start } from '../support/echo_thread.ts';
import { projectPath } from '../support/project.ts';

/** Takes all calls, each of which takes this many ms of its key. */
function drained(queue: CallQueue<string>, ms: (call: string) => number = () => 1): string[] {
  const order: string[] = [];
  for (let next = queue.next(); next; next = queue.next()) {
    order.push(next.call);
    queue.ended(next.key, ms(next.call));
  }
  return order;
}

test('calls of one come in their order, with a share or without', () => {
  for (const share of [undefined, { key: 'a' }]) {
    const queue = new CallQueue<string>();
    for (let id = 0; id < 5; id++) queue.add(id, `c${id}`, share);
    assert.deepEqual([queue.size, drained(queue), queue.size], [5, ['c0', 'c1', 'c2', 'c3', 'c4'], 0]);
  }
});

test('one that comes while another waits with many is next but one', () => {
  const queue = new CallQueue<string>();
  for (let id = 0; id < 50; id++) queue.add(id, `flood ${id}`, { key: 'flood' });
  const first = queue.next();
  queue.add(50, 'quiet', { key: 'quiet' });
  queue.ended(first?.key, 10);
  assert.equal(queue.next()?.call, 'quiet');
});

test('time counts, not calls, and by the weight', () => {
  const queue = new CallQueue<string>();
  for (let id = 0; id < 40; id++) {
    queue.add(2 * id, 'long', { key: 'a' });
    queue.add(2 * id + 1, 'short', { key: 'b', weight: 2 });
  }
  const order = drained(queue, (call) => (call === 'long' ? 8 : 1)).slice(0, 34);
  const numLong = order.filter((call) => call === 'long').length;
  // 8 ms of one for 16 of the other.
  assert(numLong === 2 || numLong === 3, `${numLong} of 34`);
});

test('calls of the process itself are first, and are charged to nobody', () => {
  const queue = new CallQueue<string>();
  queue.add(0, 'client', { key: 'a' });
  queue.add(1, 'own');
  assert.deepEqual(drained(queue), ['own', 'client']);
});

test('a call that is taken back does not run, and leaves nothing of its key', () => {
  const queue = new CallQueue<string>();
  queue.add(0, 'a', { key: 'a' });
  queue.add(1, 'b', { key: 'b' });
  assert.deepEqual(
    [queue.remove(0, { key: 'a' }), queue.remove(0, { key: 'a' }), queue.remove(9)],
    [true, false, false],
  );
  assert.deepEqual(drained(queue), ['b']);
  queue.add(2, 'c', { key: 'c' });
  assert.deepEqual([queue.clear(), queue.size], [['c'], 0]);
});

test('a worker answers a quiet client before the calls of a flood that came earlier', async () => {
  const module = { url: pathToFileURL(projectPath('dist/test/support/echo_thread.js')) };
  const thread = workerThreads.spawn<typeof start>(
    module,
    { greeting: 'hello' },
    {
      onDeath: assert.fail,
    },
  );
  const answered: string[] = [];
  const ask = async (name: string, key: string): Promise<void> => {
    await thread.call('echo', name, undefined, { key });
    answered.push(name);
  };
  const all = Array.from({ length: 60 }, (_, i) => ask(`flood ${i}`, 'flood'));
  await Promise.all([...all, ask('quiet', 'quiet')]);
  await thread.close();
  // Some were with the worker already.
  assert(answered.indexOf('quiet') < 12, answered.join());
});
