/** The embedded bus over real gRPC: the conformance suite, reconnection, tokens. Budget: 20 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { systemClock, type Clock } from '../../shared/base/clock.ts';
import type { Failure } from '../../shared/base/failure.ts';
import { silentLog } from '../../shared/base/log.ts';
import { EmbeddedHub, RemoteCalls } from '../../shared/bus/embedded_hub.ts';
import { HubClient } from '../../shared/bus/hub_client.ts';
import { AsyncQueue } from '../../shared/base/async_queue.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import type { BusMessage } from '../../shared/protocol/messages.ts';
import { BusKind } from '../../shared/protocol/messages.ts';
import { PATIENCE_MS, turn, until } from '../support/until.ts';
import { busConformance } from './conformance.ts';

async function openHub(port = 0, token = 't'): Promise<{ hub: EmbeddedHub; port: number; close: () => Promise<void> }> {
  const hub = new EmbeddedHub(silentLog);
  const network = new GrpcNetwork(token, systemClock);
  const listener = await network.listen(`127.0.0.1:${port}`, { connect: hub.connect });
  return {
    hub,
    port: Number(listener.address.split(':').at(-1)),
    close: async () => {
      hub.close();
      await listener.close(100);
    },
  };
}

interface Client {
  readonly bus: HubClient;
  readonly events: string[];
  close(): void;
}

function connect(port: number, token = 't', clock: Clock = systemClock): Client {
  const network = new GrpcNetwork(token, systemClock);
  const events: string[] = [];
  const bus = new HubClient({
    address: `127.0.0.1:${port}`,
    network,
    clock,
    log: silentLog,
    onConnected: () => events.push('connected'),
    onDisconnected: () => events.push('disconnected'),
    onRefused: (failure: Failure) => events.push(`refused: ${failure.code}`),
  });
  return {
    bus,
    events,
    close: () => {
      bus.close();
      network.close();
    },
  };
}

busConformance({
  name: 'embedded: the hub and its clients',
  open: async (numEnds) => {
    const { hub, port, close } = await openHub();
    const clients = Array.from({ length: numEnds - 1 }, () => connect(port));
    await until('all are connected', () => clients.every(({ events }) => events.includes('connected')));
    return {
      ends: [hub, ...clients.map(({ bus }) => bus)],
      close: async () => {
        for (const client of clients) client.close();
        await close();
      },
    };
  },
});

test('a hub that comes back has its clients within 2 s, subscriptions and servers in place', async () => {
  const first = await openHub();
  const pausesMs: number[] = [];
  const sleep: Clock['sleep'] = (ms, signal) => {
    pausesMs.push(ms);
    // eslint-disable-next-line time/speed -- the clock itself
    return systemClock.sleep(ms, signal);
  };
  const client = connect(first.port, 't', { ...systemClock, sleep });
  const got: string[] = [];
  client.bus.subscribe('news', (payload) => got.push(payload.toString()));
  await until('it is connected', () => client.events.length === 1);
  await first.close();
  await until('it has noticed', () => client.events.includes('disconnected'));
  const second = await openHub(first.port);
  await until('it is back', () => client.events.length === 3);
  assert(pausesMs.length > 0 && Math.max(...pausesMs) < 2_000, `it pauses for ${pausesMs.join(', ')} ms`);
  await until('it hears the new hub', () => {
    second.hub.publish('news', Buffer.from('hello'));
    return got.includes('hello');
  });
  client.close();
  await second.close();
});

test('a wrong token is refused, and not tried again', async () => {
  const { port, close } = await openHub();
  const client = connect(port, 'wrong');
  await until('it is refused', () => client.events.length > 0);
  assert.deepEqual(client.events, ['refused: unauthenticated']);
  client.close();
  await close();
});

test('a remote process cannot take over what the hub itself serves, nor subscribe without end (P1)', async () => {
  const { hub, port, close } = await openHub();
  hub.serve('cluster.register', (payload) => Buffer.from(`hub ${payload.toString()}`));
  const [thief, client] = [connect(port), connect(port)];
  await until('both are connected', () => thief.events.length > 0 && client.events.length > 0);
  thief.bus.serve('cluster.register', () => Buffer.from('stolen'));
  thief.bus.serve('own', () => Buffer.from('mine'));
  await until('its own subject is served', async () => {
    const answer = await client.bus.request('own', Buffer.alloc(0), PATIENCE_MS).catch(() => undefined);
    return answer?.toString() === 'mine';
  });
  assert.equal((await client.bus.request('cluster.register', Buffer.from('x'), PATIENCE_MS)).toString(), 'hub x');
  for (let i = 0; i < 100; i++) thief.bus.subscribe(`s${i}`, () => undefined);
  await until('the greedy one is dropped', () => thief.events.includes('disconnected'));
  assert.equal((await client.bus.request('cluster.register', Buffer.from('y'), PATIENCE_MS)).toString(), 'hub y');
  thief.close();
  client.close();
  await close();
});

test('connections beyond the hub’s bound are refused and leave nothing open (P1)', async () => {
  const { port, close } = await openHub();
  const networks = Array.from({ length: 4 }, () => new GrpcNetwork('t', systemClock));
  let numRefused = 0;
  let numGreeted = 0;
  const calls = Array.from({ length: 1_100 }, (_, i) => {
    const said = new AsyncQueue<BusMessage>();
    const options = { signal: new AbortController().signal, timeoutMs: undefined };
    const call = networks[i % networks.length]!.open(`127.0.0.1:${port}`, 'connect', said, options);
    void call.next().then(
      () => numGreeted++,
      () => numRefused++,
    );
    return said;
  });
  await until('all have their answer', () => numGreeted + numRefused === calls.length);
  assert.equal(numGreeted, 1_024);
  for (const call of calls) call.end();
  const late = connect(port);
  await until('there is room again', () => late.events.includes('connected'));
  late.close();
  for (const one of networks) one.close();
  await close();
});

test('an IPv6 address in brackets can be bound and joined', async () => {
  const hub = new EmbeddedHub(silentLog);
  const network = new GrpcNetwork('t', systemClock);
  const listener = await network.listen('[::1]:0', { connect: hub.connect });
  const events: string[] = [];
  const bus = new HubClient({
    address: listener.address,
    network,
    clock: systemClock,
    log: silentLog,
    onConnected: () => events.push('connected'),
    onDisconnected: () => undefined,
    onRefused: () => undefined,
  });
  await until('it is connected', () => events.length === 1);
  bus.close();
  network.close();
  hub.close();
  await listener.close(100);
});

test('1,024 requests wait on one connection, the next is refused (P1); its end fails them all', async () => {
  const sent: number[] = [];
  const calls = new RemoteCalls(({ id }) => sent.push(id ?? 0));
  const waiting = Array.from({ length: 1_024 }, () => calls.ask('s', Buffer.alloc(0)).catch((error: unknown) => error));
  await assert.rejects(calls.ask('s', Buffer.alloc(0)), /1024 requests wait/);
  calls.complete({ kind: BusKind.REPLY, subject: '', payload: Buffer.from('x'), id: sent[0] ?? 0 });
  assert.equal(String(await waiting[0]), 'x');
  calls.fail();
  assert.match(String(await waiting[1]), /connection ended/);
});

test('a process that does not read what it subscribed to is dropped, not kept in memory (P1)', async () => {
  const { hub, port, close } = await openHub();
  const network = new GrpcNetwork('t', systemClock);
  const said = new AsyncQueue<BusMessage>();
  const options = { signal: new AbortController().signal, timeoutMs: undefined };
  const call = network.open(`127.0.0.1:${port}`, 'connect', said, options);
  await call.next();
  said.push({ kind: BusKind.SUBSCRIBE, subject: 'news', payload: Buffer.alloc(0), id: 0 });
  const witness = connect(port);
  let numHeard = 0;
  witness.bus.subscribe('news', () => numHeard++);
  await until('both are there', () => {
    hub.publish('news', Buffer.from('x'));
    return numHeard > 0;
  });
  const page = Buffer.alloc(1 << 20);
  for (let i = 0; i < 60; i++) {
    hub.publish('news', page);
    await turn();
  }
  const before = numHeard;
  hub.publish('news', Buffer.from('y'));
  await until('who reads still hears', () => numHeard > before);
  await assert.rejects(
    async () => {
      for await (const message of call) assert(message);
    },
    /does not read/,
    'who did not is dropped',
  );
  witness.close();
  network.close();
  await close();
});
