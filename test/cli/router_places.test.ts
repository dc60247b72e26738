/** Where the routers of a local cluster listen. Budget: 1 s. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type AddressInfo } from 'node:net';
import { test } from 'vitest';
import { routerPlaces } from '../../services/cli/router_places.ts';
import { ConfigError } from '../../shared/base/options.ts';

const defaults = { router: 2, bind: '', hub_bind: '', metrics_bind: '' };
const allFree = (): Promise<boolean> => Promise.resolve(true);
const without =
  (...used: number[]) =>
  (address: string): Promise<boolean> =>
    Promise.resolve(!used.some((port) => address.endsWith(`:${port}`)));

test('a single router keeps its name, and the addresses of its options', async () => {
  const places = await routerPlaces({ ...defaults, router: 1, bind: '127.0.0.1:7000' }, 3, allFree);
  assert.deepEqual(places, [{ name: 'router', httpBind: '', hubAddress: '' }]);
});

test('several have the port of --bind and the next free ones, and hubs that the system picks', async () => {
  assert.deepEqual(await routerPlaces({ ...defaults, router: 3 }, 5, without(8_003)), [
    { name: 'router-1', httpBind: '127.0.0.1:8000', hubAddress: '' },
    { name: 'router-2', httpBind: '127.0.0.1:8002', hubAddress: '' },
    { name: 'router-3', httpBind: '127.0.0.1:8004', hubAddress: '' },
  ]);
});

test('a port that the system picks, it picks for each', async () => {
  const places = await routerPlaces({ ...defaults, bind: '[::1]:0', hub_bind: '127.0.0.1:0' }, 4, allFree);
  assert.deepEqual(
    places.map(({ httpBind, hubAddress }) => [httpBind, hubAddress]),
    Array(2).fill(['[::1]:0', '127.0.0.1:0']),
  );
});

test('no port is given twice: hubs and metrics have theirs', async () => {
  const config = { router: 3, bind: '[::1]:8000', hub_bind: '127.0.0.1:8001', metrics_bind: '127.0.0.1:8004' };
  const places = await routerPlaces(config, 4, allFree);
  assert.deepEqual(
    places.map(({ httpBind, hubAddress }) => [httpBind, hubAddress]),
    [
      ['[::1]:8000', '127.0.0.1:8001'],
      ['[::1]:8002', '127.0.0.1:8008'],
      ['[::1]:8003', '127.0.0.1:8009'],
    ],
  );
});

test('too few ports are refused with the option that names them', async () => {
  for (const flag of ['bind', 'hub_bind'] as const)
    await assert.rejects(
      routerPlaces({ ...defaults, router: 3, [flag]: '127.0.0.1:65534' }, 5, allFree),
      (error: unknown) =>
        error instanceof ConfigError && error.message.startsWith(`--${flag.replace('_', '-')} 127.0.0.1:65534: 3 `),
    );
});

test('a port at which somebody listens is passed over', async () => {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const [, second] = await routerPlaces({ ...defaults, bind: `127.0.0.1:${port - 1}` }, 3);
  assert(Number(second?.httpBind.split(':')[1]) > port, second?.httpBind);
  server.close();
});
