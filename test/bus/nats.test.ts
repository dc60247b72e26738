/** The bus on real nats-servers: the conformance suite, restarts, a cluster of three, slow readers, who may come in. Budget: 60 s. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { nkeys } from 'nats';
import { afterEach, describe, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { silentLog } from '../../shared/base/log.ts';
import { NatsBus } from '../../shared/bus/nats/nats_bus.ts';
import type { ServersSource } from '../../shared/bus/nats/nats_addresses.ts';
import { connectionOptions, type NatsServers } from '../../shared/bus/nats/nats_options.ts';
import { options } from '../../services/router/options.ts';
import { Authority } from '../support/certificates.ts';
import { freePort, freePorts } from '../support/free_ports.ts';
import { NatsServer } from '../support/nats_server.ts';
import { projectPath } from '../support/project.ts';
import { PATIENCE_MS, staysSo, turn, until } from '../support/until.ts';
import { busConformance } from './conformance.ts';

/** The library gives them no types. */
interface Pair {
  getPublicKey(): string;
  getSeed(): Uint8Array;
  sign(bytes: Uint8Array): Uint8Array;
}
const { createOperator, createAccount, createUser } = nkeys as Record<
  'createOperator' | 'createAccount' | 'createUser',
  () => Pair
>;

interface Client {
  readonly bus: NatsBus;
  readonly events: string[];
}

const opened: NatsBus[] = [];
const servers: NatsServer[] = [];

function open(urls: readonly string[], more: Partial<NatsServers> = {}): Client {
  return openFrom({ urls, ...more });
}

function openFrom(source: ServersSource): Client {
  const events: string[] = [];
  const bus = new NatsBus(
    { servers: source, name: 'test', clock: systemClock, log: silentLog },
    {
      onConnected: () => events.push('connected'),
      onDisconnected: () => events.push('disconnected'),
      onRefused: (failure) => events.push(`refused: ${failure.code}`),
    },
  );
  opened.push(bus);
  return { bus, events };
}

async function start(config = '', port?: number): Promise<NatsServer> {
  const server = await NatsServer.start(config, port);
  servers.push(server);
  return server;
}

afterEach(async () => {
  for (const bus of opened.splice(0)) bus.close();
  for (const server of servers.splice(0)) await server.close();
});

const isConnected = ({ bus }: Client): boolean => bus.isConnected;
const text = (value: string): Buffer => Buffer.from(value);

/** Whether what one says reaches the other. */
async function reaches(from: NatsBus, to: NatsBus): Promise<void> {
  let isHeard = false;
  const stop = to.subscribe('probe', () => (isHeard = true));
  await until('one hears the other', () => {
    from.publish('probe', text('x'));
    return isHeard;
  });
  stop();
}

busConformance({
  name: 'NATS',
  open: async (numEnds) => {
    const server = await NatsServer.start();
    const clients = Array.from({ length: numEnds }, () => open([server.url]));
    await until('all are connected', () => clients.every(isConnected));
    return {
      ends: clients.map(({ bus }) => bus),
      close: async () => {
        for (const { bus } of clients) bus.close();
        await server.close();
      },
    };
  },
});

test('a server that comes back has its clients again, subscriptions and servers in place; meanwhile they are told', async () => {
  const port = await freePort();
  // Before there is a server: it is waited for.
  const [a, b] = [open([`nats://127.0.0.1:${port}`]), open([`nats://127.0.0.1:${port}`])];
  b.bus.serve('double', (payload) => text(`${payload.toString()}${payload.toString()}`));
  const server = await start('', port);
  await until('both are connected', () => isConnected(a) && isConnected(b));
  assert.equal((await a.bus.request('double', text('ab'), PATIENCE_MS)).toString(), 'abab');
  await server.kill();
  await until('both have noticed', () => !isConnected(a) && !isConnected(b));
  a.bus.publish('news', text('nobody hears'));
  await assert.rejects(a.bus.request('double', text('x'), PATIENCE_MS), /no connection to nats:/);
  await server.restart();
  await until('both are back', () => isConnected(a) && isConnected(b));
  await reaches(a.bus, b.bus);
  assert.equal((await a.bus.request('double', text('cd'), PATIENCE_MS)).toString(), 'cdcd');
  assert.deepEqual(a.events, ['connected', 'disconnected', 'connected']);
});

