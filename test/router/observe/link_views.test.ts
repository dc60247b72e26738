/** Links between members and their speeds, by times that the test sets. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Instance } from '../../../services/router/cluster/instance.ts';
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
