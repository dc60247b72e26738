/** One cluster's part of a bus: what another cluster, or another token, says is not heard, nor what was said before. Budget: 2 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { newBusEpoch } from '../../shared/base/identity.ts';
import { silentLog } from '../../shared/base/log.ts';
import { ClusterBus } from '../../shared/bus/cluster_bus.ts';
import { EmbeddedHub } from '../../shared/bus/embedded_hub.ts';
import { SimulatedClock } from '../sim/simulated_clock.ts';
import { busConformance } from './conformance.ts';

const clock = new SimulatedClock();
const onBus = (
  hub: EmbeddedHub,
  cluster: string,
  token: string,
  onUnverified?: (subject: string) => void,
): ClusterBus => new ClusterBus(hub, { cluster, token, epoch: newBusEpoch(), clock, log: silentLog, onUnverified });

busConformance({
  name: 'a cluster’s part of the hub',
  open: (numEnds) => {
    const hub = new EmbeddedHub(silentLog);
    const ends = Array.from({ length: numEnds }, () => onBus(hub, 'a', 't'));
    return Promise.resolve({ ends, close: () => Promise.resolve() });
  },
});

test('two clusters on one bus do not hear each other, and serve each other nothing', async () => {
  const hub = new EmbeddedHub(silentLog);
  const [a, b] = [onBus(hub, 'a', 't'), onBus(hub, 'b', 't')];
  const heard: string[] = [];
  for (const [name, bus] of Object.entries({ a, b })) {
    bus.subscribe('news', (payload) => heard.push(`${name}: ${payload.toString()}`));
  }
  a.publish('news', Buffer.from('x'));
  b.publish('news', Buffer.from('y'));
  assert.deepEqual(heard, ['a: x', 'b: y']);
  a.serve('own', () => Buffer.from('served'));
  await assert.rejects(b.request('own', Buffer.alloc(0), 100), /no process serves/);
  assert.equal((await a.request('own', Buffer.alloc(0), 100)).toString(), 'served');
});

test('under another token nothing is heard, asked or answered; who listens is told', async () => {
  const hub = new EmbeddedHub(silentLog);
  const notified: string[] = [];
  const [own, strange] = [onBus(hub, 'a', 'right', (subject) => notified.push(subject)), onBus(hub, 'a', 'wrong')];
  const heard: string[] = [];
  own.subscribe('news', (payload) => heard.push(payload.toString()));
  strange.publish('news', Buffer.from('forged'));
  own.publish('news', Buffer.from('true'));
  assert.deepEqual(heard, ['true']);
  assert.deepEqual(notified, ['news']);
  own.serve('own', () => assert.fail('it is not asked'));
  await assert.rejects(strange.request('own', Buffer.from('x'), 100), /another --cluster-token/);
  strange.serve('theirs', () => Buffer.from('forged'));
  await assert.rejects(own.request('theirs', Buffer.from('x'), 100), /another --cluster-token/);
  assert.equal(own.numUnverified, 2);
});

test('while a token replaces another, processes that take both hear those that send either', async () => {
  const hub = new EmbeddedHub(silentLog);
  const [old, both, next] = ['old', 'old\nnew', 'new\nold'].map((token) => onBus(hub, 'a', token));
  const [last, strange] = [onBus(hub, 'a', 'new'), onBus(hub, 'a', 'other')];
  assert(old && both && next);
  const heard: string[] = [];
  both.subscribe('news', (payload) => heard.push(payload.toString()));
  for (const [name, bus] of Object.entries({ old, next, last, strange })) bus.publish('news', Buffer.from(name));
  assert.deepEqual(heard, ['old', 'next', 'last']);
  // An answer is sealed under the token of its request: who takes the new one alone opens it too.
  both.serve('own', () => Buffer.from('served'));
  for (const bus of [old, next, last])
    assert.equal((await bus.request('own', Buffer.alloc(0), 100)).toString(), 'served');
  const others: string[] = [];
  last.subscribe('news', (payload) => others.push(payload.toString()));
  for (const [name, bus] of Object.entries({ old, both, next })) bus.publish('news', Buffer.from(name));
  assert.deepEqual(others, ['next']);
});

test('what was said on one subject counts on no other, and what is cut or changed on none', () => {
  const hub = new EmbeddedHub(silentLog);
  const bus = onBus(hub, 'a', 't');
  const full = (subject: string): string => `penstock.a.${subject}`;
  let sealed = Buffer.alloc(0);
  hub.subscribe(full('one'), (bytes) => (sealed = Buffer.from(bytes)));
  const heard: string[] = [];
  for (const subject of ['one', 'two'])
    bus.subscribe(subject, (payload) => heard.push(`${subject} ${payload.toString()}`));
  bus.publish('one', Buffer.from('hello'));
  assert.deepEqual(heard, ['one hello']);
  hub.publish(full('two'), sealed);
  for (let length = 0; length < sealed.length; length++) hub.publish(full('one'), sealed.subarray(0, length));
  for (let bit = 0; bit < 8 * sealed.length; bit++) {
    const changed = Buffer.from(sealed);
    changed[bit >> 3]! ^= 1 << (bit & 7);
    hub.publish(full('one'), changed);
  }
  assert.deepEqual(heard, ['one hello']);
});
