/**
 * Commands that ask a router over HTTP, at a server that wants a key for each request and passes what has it on to a cluster: over HTTP, and over HTTPS
 * with a certificate of an authority that nobody knows. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, request as ask, type RequestListener, type Server } from 'node:http';
import { createServer as createSecureServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Authority } from '../support/certificates.ts';
import { Cluster, runToEnd } from '../support/cluster.ts';
import { until } from '../support/until.ts';

const [ADMIN, TENANT] = ['sk-the-key-of-an-admin', 'sk-the-key-of-a-tenant'];
const authority = new Authority();
const servers: Server[] = [];
/** Keys that came, with the path of each. */
const asked: string[] = [];
let cluster: Cluster;
let [plainUrl, secureUrl] = ['', ''];

/** Wants a key, and one of an admin for everything but the API. */
const guard: RequestListener = (request, response) => {
  const { method, url = '', headers } = request;
  const key = headers.authorization ?? '';
  asked.push(`${url} ${key}`);
  const isClient = key === `Bearer ${TENANT}` && url.startsWith('/v1/');
  const status = key === `Bearer ${ADMIN}` || isClient ? 200 : key === `Bearer ${TENANT}` ? 403 : 401;
  if (status !== 200) {
    response.writeHead(status, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ error: { message: status === 401 ? 'no such key' : 'for admins', type: 'x' } }));
    return;
  }
  const { hostname, port } = new URL(cluster.url);
  const passed = ask({ hostname, port, method, path: url, headers }, (answer) => {
    response.writeHead(answer.statusCode ?? 500, answer.headers);
    answer.pipe(response);
  });
  request.pipe(passed);
};

async function listen(server: Server): Promise<string> {
  servers.push(server.listen(0, '127.0.0.1'));
  await once(server, 'listening');
  return `127.0.0.1:${(server.address() as AddressInfo).port}`;
}

beforeAll(async () => {
  cluster = await Cluster.inProcess('--prefill', '0', '--store', '0');
  const { cert, key } = authority.issue('proxy');
  plainUrl = `http://${await listen(createServer(guard))}`;
  secureUrl = `https://${await listen(createSecureServer({ cert, key }, guard))}`;
  for (let i = 0; i < 8; i++) await cluster.completion({ prompt: [5, 6, 7 + i], max_tokens: 8 });
  await until('the hardware is known', async () => (await fetch(`${cluster.url}/api/hardware`)).ok);
});
afterAll(async () => {
  for (const server of servers) server.close().closeAllConnections();
  await cluster.close();
  authority.remove();
});

const TRACE = 'generate:bursts,requests=20';
/** Each command at a URL; doctor checks this machine too, whose findings count for nothing here. */
const commands: Record<string, (url: string) => string[]> = {
  top: (url) => ['top', '--once', '--api', url],
  doctor: (url) => [
    ...['doctor', '--api', url, '--router', cluster.hub, '--data-dir', cluster.dataFolder],
    ...['--bind', '127.0.0.1:0', '--hub-bind', '127.0.0.1:0'],
  ],
  'bench serve': (url) => [
    ...['bench', 'serve', '--base-url', url, '--num-prompts', '2', '--random-input-len', '8'],
    ...['--random-output-len', '2', '--disable-tqdm'],
  ],
  replay: (url) => ['replay', TRACE, '--rate', '1', '--aggregated', '1', '--hardware', url],
  plan: (url) => ['plan', TRACE, '--max-runs', '1', '--hardware', url],
};
const worked: Record<string, RegExp> = {
  top: /^penstock top .*as of/,
  doctor: /ok +router +The router at https?:\/\/127\.0\.0\.1:\d+ answers \/api\/pool/,
  'bench serve': /Successful requests: +2/,
  replay: /priced/,
  plan: /Instances: /,
};

interface Result {
  readonly code: number | null;
  /** Both sides of its output. */
  readonly all: string;
}

async function runAt(args: readonly string[], environment: Record<string, string> = {}): Promise<Result> {
  const { code, output, errors } = await runToEnd(args, environment);
  return { code, all: `${output}${errors}` };
}

