/** The bodies of `/api/*` that commands read: those of the router as they are, and others without a failure. Budget: 2 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { nodeView } from '../../services/router/observe/node_view.ts';
import { Instance } from '../../shared/placement/instance.ts';
import { readHeartbeat, toBytes } from '../../shared/protocol/membership.ts';
import type { NodeView, PoolBody } from '../../shared/protocol/router_api.ts';
import { readEventPage, readPool } from '../../shared/protocol/router_api_schemas.ts';
import { World } from '../support/dashboard_world.ts';

const world = new World({ nodes: 3, blocks: 10, requests: 0, seed: 3 }, 1_000_000);

/** A node as the router writes it. */
function member(): NodeView {
  const address = { address: 'm:1', pid: 1, epoch: 'e' };
  const instance = new Instance(
    { member: { name: 'm', role: 'decode', ...address }, protocolVersion: 1 },
    0,
    undefined,
    'a',
  );
  const tier = { blocks: 1, bytes: 2, capacityBytes: 30, hits: 4, misses: 5, evictions: 6, dedupFactor: 1 };
  const load = {
    running: 1,
    waiting: 2,
    preemptions: 3,
    lastStepMs: 4.5,
    kvUsage: 0.5,
    openStreams: 6,
    arriving: 7,
    lent: 8,
    fetched: { memory: 1, socket: 2, call: 3 },
    isDraining: false,
    tiers: { device: tier },
  };
  instance.load = readHeartbeat(toBytes({ name: 'm', epoch: 'e', load, blocks: 0, seen: {} })).load;
  return nodeView(instance, { nowMs: 0, wallMs: 0 });
}

/** Asserts that a value that was read is part of the one that was written. */
function assertPart(read: unknown, written: unknown, path: string): void {
  if (typeof read !== 'object' || read === null) {
    assert.deepEqual(read, written, path);
    return;
  }
  for (const [name, value] of Object.entries(read))
    assertPart(value, (written as Record<string, unknown>)[name], `${path}.${name}`);
}

describe('a body of the router', () => {
  test('/api/pool is read as it was written', () => {
    const body: PoolBody = { ...world.pool(), nodes: [member()] };
    const text = JSON.stringify(body);
    const read = readPool(JSON.parse(text));
    assert.equal(read.nodes?.length, 1);
    assertPart(read, JSON.parse(text), 'pool');
  });

  test('/api/events is read as it was written', () => {
    const read = readEventPage({ as_of: 1, router: world.pool().router, events: world.events });
    assert.equal(read.length, world.events.length);
    assertPart(read, world.events, 'events');
  });

  test('has as many nodes as are wanted', () => {
    assert.deepEqual(
      readPool(world.pool(), 2).nodes?.map(({ name }) => name),
      world.nodes.slice(0, 2).map(({ name }) => name),
    );
  });
});

describe('a body of another version, or of something else', () => {
  test('has the stand-in of each field that is absent or has another type', () => {
    const nothing = readPool({});
    for (const body of [null, undefined, 3, 'x', [], { health: [], policy: 3, router: null, index_keys: '1', bus: [] }])
      assert.equal(JSON.stringify(readPool(body)), JSON.stringify(nothing));
    assert.deepEqual(
      [nothing.nodes, nothing.as_of, nothing.bus, nothing.health.problems, nothing.index_keys],
      [undefined, undefined, undefined, [], 0],
    );
  });

  test('has nodes with stand-ins: no text, 0, or null where the router writes null for what a node does not have', () => {
    const odd = {
      name: 3,
      running: 'x',
      kv_usage: 'x',
      tiers: { a: null, b: { bytes: 'x', hits: 4 } },
      fetched_bytes: [5],
    };
    const [empty, first, second] = readPool({ nodes: [{}, null, odd] }).nodes ?? [];
    assert.deepEqual(first, empty);
    const none = { bytes: 0, capacity_bytes: 0, hits: 0, misses: 0 };
    assert.deepEqual(second, { ...empty, name: '3', tiers: { a: none, b: { ...none, hits: 4 } } });
    assert.deepEqual([empty?.name, empty?.running, empty?.kv_usage, empty?.unreachable], ['', 0, null, null]);
  });

  test('has events with stand-ins', () => {
    assert.deepEqual([readEventPage(null), readEventPage({ events: 3 })], [[], []]);
    assert.deepEqual(readEventPage({ events: [null, { kind: 'lost', node: 4 }] }), [
      { at: 0, kind: '', text: '', node: null },
      { at: 0, kind: 'lost', text: '', node: null },
    ]);
  });
});
