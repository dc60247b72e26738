/** `/api/pool` from heartbeats. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Instance } from '../../../shared/placement/instance.ts';
import { poolView } from '../../../services/router/observe/pool_view.ts';
import { readHeartbeat, toBytes, type InstanceLoad } from '../../../shared/protocol/membership.ts';

const states = { slots: 24, saved: 9, used: 5, hits: 31, evictions: 2 };

function engine(name: string, change?: Partial<InstanceLoad>): Instance {
  const member = { name, role: 'prefill', address: `${name}:1`, pid: 1, epoch: 'e' } as const;
  const instance = new Instance({ member, protocolVersion: 1 }, 0, undefined, 'm');
  if (!change) return instance;
  const load = { running: 3, waiting: 1, preemptions: 0, lastStepMs: 7, isDraining: false, tiers: {}, ...change };
  instance.receiveHeartbeat(readHeartbeat(toBytes({ name, epoch: 'e', load, blocks: 0, seen: {} })), 'r', 0);
  return instance;
}

test('a node has its slots for recurrent states, and null when its model has none or it was not heard of yet', () => {
  const nodes = [engine('hybrid', { states }), engine('without', {}), engine('silent')];
  const sources = {
    view: { all: () => nodes, model: undefined, otherRouters: [], models: new Map() },
    index: { size: 0, bytes: 0 },
    policy: { state: { name: 'auto', placesBy: 'priced', version: 0, sinceMs: 0, setBy: '' } },
    bus: { name: 'hub', isConnected: true, numUnverified: 0 },
    losses: { get: () => new Map() },
  } as unknown as Parameters<typeof poolView>[0];
  const open = {
    admission: { numRequests: 2, isDraining: false },
    bodies: {},
    numPromised: () => 0,
  } as unknown as Parameters<typeof poolView>[1];
  const seen = {
    now: { nowMs: 5_000, wallMs: 1e12 },
    health: { state: 'ok', problems: [] },
    process: { name: 'router', epoch: 'r', pid: 7, address: 'r:1', startedMs: 1_000, loopDelayMs: 3 },
    started_at: 1e12 - 4_000,
    flows: [],
  } as const;
  const shown = poolView(sources, open, [], seen).nodes;
  assert.deepEqual(
    shown.map((node) => [node.name, node.running, node.state_slots]),
    [
      ['hybrid', 3, states],
      ['without', 3, null],
      ['silent', 0, null],
      ['router', 2, undefined],
    ],
  );
  const [hybrid, , , router] = shown;
  assert.deepEqual([hybrid?.['state'], hybrid?.['heard_ms'], hybrid?.['joined_at']], ['suspect', 5_000, 1e12 - 5_000]);
  assert.deepEqual([router?.['role'], router?.['joined_at'], router?.['loop_delay_ms']], ['router', 1e12 - 4_000, 3]);
  assert.ok(Number(router?.['memory_bytes']) > 1e6 && Number(router?.['cpu_ms']) > 0);
});