test('a server that falls silent is noticed before its silence makes anybody lost; what is said to it is bounded (P1)', async () => {
  const server = await start();
  const [a, b] = [open([server.url]), open([server.url])];
  await until('both are connected', () => isConnected(a) && isConnected(b));
  server.signal('SIGSTOP');
  const page = Buffer.alloc(512 << 10);
  // eslint-disable-next-line time/speed -- bytes of this thread, bounded by what the bus keeps and not by speed
  const { arrayBuffers: before } = process.memoryUsage();
  const { pingInterval = Infinity, maxPingOut = Infinity } = connectionOptions({ urls: [server.url] }, '');
  assert(pingInterval * (maxPingOut + 1) < options.silence_ms.default, 'it notices before members are lost');
  await until('it has noticed', () => {
    for (let i = 0; i < 16; i++) a.bus.publish('news', page);
    return !isConnected(a);
  });
  // eslint-disable-next-line time/speed -- as above
  assert(process.memoryUsage().arrayBuffers - before < 256 << 20);
  server.signal('SIGCONT');
  await until('both are back', () => isConnected(a) && isConnected(b));
  await reaches(a.bus, b.bus);
  // Messages in flight before the break no longer count towards the bound: more than the bound arrives, each message once.
  let [numPages, numHeard] = [0, 0];
  b.bus.subscribe('pages', () => numPages++);
  b.bus.subscribe('once', () => numHeard++);
  await reaches(a.bus, b.bus);
  for (let i = 0; i < 80; i++) {
    a.bus.publish('pages', page);
    // Never so many under way that the bound is reached.
    await until('most of them have come', () => numPages > i - 8);
  }
  a.bus.publish('once', text('x'));
  await until('it is heard', () => numHeard > 0);
  await staysSo('each came once', () => numPages === 80 && numHeard === 1);
});

test('a request under way fails when its connection does', async () => {
  const server = await start();
  const [a, b] = [open([server.url]), open([server.url])];
  await until('both are connected', () => isConnected(a) && isConnected(b));
  let isAsked = false;
  b.bus.serve('never', () => {
    isAsked = true;
    return new Promise<Buffer>(() => undefined);
  });
  await reaches(a.bus, b.bus);
  // Later than the test's own limit: only the lost connection may end it.
  const asked = assert.rejects(a.bus.request('never', text('x'), 10 * PATIENCE_MS), { code: 'instance_lost' });
  await until('it is asked', () => isAsked);
  await server.kill();
  await asked;
});

/** Starts three servers that are a cluster. */
async function startThree(): Promise<NatsServer[]> {
  const free = await freePorts(6);
  const [ports, routes] = [free.slice(0, 3), free.slice(3)];
  const others = routes.map((port) => `"nats://127.0.0.1:${port}"`).join(', ');
  return Promise.all(
    ports.map((port, i) =>
      start(`cluster { name: c, listen: "127.0.0.1:${routes[i]}", routes: [${others}] }\nserver_name: s${i}`, port),
    ),
  );
}

test('of three servers one is killed: its clients go to the others, and all hear each other', async () => {
  const three = await startThree();
  const urls = three.map(({ url }) => url);
  // Each prefers another server: the first that it is told.
  const clients = urls.map((_, i) => open([...urls.slice(i), ...urls.slice(0, i)]));
  await until('all are connected', () => clients.every(isConnected));
  for (const from of clients) for (const to of clients) await reaches(from.bus, to.bus);
  await three[1]?.kill();
  await until('all are connected again', () => clients.every(isConnected));
  for (const from of clients) for (const to of clients) await reaches(from.bus, to.bus);
});

test('clients that were told one server of a cluster learn the others from it, also those that come later', async () => {
  const three = await startThree();
  const [first, ...others] = three;
  assert(first);
  const clients = [open([first.url]), open([first.url])] as const;
  await until('both are connected', () => clients.every(isConnected));
  // Each server says so when another one is connected to it.
  await until('the cluster is whole', () => three.every(({ said }) => said.includes('Route connection created')));
  await reaches(clients[0].bus, clients[1].bus);
  await first.kill();
  await until('both are connected by another one', () => clients.every(({ events }) => events.length === 3));
  await reaches(clients[0].bus, clients[1].bus);
  assert.deepEqual(clients[0].events, ['connected', 'disconnected', 'connected']);
  await others[0]?.kill();
  await until('both are connected again', () => clients.every(isConnected));
  await reaches(clients[1].bus, clients[0].bus);
});

