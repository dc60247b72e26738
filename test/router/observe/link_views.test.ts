/** Links between members and their speeds, by times that the test sets. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Instance } from '../../../shared/placement/instance.ts';
import { LinkViews } from '../../../services/router/observe/link_views.ts';

function node(name: string): Instance {
  const member = { name, role: 'decode', address: `${name}:1`, pid: 1, epoch: 'e' } as const;
  return new Instance({ member, protocolVersion: 1 }, 0, undefined, 'm');
}

test('a link has the names of its ends, and the speed of the last ten seconds, which falls to zero', () => {
  const links = new LinkViews();
  const [reader, holder] = [node('reader'), node('holder')];
  const flow = (from: string, bytes: number) => ({ from, way: 'socket', bytes, records: 3, ms: 5, failures: 1 });
  const nodes = [reader, holder];
  for (let second = 0; second <= 5; second++) {
    reader.flows.set('socket holder:1', flow('holder:1', 1_000 + second * 200));
    reader.flows.set('socket elsewhere:1', flow('elsewhere:1', 7));
    links.measure(nodes, second * 1_000);
  }
  const [first, second] = links.list(nodes);
  assert.deepEqual(first, { ...flow('holder', 2_000), to: 'reader', bytes_per_s: 100 });
  assert.deepEqual([second?.from, second?.bytes_per_s], ['elsewhere:1', 0]);
  for (let at = 6; at <= 17; at++) links.measure(nodes, at * 1_000);
  assert.equal(links.list(nodes)[0]?.bytes_per_s, 0);
  assert.deepEqual(links.list([holder]), []);
});

test('of more links than are listed the fastest are, then those that moved most; one that rests begins again at its own count', () => {
  const links = new LinkViews();
  const readers = Array.from({ length: 10 }, (_, i) => node(`reader-${i}`));
  const report = (reader: Instance, i: number, bytes: number): void => {
    const from = `holder-${i}:1`;
    reader.flows.set(`socket ${from}`, { from, way: 'socket', bytes, records: 1, ms: 1, failures: 0 });
  };
  for (const [r, reader] of readers.entries()) for (let i = 0; i < 500; i++) report(reader, i, 1e12 + 1_000 * i + r);
  links.measure(readers, 0);
  const [first] = readers;
  assert.ok(first);
  report(first, 0, 1e12 + 50_000);
  links.measure(readers, 1_000);
  const listed = links.list(readers);
  assert.equal(listed.length, 4_096);
  assert.deepEqual(
    listed.filter(({ bytes_per_s }) => bytes_per_s > 0).map(({ to, bytes_per_s }) => [to, bytes_per_s]),
    [['reader-0', 5_000]],
  );
  // 4,095 links that rest are those from the 409 holders that moved most, and five of the next one.
  const resting = listed.filter(({ bytes_per_s }) => bytes_per_s === 0);
  assert.equal(Math.min(...resting.map(({ bytes }) => bytes)), 1e12 + 90_000 + 5);
  for (let second = 2; second <= 12; second++) links.measure(readers, second * 1_000);
  assert.ok(links.list(readers).every(({ bytes_per_s }) => bytes_per_s === 0));
  report(first, 0, 1e12 + 70_000);
  links.measure(readers, 13_000);
  assert.equal(Math.max(...links.list(readers).map(({ bytes_per_s }) => bytes_per_s)), 2_000);
  report(first, 0, 30_000);
  links.measure(readers, 14_000);
  assert.equal(Math.max(...links.list(readers).map(({ bytes_per_s }) => bytes_per_s)), 5_000, 'a restart is no debt');
});
