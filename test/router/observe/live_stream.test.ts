/** Ticks of the dashboard's stream, by a clock that the test sets. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Failure } from '../../../shared/base/failure.ts';
import { Instance } from '../../../shared/placement/instance.ts';
import type { NodeView, StreamTick } from '../../../shared/protocol/router_api.ts';
import { EventLog } from '../../../services/router/observe/event_log.ts';
import { LiveStream, STREAM_PARTS, type StreamReader } from '../../../services/router/observe/live_stream.ts';
import { routerNode } from '../../../services/router/observe/node_view.ts';
import { RequestLog } from '../../../services/router/record/request_log.ts';
import type { InstanceLoad } from '../../../shared/protocol/membership.ts';
import { kindOf } from '../../support/request_kind.ts';

const T0 = 1_700_000_000_000;

class Reader implements StreamReader {
  readonly ticks: StreamTick[] = [];
  numBytes = 0;
  isSlow = false;
  readonly parts;

  constructor(parts: readonly (typeof STREAM_PARTS)[number][] = STREAM_PARTS) {
    this.parts = new Set(parts);
  }

  isBehind(): boolean {
    return this.isSlow;
  }

  write(text: string): void {
    const [, data] = /^event: tick\ndata: (.*)\n\n$/.exec(text) ?? [];
    assert.ok(data, text.slice(0, 80));
    this.ticks.push(JSON.parse(data) as StreamTick);
    this.numBytes += text.length;
  }

  get last(): StreamTick {
    const last = this.ticks.at(-1);
    assert.ok(last);
    return last;
  }
}

class World {
  nowMs = 0;
  numAsked = 0;
  readonly instances: Instance[] = [];
  readonly clock = { nowMs: () => this.nowMs, wallMs: () => T0 + this.nowMs, sleep: never, turn: never };
  readonly events = new EventLog(this.clock);
  readonly requests = new RequestLog(this.clock, [], 10_000);
  readonly stream: LiveStream;

  constructor() {
    const router = { name: 'router', epoch: 'r' };
    const process = { ...router, pid: 1, address: 'r:1', startedMs: 0, loopDelayMs: 0 };
    this.stream = new LiveStream({
      router,
      moment: () => ({ nowMs: this.nowMs, wallMs: T0 + this.nowMs }),
      instances: () => {
        this.numAsked++;
        return this.instances;
      },
      health: () => ({ state: 'ok', problems: [] }),
      routerNode: () => ({
        ...routerNode(process, { numRequests: 0, isDraining: false }, { nowMs: 0, wallMs: T0 }),
        memory_bytes: 0,
        heap_bytes: 0,
        cpu_ms: 0,
      }),
      now: () => ({ requests_per_s: 3 }),
      flows: () => [],
      losses: () => new Map(),
      events: this.events,
      requests: this.requests,
    });
  }

  add(name: string): Instance {
    const member = { name, role: 'decode', address: `${name}:1`, pid: 1, epoch: 'e' } as const;
    const instance = new Instance({ member, protocolVersion: 1 }, this.nowMs, undefined, 'm');
    this.instances.push(instance);
    heard(instance, 0, this.nowMs);
    return instance;
  }

  tick(): void {
    this.nowMs += 1_000;
    this.stream.tick();
  }

  request(id: string, failure?: Failure): void {
    const trace = this.requests.open(id, kindOf('/v1/chat/completions'), { clientId: undefined, traceId: undefined });
    trace.end(failure ? 'failed' : 'finished', failure ? 'error' : 'stop', failure);
  }
}

function never(): Promise<void> {
  return Promise.reject(new Error('not used'));
}

function heard(instance: Instance, running: number, nowMs: number): void {
  const tier = { blocks: 9, bytes: running * 1_000, capacityBytes: 1e9, hits: running, misses: 1, evictions: 0 };
  const tiers = { device: { ...tier, dedupFactor: 1 }, dram: { ...tier, dedupFactor: 1 } };
  const load: InstanceLoad = {
    running,
    waiting: running % 7,
    preemptions: 0,
    lastStepMs: running / 3,
    isDraining: false,
    tiers,
  };
  instance.receiveHeartbeat({ load, blocks: 0, seen: {} }, 'r', nowMs);
}

test('the first tick has all, the next ones what has changed', () => {
  const world = new World();
  const [a] = [world.add('a'), world.add('b')];
  world.request('r1');
  world.events.add({ kind: 'joined', node: 'a', text: 'a joined' });
  const reader = new Reader();
  const close = world.stream.open(reader);
  assert.deepEqual(
    reader.last.nodes.map(({ name }) => name),
    ['a', 'b', 'router'],
  );
  assert.deepEqual([reader.last.requests.length, reader.last.events.length], [1, 1]);
  assert.deepEqual(reader.last.now, { requests_per_s: 3 });
  world.tick();
  assert.equal(reader.last.nodes.length, 0);
  heard(a, 5, world.nowMs);
  world.request('r2');
  world.requests.open('r3', kindOf('/v1/completions'), { clientId: undefined, traceId: undefined });
  world.events.add({ kind: 'lost', node: 'b', text: 'b is lost' });
  world.instances.pop();
  world.tick();
  const [changed] = reader.last.nodes;
  assert.deepEqual([changed?.name, changed?.running, changed?.address], ['a', 5, undefined]);
  assert.deepEqual(reader.last.gone, ['b']);
  assert.deepEqual(
    reader.last.requests.map(({ id, phase }) => [id, phase]),
    [
      ['r2', 'finished'],
      ['r3', 'tokenizing'],
    ],
  );
  assert.deepEqual(
    reader.last.events.map(({ text }) => text),
    ['b is lost'],
  );
  world.tick();
  assert.deepEqual([reader.last.requests, reader.last.events], [[], []]);
  close();
  const { numAsked } = world;
  world.tick();
  assert.equal(world.numAsked, numAsked, 'nothing is computed without a reader');
  assert.equal(world.stream.numReaders, 0);
});

test('1,000 nodes that change all the time, and 200 requests a second, take under 20 KB a second; none is forgotten', () => {
  const world = new World();
  const nodes = Array.from({ length: 1_000 }, (_, i) => world.add(`decode-${i}`));
  const reader = new Reader();
  world.stream.open(reader);
  const known = new Map(reader.last.nodes.map((node) => [node.name, node as NodeView]));
  assert.equal(known.size, 1_001);
  reader.numBytes = 0;
  const numTicks = 60;
  for (let tick = 1; tick <= numTicks; tick++) {
    for (const [i, node] of nodes.entries()) heard(node, (i * 31 + tick * 17) % 977, world.nowMs);
    for (let i = 0; i < 200; i++) world.request(`r${tick}-${i}`, i === 150 ? new Failure('internal', 'x') : undefined);
    world.tick();
    assert.ok(
      reader.last.requests.some(({ id }) => id === `r${tick}-150`),
      'a failed one is always sent',
    );
    for (const row of reader.last.nodes) known.set(row.name, { ...(known.get(row.name) as NodeView), ...row });
  }
  assert.ok(reader.numBytes / numTicks < 20_000, `${reader.numBytes / numTicks} bytes`);
  for (let i = 0; i < 100; i++) {
    world.tick();
    for (const row of reader.last.nodes) known.set(row.name, { ...(known.get(row.name) as NodeView), ...row });
  }
  for (const { member, load } of nodes) {
    const shown = known.get(member.name);
    assert.deepEqual([shown?.running, shown?.tiers['dram']?.hits], [load?.running, load?.running]);
  }
});

test('a state that changes is sent before other changes', () => {
  const world = new World();
  const nodes = Array.from({ length: 1_000 }, (_, i) => world.add(`decode-${i}`));
  const reader = new Reader();
  world.stream.open(reader);
  nodes[700]?.failed('reset');
  for (const [i, node] of nodes.entries()) if (i !== 700) heard(node, 5, world.nowMs);
  world.tick();
  assert.equal(reader.last.nodes[0]?.name, 'decode-700');
  assert.equal(reader.last.nodes[0].state, 'suspect');
});

test('a tick between two seconds has the news alone: events, and nodes whose state has changed', () => {
  const world = new World();
  const nodes = Array.from({ length: 50 }, (_, i) => world.add(`decode-${i}`));
  const reader = new Reader();
  world.stream.open(reader);
  for (const node of nodes) heard(node, 5, world.nowMs);
  nodes[7]?.failed('reset');
  world.request('r1');
  world.events.add({ kind: 'suspect', node: 'decode-7', text: 'decode-7 is suspect' });
  world.stream.tick(true);
  const sent = ({ nodes, events, requests }: StreamTick): unknown[] => [
    nodes.map(({ name }) => name),
    events.map(({ text }) => text),
    requests.map(({ id }) => id),
  ];
  assert.deepEqual(sent(reader.last), [['decode-7'], ['decode-7 is suspect'], []]);
  world.tick();
  const [names, events, requests] = sent(reader.last) as [string[], string[], string[]];
  assert.deepEqual([names.length > 10, events, requests], [true, [], ['r1']]);
});

test('a thousand nodes that join at once come in several ticks, none of which is large', () => {
  const world = new World();
  const reader = new Reader();
  world.stream.open(reader);
  const nodes = Array.from({ length: 1_000 }, (_, i) => world.add(`decode-${i}`));
  const known = new Set<string>();
  for (let i = 0; i < 20; i++) {
    reader.numBytes = 0;
    for (const node of nodes) heard(node, i, world.nowMs);
    world.tick();
    for (const { name } of reader.last.nodes) known.add(name);
    assert.ok(reader.numBytes < 80_000, `${reader.numBytes} bytes`);
  }
  assert.equal(known.size, 1_000);
});

test('a slow reader is left out and gets what it missed later, not all anew', () => {
  const world = new World();
  const nodes = Array.from({ length: 100 }, (_, i) => world.add(`decode-${i}`));
  const [slow, quick] = [new Reader(), new Reader()];
  world.stream.open(slow);
  world.stream.open(quick);
  const firstBytes = slow.numBytes;
  slow.isSlow = true;
  const known = new Map(slow.last.nodes.map((node) => [node.name, node as NodeView]));
  const [a, b] = nodes;
  assert(a && b);
  const hear = (): void => {
    for (const node of nodes) heard(node, node.load?.running ?? 0, world.nowMs);
  };
  heard(a, 5, world.nowMs);
  world.request('r1');
  world.events.add({ kind: 'joined', node: 'x', text: 'first' });
  world.tick();
  hear();
  heard(b, 6, world.nowMs);
  heard(a, 7, world.nowMs);
  world.request('r2');
  world.events.add({ kind: 'joined', node: 'y', text: 'second' });
  world.tick();
  assert.deepEqual([slow.ticks.length, quick.ticks.length], [1, 3]);
  slow.isSlow = false;
  hear();
  heard(b, 8, world.nowMs);
  world.tick();
  for (const row of slow.last.nodes) known.set(row.name, { ...(known.get(row.name) as NodeView), ...row });
  assert.deepEqual([known.get('decode-0')?.running, known.get('decode-1')?.running, known.size], [7, 8, 101]);
  assert.deepEqual(
    [slow.last.events.map(({ text }) => text).sort(), slow.last.requests.map(({ id }) => id)],
    [
      ['first', 'second'],
      ['r1', 'r2'],
    ],
  );
  assert.ok(slow.numBytes - firstBytes < firstBytes / 10, `${slow.numBytes - firstBytes} of ${firstBytes} bytes`);
  assert.deepEqual(
    quick.last.nodes.map(({ name }) => name),
    ['decode-1'],
  );
  hear();
  world.tick();
  assert.deepEqual([slow.last.nodes, slow.last.events, slow.last.requests], [[], [], []]);
});

test('parts that are not wanted are empty; the 65th reader is refused', () => {
  const world = new World();
  world.add('a');
  const events = new Reader(['events']);
  world.stream.open(events);
  world.tick();
  assert.deepEqual([events.ticks.length, events.last.nodes, events.ticks[0]?.nodes], [2, [], []]);
  for (let i = 1; i < 64; i++) world.stream.open(new Reader());
  assert.throws(() => world.stream.open(new Reader()), /there are 64 streams already/);
});

test('of many events at once a tick has the first ones, and the next ticks the others; of very many the last 200 are sent', () => {
  const world = new World();
  const reader = new Reader();
  world.stream.open(reader);
  const told = (): number[] => reader.ticks.flatMap(({ events }) => events.map(({ id }) => id).reverse());
  for (let i = 1; i <= 25; i++) world.events.add({ kind: 'lost', text: `${i}` });
  world.tick();
  assert.deepEqual(
    reader.last.events.map(({ id }) => id),
    [10, 9, 8, 7, 6, 5, 4, 3, 2, 1],
  );
  for (let i = 0; i < 3; i++) world.tick();
  assert.deepEqual(
    told(),
    Array.from({ length: 25 }, (_, i) => i + 1),
  );
  for (let i = 0; i < 1_000; i++) world.events.add({ kind: 'error', text: 'x' });
  for (let i = 0; i < 30; i++) world.tick();
  assert.deepEqual(
    told().slice(25),
    Array.from({ length: 200 }, (_, i) => 826 + i),
  );
});

test('a slow reader hears of the nodes that left meanwhile, but not of one that is back', () => {
  const world = new World();
  const a = world.add('a');
  world.add('b');
  world.add('c');
  const slow = new Reader();
  world.stream.open(slow);
  slow.isSlow = true;
  world.instances.splice(1, 2);
  world.tick();
  world.add('c');
  heard(a, 0, world.nowMs);
  world.tick();
  heard(a, 0, world.nowMs);
  slow.isSlow = false;
  world.tick();
  assert.deepEqual([slow.ticks.length, slow.last.gone], [2, ['b']]);
  const [c, ...others] = slow.last.nodes;
  assert.deepEqual([c?.name, c?.address, others], ['c', 'c:1', []]);
  world.tick();
  assert.deepEqual(slow.last.gone, []);
});

test('whoever saw a request in flight hears of its end, however many others end with it', () => {
  const world = new World();
  const [reader, other] = [new Reader(), new Reader()];
  world.stream.open(reader);
  const open = (id: string) =>
    world.requests.open(id, kindOf('/v1/completions'), { clientId: undefined, traceId: undefined });
  const shown = [open('early-1'), open('early-2')];
  world.tick();
  assert.deepEqual(
    reader.last.requests.map(({ id, phase }) => [id, phase]),
    [
      ['early-2', 'tokenizing'],
      ['early-1', 'tokenizing'],
    ],
  );
  for (const trace of shown) trace.end('finished', 'stop');
  for (let i = 0; i < 500; i++) open(`late-${i}`).end('finished', 'stop');
  world.stream.open(other);
  world.tick();
  const ends = reader.last.requests.filter(({ id, phase }) => id.startsWith('early') && phase === 'finished');
  assert.equal(ends.length, 2, 'the rows would stay in flight for ever');
});