test('a client that was let in goes on while its server refuses it, and takes new secrets from where they are kept', async () => {
  const server = await start('authorization { user: ada, password: one }');
  let password = 'one';
  const client = openFrom(() => ({ urls: [server.url], user: 'ada', password }));
  await until('it is connected', () => isConnected(client));
  await server.kill();
  const renewed = await start('authorization { user: ada, password: two }', server.port);
  await until('it is refused', () => renewed.said.includes('authentication error'));
  assert.deepEqual(client.events, ['connected', 'disconnected']);
  password = 'two';
  await until('it is connected again', () => isConnected(client));
  assert.deepEqual(client.events, ['connected', 'disconnected', 'connected']);
});

test('a subscriber that does not read is cut off by the server, comes back, and holds nobody up', async () => {
  const server = await start('max_pending: 1048576\nwrite_deadline: "1s"');
  const script = `
    import { NatsBus } from ${JSON.stringify(projectPath('dist/shared/bus/nats/nats_bus.js'))};
    const log = { debug() {}, info() {}, warn() {}, error() {} };
    const clock = { nowMs: () => performance.now(), sleep: (ms) => new Promise((done) => setTimeout(done, ms)) };
    const options = { servers: { urls: [${JSON.stringify(server.url)}] }, name: 'slow', clock, log };
    const say = (line) => process.stdout.write(line + '\\n');
    const bus = new NatsBus(options, { onConnected: () => say('connected'), onDisconnected: () => say('disconnected'), onRefused: say });
    bus.subscribe('news', (payload) => { if (payload.length < 9) say(payload.toString()); });`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let said = '';
  child.stdout.on('data', (chunk: Buffer) => (said += chunk.toString()));
  const [a, witness] = [open([server.url]), open([server.url])];
  let numHeard = 0;
  witness.bus.subscribe('news', () => numHeard++);
  await until('all hear', () => {
    if (isConnected(a)) a.bus.publish('news', text('one'));
    return said.includes('one') && numHeard > 0;
  });
  child.kill('SIGSTOP');
  const page = Buffer.alloc(512 << 10);
  for (let i = 0; i < 100; i++) {
    a.bus.publish('news', page);
    await turn();
  }
  const before = numHeard;
  await until('who reads still hears', () => {
    a.bus.publish('news', text('two'));
    return numHeard > before;
  });
  await until('the server cuts it off', () => server.said.includes('Slow Consumer'));
  child.kill('SIGCONT');
  await until('it is back', () => /disconnected\n(.*\n)*connected/.test(said));
  await until('it hears', () => {
    a.bus.publish('news', text('three'));
    return said.includes('three');
  });
  child.kill('SIGKILL');
  await once(child, 'exit');
});

test('a message that the server would not take harms nobody', async () => {
  const server = await start('max_payload: 65536');
  const [a, b] = [open([server.url]), open([server.url])];
  await until('both are connected', () => isConnected(a) && isConnected(b));
  a.bus.publish('news', Buffer.alloc(100_000));
  await reaches(a.bus, b.bus);
  assert.deepEqual(a.events, ['connected']);
});

