/** The route of the stream over real connections: its places are free again when its readers have left. Budget: 3 s. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, type AddressInfo } from 'node:net';
import fastify, { type FastifyInstance } from 'fastify';
import { afterEach, test } from 'vitest';
import { oneCaller } from '../../../services/router/access/caller.ts';
import { addStreamRoute } from '../../../services/router/http/history_routes.ts';
import { checkAccess } from '../../../services/router/http/route_access.ts';
import { Observer } from '../../../services/router/observe/observer.ts';
import { RequestLog } from '../../../services/router/record/request_log.ts';
import type { HttpApp } from '../../../services/router/router.ts';
import { until } from '../../support/until.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';

let app: FastifyInstance | undefined;
afterEach(() => app?.close());

/** Serves a stream over a cluster without members. */
async function served(): Promise<{ port: number; url: string }> {
  const clock = new SimulatedClock();
  const identity = { pid: 1, epoch: 'e' };
  app = fastify({ forceCloseConnections: true });
  checkAccess(app, oneCaller({ allow_priority: false }));
  addStreamRoute(app, {
    context: {
      admission: { isDraining: false, numRequests: 0 },
      requests: new RequestLog(clock, [], 10),
    },
    view: { all: () => [] },
    observer: new Observer({ clock, name: 'router', identity, historyBytes: 1e6 }),
    address: 'r:1',
    losses: { get: () => new Map() },
  } as unknown as HttpApp);
  const url = await app.listen({ host: '127.0.0.1', port: 0 });
  return { url, port: (app.server.address() as AddressInfo).port };
}

test('streams that wait for another one on their connection leave with it', async () => {
  const { url, port } = await served();
  const sockets = Array.from({ length: 16 }, () => connect(port, '127.0.0.1'));
  for (const socket of sockets) {
    socket.write('GET /api/stream HTTP/1.1\r\nhost: r\r\n\r\n'.repeat(8));
    const [head] = (await once(socket, 'data')) as [Buffer];
    assert.match(head.toString(), /^HTTP\/1\.1 (200|503) /);
  }
  const open = async (): Promise<boolean> => {
    const leaving = new AbortController();
    const { ok } = await fetch(`${url}/api/stream`, { signal: leaving.signal });
    leaving.abort();
    return ok;
  };
  assert.equal(await open(), false, 'all places are taken');
  for (const socket of sockets) socket.destroy();
  await until('there are places again', open);
});

test('a stream has no answer to HEAD, which would never end', async () => {
  const { url } = await served();
  assert.equal((await fetch(`${url}/api/stream`, { method: 'HEAD' })).status, 404);
});
