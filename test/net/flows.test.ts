/** Counts of fetches by holder and way, and how heartbeats report them. Budget: 2 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { keepFlows, type ReportedFlows } from '../../shared/placement/reported_flows.ts';
import { Random } from '../../shared/base/random.ts';
import { FetchFlows } from '../../shared/net/fetch/flows.ts';
import { readHeartbeat, toBytes, type Flow } from '../../shared/protocol/membership.ts';

const load = { running: 0, waiting: 0, preemptions: 0, lastStepMs: 0, isDraining: false, tiers: {} };

test('a flow is reported when it has changed, with all of it since the start, and then not until its turn to be repeated', () => {
  const flows = new FetchFlows();
  assert.deepEqual(flows.report(), []);
  flows.add('a:1', 'socket', { bytes: 100, records: 1 });
  flows.add('a:1', 'socket', { ms: 2.5 });
  flows.add('a:1', 'call', { failures: 1 });
  const socket = { from: 'a:1', way: 'socket', bytes: 100, records: 1, ms: 2.5, failures: 0 };
  assert.deepEqual(flows.report(), [socket, { from: 'a:1', way: 'call', bytes: 0, records: 0, ms: 0, failures: 1 }]);
  flows.add('a:1', 'socket', { bytes: 50, records: 1 });
  assert.deepEqual(flows.report(), [{ ...socket, bytes: 150, records: 2 }]);
  for (let i = 0; i < 17; i++) assert.deepEqual(flows.report(), []);
  assert.deepEqual(
    flows.report().map(({ way }) => way),
    [],
  );
  // The call's twentieth heartbeat after the one that had it.
  assert.deepEqual(
    flows.report().map(({ way }) => way),
    ['call'],
  );
  assert.deepEqual(
    flows.report().map(({ way, bytes }) => [way, bytes]),
    [['socket', 150]],
  );
});

test('a heartbeat has 64 flows at most, and every one of 1,024 comes within 20 of them', () => {
  const flows = new FetchFlows();
  const seen = new Map<string, number>();
  for (let beat = 0; beat < 60; beat++) {
    // All of them change all the time.
    for (let i = 0; i < 1_024; i++) flows.add(`h:${i}`, 'memory', { bytes: 1 });
    const reported = flows.report();
    assert.equal(reported.length, 64);
    for (const { from } of reported) {
      assert(beat - (seen.get(from) ?? 0) <= 20, `${from} was ${beat - (seen.get(from) ?? 0)} heartbeats old`);
      seen.set(from, beat);
    }
  }
  assert.equal(seen.size, 1_024);
});

test('1,024 flows are counted; one more takes the place of the one that was used least recently (P1)', () => {
  const flows = new FetchFlows();
  for (let i = 0; i < 1_024; i++) flows.add(`h:${i}`, 'memory', { bytes: 1 });
  flows.add('h:0', 'memory', { bytes: 1 });
  flows.add('new:1', 'memory', { bytes: 7 });
  const all = Array.from({ length: 16 }, () => flows.report()).flat();
  assert.equal(all.length, 1_024);
  assert.equal(all.find(({ from }) => from === 'h:0')?.bytes, 2);
  assert.equal(
    all.find(({ from }) => from === 'h:1'),
    undefined,
  );
});

test('a router that loses heartbeats has the counts of the member 36 heartbeats later', () => {
  const random = new Random(40);
  const flows = new FetchFlows();
  const kept: ReportedFlows = new Map();
  const truth = new Map<string, number>();
  for (let beat = 0; beat < 200; beat++) {
    if (beat < 150)
      for (let i = 0; i < 40; i++) {
        const from = `h:${random.below(300)}`;
        flows.add(from, 'socket', { bytes: 10 });
        truth.set(from, (truth.get(from) ?? 0) + 10);
      }
    const bytes = toBytes({ name: 'd1', epoch: 'e', load: { ...load, links: flows.report() }, blocks: 0, seen: {} });
    const isLost = beat < 150 && random.chance(1, 2);
    if (!isLost) keepFlows(kept, readHeartbeat(bytes).load.links ?? []);
  }
  assert.deepEqual(new Map([...kept.values()].map(({ from, bytes }) => [from, bytes])), truth);
});

test('a router keeps 1,024 flows of a member, whatever it reports (P1)', () => {
  const kept: ReportedFlows = new Map();
  const flow: Flow = { from: 'h:1', way: 'socket', bytes: 1, records: 1, ms: 1, failures: 0 };
  keepFlows(
    kept,
    Array.from({ length: 3_000 }, (_, i) => ({ ...flow, from: `h:${i}` })),
  );
  assert.deepEqual([kept.size, kept.has('socket h:2999'), kept.has('socket h:0')], [1_024, true, false]);
});