describe('who may come in', () => {
  const refused = ['refused: unauthenticated'];

  async function isLetIn(server: NatsServer, more: Partial<NatsServers>, url = server.url): Promise<void> {
    const client = open([url], more);
    await until('it is connected', () => isConnected(client));
    await reaches(client.bus, client.bus);
  }

  async function isRefused(server: NatsServer, more: Partial<NatsServers>): Promise<void> {
    const client = open([server.url], more);
    await until('it is refused', () => client.events.length > 0);
    await staysSo('it is refused once, and tries no more', () => client.events.length === 1);
    assert.deepEqual(client.events, refused);
  }

  test('user and password, given or in the address', async () => {
    const server = await start('authorization { user: ada, password: "l0v:lace" }');
    await isLetIn(server, { user: 'ada', password: 'l0v:lace' });
    await isLetIn(server, {}, server.url.replace('//', '//ada:l0v%3Alace@'));
    await isRefused(server, { user: 'ada', password: 'wrong' });
    await isRefused(server, {});
    assert(!open([server.url.replace('//', '//ada:secret@')]).bus.name.includes('secret'));
  });

  test('a token for all, given or in the address', async () => {
    const server = await start('authorization { token: "a-token" }');
    await isLetIn(server, { token: 'a-token' });
    await isLetIn(server, {}, server.url.replace('//', '//a-token@'));
    await isRefused(server, { token: 'wrong' });
    assert(!open([server.url.replace('//', '//a-token@')]).bus.name.includes('a-token'));
  });

  test('a certificate counts for the address that is connected to', async () => {
    const authority = new Authority();
    const { ca } = authority.issue('host', 'DNS:localhost');
    const [cert, key] = [authority.file('host.pem'), authority.file('host.key')];
    const server = await start(`tls { cert_file: "${cert}", key_file: "${key}" }`);
    const byAddress = open([server.url.replace('nats:', 'tls:')], { ca });
    await until('it has tried', () => /TLS handshake error|bad certificate/.test(server.said));
    await staysSo('its certificate names localhost alone', () => !isConnected(byAddress));
    await isLetIn(server, { ca }, server.url.replace('nats://127.0.0.1', 'tls://localhost'));
    authority.remove();
  });

  test('nkeys', async () => {
    const [own, other] = [createUser(), createUser()];
    const seedOf = (pair: Pair): string => Buffer.from(pair.getSeed()).toString();
    const server = await start(`authorization { users: [{ nkey: ${own.getPublicKey()} }] }`);
    await isLetIn(server, { nkeySeed: `${seedOf(own)}\n` });
    await isRefused(server, { nkeySeed: seedOf(other) });
  });

  test('credentials files', async () => {
    const [operator, account, user, foreign] = [createOperator(), createAccount(), createUser(), createAccount()];
    const unlimited = { subs: -1, data: -1, payload: -1 };
    const limits: Record<string, object> = {
      operator: {},
      account: { limits: { ...unlimited, imports: -1, exports: -1, wildcards: true, conn: -1, leaf: -1 } },
      user: { ...unlimited, pub: {}, sub: {} },
    };
    const base64 = (value: object | Uint8Array): string =>
      Buffer.from(value instanceof Uint8Array ? value : JSON.stringify(value)).toString('base64url');
    const signed = (subject: Pair, issuer: Pair, type: string): string => {
      const claims = {
        jti: 'x',
        iat: 1_700_000_000,
        iss: issuer.getPublicKey(),
        sub: subject.getPublicKey(),
        name: type,
        nats: { type, version: 2, ...limits[type] },
      };
      const body = `${base64({ typ: 'JWT', alg: 'ed25519-nkey' })}.${base64(claims)}`;
      return `${body}.${base64(issuer.sign(Buffer.from(body)))}`;
    };
    const credentialsOf = (issuer: Pair): string =>
      `-----BEGIN NATS USER JWT-----\n${signed(user, issuer, 'user')}\n------END NATS USER JWT------\n\n` +
      `-----BEGIN USER NKEY SEED-----\n${Buffer.from(user.getSeed()).toString()}\n------END USER NKEY SEED------\n`;
    const server = await start(
      `operator: ${signed(operator, operator, 'operator')}\nresolver: MEMORY\n` +
        `resolver_preload: { ${account.getPublicKey()}: ${signed(account, operator, 'account')} }`,
    );
    await isLetIn(server, { credentials: credentialsOf(account) });
    await isRefused(server, { credentials: credentialsOf(foreign) });
  });

  test('TLS, with certificates of both sides', async () => {
    const authority = new Authority();
    const file = authority.file.bind(authority);
    authority.issue('server');
    const own = authority.issue('client');
    const server = await start(
      `tls { cert_file: "${file('server.pem')}", key_file: "${file('server.key')}", ca_file: "${file('ca.pem')}", verify: true }`,
    );
    const tls = server.url.replace('nats:', 'tls:');
    await isLetIn(server, own, tls);
    const unknown = open([tls], { ca: own.ca });
    const untrusting = open([tls], { cert: own.cert, key: own.key });
    await until('the server has refused both', () => (server.said.match(/TLS handshake error/g) ?? []).length > 1);
    await staysSo('without a certificate', () => !isConnected(unknown));
    await staysSo('whose authority is not trusted', () => !isConnected(untrusting));
    authority.remove();
  });
});