test.each(Object.keys(commands))(
  '%s sends the key of its flag or of the variable, and says what to do without one',
  async (name) => {
    const args = commands[name]?.(plainUrl) ?? [];
    const works = worked[name] ?? /never/;
    // Doctor reads its options as top does, and takes seconds.
    const isSlow = name === 'doctor';
    for (const isFlag of isSlow ? [true] : [false, true]) {
      asked.length = 0;
      const own = isFlag ? [...args, '--api-key', ADMIN] : args;
      const { all } = await runAt(own, { PENSTOCK_API_KEY: isFlag ? 'another' : ADMIN });
      assert.match(all, works);
      assert(asked.length > 0 && asked.every((one) => one.endsWith(` Bearer ${ADMIN}`)), asked.join('\n'));
    }
    const cure = /by --api-key or the variable PENSTOCK_API_KEY/;
    const none = await runAt(args);
    assert.match(none.all, cure);
    assert.equal(none.code, 1);
    if (isSlow) return;
    const wrong = await runAt(args, { PENSTOCK_API_KEY: 'sk-wrong' });
    assert.match(wrong.all, cure);
    assert.match(wrong.all, /no such key/);
    assert.doesNotMatch(wrong.all, /sk-wrong/);
    if (name !== 'bench serve') {
      const tenant = await runAt([...args, '--api-key', TENANT]);
      assert.match(tenant.all, /no admin key .*for admins/s);
      assert.match(tenant.all, /`admin: true`/);
      assert.equal(tenant.code, 1);
    }
    assert.equal(wrong.code, 1);
  },
);

test('bench serve measures with the key of a tenant, and knows the variable of OpenAI’s clients', async () => {
  const args = commands['bench serve']?.(plainUrl) ?? [];
  assert.match((await runAt([...args, '--prompt-format', 'text'], { OPENAI_API_KEY: TENANT })).all, /requests: +2/);
  asked.length = 0;
  await runAt(args, { OPENAI_API_KEY: 'sk-of-others', PENSTOCK_API_KEY: ADMIN });
  assert(asked.every((one) => !one.includes('sk-of-others')));
});

test.each(Object.keys(commands))(
  '%s knows a private authority by NODE_EXTRA_CA_CERTS, and says so without',
  async (name) => {
    const args = [...(commands[name]?.(secureUrl) ?? []), '--api-key', ADMIN];
    const { all } = await runAt(args, { NODE_EXTRA_CA_CERTS: join(authority.folder, 'ca.pem') });
    assert.match(all, worked[name] ?? /never/);
    const unknown = await runAt(args);
    assert.match(unknown.all, /certificate cannot be verified \(UNABLE_TO_.*NODE_EXTRA_CA_CERTS/s);
    assert.equal(unknown.code, 1);
  },
);

test('a scheme that is not the server’s is named', async () => {
  const swapped = await runAt(['top', '--once', '--api', plainUrl.replace('http:', 'https:')]);
  assert.match(swapped.all, /nothing can be shown of https:.*: it speaks no TLS; write http:/);
  const path = await runAt(['top', '--once', '--api', `${plainUrl}/v1`]);
  assert.match(path.all, /--api: .* is not allowed: HOST:PORT or a URL without a path/);
});

test('a key that cannot be sent, or has no router, is refused and not shown; other commands let the variable be', async () => {
  const bad = 'sk with blanks';
  for (const [name, make] of Object.entries(commands)) {
    const { code, all } = await runAt([...make(plainUrl), '--api-key', bad]);
    expect([name, code], all).toEqual([name, name === 'replay' || name === 'plan' ? 1 : 2]);
    assert.match(all, /printable ASCII without spaces/);
    assert(!all.includes(bad));
  }
  for (const command of ['replay', 'plan']) {
    const { code, all } = await runAt([command, TRACE, '--api-key', ADMIN]);
    assert.deepEqual([code, all.includes('--api-key is for the router of --hardware URL')], [2, true]);
  }
  for (const args of [['config'], ['devices', '--json'], ['policy', '--router', cluster.hub]]) {
    const { all } = await runAt(args, { PENSTOCK_API_KEY: ADMIN });
    assert.doesNotMatch(all, /unknown variable|PENSTOCK_API_KEY|sk-the-key/);
  }
});
