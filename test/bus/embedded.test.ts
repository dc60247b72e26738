/** The embedded bus over real gRPC: the conformance suite, reconnection, tokens. Budget: 20 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import type { Failure } from '../../shared/base/failure.ts';
import { silentLog } from '../../shared/base/log.ts';
import { EmbeddedHub } from '../../shared/bus/embedded_hub.ts';
import { HubClient } from '../../shared/bus/hub_client.ts';
import { createServer, listen, Peers, services, shutDown } from '../../shared/protocol/rpc.ts';
import { until } from '../support/cluster.ts';
import { busConformance } from './conformance.ts';

async function openHub(port = 0, token = 't'): Promise<{ hub: EmbeddedHub; port: number; close: () => Promise<void> }> {
  const hub = new EmbeddedHub(silentLog);
  const server = createServer(token);
  server.addService(services.hub, { connect: hub.connect });
  const bound = await listen(server, `127.0.0.1:${port}`);
  return {
    hub,
    port: bound,
    close: async () => {
      hub.close();
      await shutDown(server, systemClock, 100);
    },
  };
}

interface Client {
  readonly bus: HubClient;
  readonly events: string[];
  close(): void;
}

function connect(port: number, token = 't'): Client {
  const peers = new Peers(token, systemClock);
  const events: string[] = [];
  const bus = new HubClient({
    address: `127.0.0.1:${port}`,
    peers,
    clock: systemClock,
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
      peers.close();
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
  const client = connect(first.port);
  const got: string[] = [];
  client.bus.subscribe('news', (payload) => got.push(payload.toString()));
  await until('it is connected', () => client.events.length === 1);
  await first.close();
  await until('it has noticed', () => client.events.includes('disconnected'));
  const startMs = performance.now();
  const second = await openHub(first.port);
  await until('it is back', () => client.events.length === 3);
  assert(performance.now() - startMs < 2_000);
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
