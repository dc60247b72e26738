/** Fetches of a hub go through the proxies that the environment names, or through none. Budget: 3 s. */
import assert from 'node:assert/strict';
import { createServer, type IncomingMessage, type Server } from 'node:http';
import { connect, type AddressInfo, type Socket } from 'node:net';
import { afterEach, beforeEach, test } from 'vitest';
import { proxiedFetch } from '../../services/cli/proxied_fetch.ts';

let hub: Server;
let proxy: Server;
/** Hosts that the proxy was asked for. */
let asked: string[];

const portOf = (server: Server): number => (server.address() as AddressInfo).port;
const listening = (server: Server): Promise<void> =>
  new Promise((resolve) => {
    server.listen(0, '127.0.0.1', resolve);
  });

beforeEach(async () => {
  asked = [];
  hub = createServer((_request, response) => response.end('the model'));
  proxy = createServer();
  proxy.on('connect', (request: IncomingMessage, socket: Socket) => {
    asked.push(request.url ?? '');
    const there = connect(portOf(hub), '127.0.0.1', () => {
      socket.write('HTTP/1.1 200 OK\r\n\r\n');
      there.pipe(socket).pipe(there);
    });
  });
  await Promise.all([listening(hub), listening(proxy)]);
});
afterEach(() => {
  for (const server of [hub, proxy]) {
    server.closeAllConnections();
    server.close();
  }
});

const textBy = async (environment: Readonly<Record<string, string>>, host: string): Promise<string> => {
  const fetch = proxiedFetch(environment);
  return (await fetch(`http://${host}/file`)).text();
};

test.each(['http_proxy', 'HTTP_PROXY', 'all_proxy'])('%s is asked for a host that only it knows', async (name) => {
  const text = await textBy({ [name]: `http://127.0.0.1:${portOf(proxy)}` }, 'hub.example');
  assert.deepEqual([text, asked], ['the model', ['hub.example:80']]);
});

test.each(['', 'HTTP://'])('a proxy may be named with the scheme %j', async (scheme) => {
  assert.equal(await textBy({ http_proxy: `${scheme}127.0.0.1:${portOf(proxy)}` }, 'hub.example'), 'the model');
  assert.deepEqual(asked, ['hub.example:80']);
});

test('what no_proxy names is asked directly', async () => {
  const here = `127.0.0.1:${portOf(hub)}`;
  assert.equal(
    await textBy({ http_proxy: `http://127.0.0.1:${portOf(proxy)}`, no_proxy: '127.0.0.1' }, here),
    'the model',
  );
  assert.deepEqual(asked, []);
});

test('without a proxy it is Node’s own, and what is no proxy is refused in words', async () => {
  assert.equal(proxiedFetch({ http_proxy: '', NO_PROXY: 'x' }), globalThis.fetch);
  const socks = proxiedFetch({ https_proxy: 'socks5://127.0.0.1:1' });
  await assert.rejects(socks('https://hub.example/file'), /the proxy socks5:.* http:\/\/HOST:PORT/);
  // A host that is reached without the proxy does not depend on it.
  assert.equal(await textBy({ https_proxy: 'socks5://127.0.0.1:1' }, `127.0.0.1:${portOf(hub)}`), 'the model');
});
