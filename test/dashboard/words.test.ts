/** Words, numbers, windows and times of the dashboard. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { eventWord, mergedEvents } from '../../services/dashboard/event_words.ts';
import { matrixOf, perRecord, speedOf } from '../../services/dashboard/flow_sums.ts';
import {
  bytes,
  bytesPerSecond,
  compareNames,
  duration,
  percent,
  plural,
  short,
} from '../../services/dashboard/format.ts';
import { rowWindow } from '../../services/dashboard/parts/row_window.ts';
import {
  ailmentOf,
  dearestFirst,
  lossSentence,
  nodeFacts,
  reuseSentences,
} from '../../services/dashboard/pool_words.ts';
import { Timeline } from '../../services/dashboard/timeline.ts';
import type { NodeView } from '../../shared/protocol/router_api.ts';
import { World } from '../support/dashboard_world.ts';

const world = new World({ nodes: 6, blocks: 100, requests: 0, seed: 5 }, 1_000_000);
const [node] = world.nodes as [NodeView];

test('numbers have their unit and three digits at most', () => {
  assert.deepEqual([bytes(0), bytes(1_536), bytes(5 * 2 ** 30), bytes(null)], ['0 B', '1.5 KiB', '5 GiB', '–']);
  assert.deepEqual([bytesPerSecond(876e6), bytesPerSecond(1.25e9)], ['876 MB/s', '1.25 GB/s']);
  assert.deepEqual(
    [duration(0.4), duration(12.34), duration(3_400), duration(300_000), duration(9e6)],
    ['0.4 ms', '12.3 ms', '3.4 s', '5 min', '2.5 h'],
  );
  assert.deepEqual([percent(0.874), percent(0.004), percent(0), percent(NaN)], ['87 %', '0.4 %', '0 %', '–']);
  assert.deepEqual([short(0.123), short(17.25), short(2_955), short(42_123)], ['0.12', '17.3', '2,955', '42.1 k']);
  assert.deepEqual([plural(1, 'node'), plural(1_234, 'node')], ['1 node', '1,234 nodes']);
  assert.deepEqual(['node-10', 'node-9'].sort(compareNames), ['node-9', 'node-10']);
});

test('a node that is not well says why; one that is says nothing', () => {
  assert.equal(ailmentOf(node), null);
  const unreachable = { ...node, state: 'unreachable', unreachable: 'cannot reach 10.0.0.1:1' };
  assert.equal(ailmentOf(unreachable), 'cannot reach 10.0.0.1:1');
  assert.equal(ailmentOf({ ...node, state: 'suspect', heard_ms: 1_500 }), 'no heartbeat for 1.5 s');
  const [name = '', tier] = Object.entries(node.tiers)[0] ?? [];
  assert(tier);
  const broken = { ...node, tiers: { ...node.tiers, [name]: { ...tier, fault: 'EIO' } } };
  assert.equal(ailmentOf(broken), 'its Device cannot be used: EIO');
});

test('facts of a node are those of its role', () => {
  const labels = (role: string): string =>
    nodeFacts({ ...node, role }, null)
      .map(([label]) => label)
      .join(', ');
  assert.match(
    labels('decode'),
    /^Role, Model, Running and waiting, Blocks of running sequences, Last step, .*Device, Numerics, Address, Joined/,
  );
  assert.equal(labels('store'), 'Role, Fetched, Address, Joined, Last heartbeat');
  const usage = { memory_bytes: 256 * 2 ** 20, heap_bytes: 64 * 2 ** 20, cpu_ms: 30_000, loop_delay_ms: 12 };
  const router = { ...node, role: 'router', running: 3, joined_at: 1_000_000, ...usage };
  const facts = Object.fromEntries(nodeFacts(router, 1_060_000));
  assert.equal(facts['Requests in flight'], '3');
  assert.equal(facts['Memory'], '256 MiB, of it 64 MiB of objects');
  assert.equal(facts['CPU time'], '30 s, 50 % of one core since it started');
  assert.equal(facts['Answers late by'], '12 ms at most in the last ten seconds');
  const unknown = Object.fromEntries(nodeFacts({ ...node, role: 'router' }, null));
  assert.deepEqual([unknown['Memory'], unknown['CPU time'], unknown['Answers late by']], ['–', '–', '–']);
});

test('the cost of a loss is said with blocks and time, and the dearest is first', () => {
  const loss = { only_blocks: 3, only_bytes: 3 * 2 ** 20, recompute_ms: 1_500 };
  const with_ = { ...node, name: 'a', loss };
  assert.equal(
    lossSentence(with_),
    'With a would go 3 blocks (3 MiB) that no other node holds: one instance would need 1.5 s to compute them again.',
  );
  const none = { ...node, name: 'b', loss: { only_blocks: 0, only_bytes: 0, recompute_ms: 0 } };
  assert.equal(lossSentence(none), 'Nothing would be lost with b: other nodes hold all its blocks, too.');
  const dearer = { ...node, name: 'c', loss: { ...loss, recompute_ms: 9_000 } };
  assert.deepEqual(
    dearestFirst([none, with_, dearer]).map(({ name }) => name),
    ['c', 'a'],
  );
});

test('the reuse curve is said in points, next to nothing as that, and not from few accesses', () => {
  const body = world.reuse();
  const sentences = reuseSentences(body);
  assert.equal(
    sentences[1],
    'DRAM, 64 GiB in all: 54 % of blocks would be found. Twice as much would bring 74 %, 20 points more.',
  );
  const flat = { capacity_bytes: 2 ** 30, hit_ratio: 0.5, hit_ratio_doubled: 0.501 };
  assert.match(reuseSentences({ ...body, tiers: { dram: flat } })[0] ?? '', /next to nothing/);
  assert.match(reuseSentences({ ...body, accesses: 12 })[0] ?? '', /^Only 12 accesses/);
});

test('a matrix adds the ways of a pair, and keeps the busiest', () => {
  const link = { records: 0, ms: 0, failures: 0, bytes: 0 };
  const links = [
    { ...link, from: 'a', to: 'b', way: 'socket', bytes_per_s: 5 },
    { ...link, from: 'a', to: 'b', way: 'memory', bytes_per_s: 7 },
    { ...link, from: 'c', to: 'd', way: 'socket', bytes_per_s: 3 },
  ];
  const matrix = matrixOf(links, 1, 2);
  assert.deepEqual([matrix.from, matrix.to, matrix.isPart], [['a'], ['b', 'd'], true]);
  assert.deepEqual([matrix.at('a', 'b'), matrix.at('a', 'd'), matrix.largest], [12, 0, 12]);
});

test('events of two lists are one list, newest first; kinds of a newer router are their own word', () => {
  const [first, ...rest] = world.events;
  assert(first);
  assert.deepEqual(mergedEvents(rest, world.events), world.events);
  assert.deepEqual(eventWord({ ...first, kind: 'moved_house' as 'joined' }), { word: 'moved house', tone: 'plain' });
  assert.equal(eventWord({ ...first, kind: 'lost' }).tone, 'bad');
});

test('the rows near the visible ones exist, and never more', () => {
  assert.deepEqual(rowWindow(5, 34, 0, 520), { first: 0, end: 5 });
  for (let top = 0; top < 34_000; top += 777) {
    const { first, end } = rowWindow(1_000, 34, top, 520);
    assert(first <= Math.floor(top / 34) && end >= Math.min(1_000, Math.ceil((top + 520) / 34)), `${top}`);
    assert(end - first <= 28);
  }
});

test('a timeline goes on with the stream: one value a second, a gap after a pause, and no longer than its span', () => {
  const series = { a: [1, 2, 3], b: [null, 5, null] };
  const timeline = new Timeline({ as_of: 0, scope: 'cluster', start_at: 0, step_ms: 1_000, series }, 10_000);
  timeline.append(2_100, { a: 9 });
  assert.deepEqual(timeline.times, [0, 1_000, 2_000]);
  timeline.append(3_000, { a: 4, c: 1 });
  assert.deepEqual(timeline.values('a'), [1, 2, 3, 4]);
  assert.deepEqual(timeline.values('c'), [null, null, null, 1]);
  assert.equal(timeline.latest('b', 10_000), 5);
  assert.equal(timeline.latest('b', 1_500), null);
  assert.equal(timeline.mean('a', 2_000), 3.5);
  timeline.append(12_000, { a: 8 });
  assert.deepEqual(timeline.times, [2_000, 3_000, 4_000, 12_000]);
  assert.deepEqual(timeline.values('a'), [3, 4, null, 8]);
  assert(!timeline.has('nothing') && timeline.has('c'));
});

test('a link whose records came with answers has no speed, and no time of a record', () => {
  const [link] = world.flows;
  assert(link);
  const timed = { ...link, bytes: 4_000, records: 2, ms: 8 };
  assert.deepEqual([speedOf(timed), perRecord(timed)], [500_000, 4]);
  assert.deepEqual([speedOf({ ...timed, ms: 0 }), perRecord({ ...timed, ms: 0 })], [null, null]);
  assert.equal(perRecord({ ...timed, records: 0 }), null);
});
