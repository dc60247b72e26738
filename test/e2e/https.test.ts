/**
 * A router that serves HTTPS: the official client streams while the certificate is replaced, clients that close their side are answered, and what is no
 * TLS, or no HTTP, is turned away with what to do. Budget: 40 s.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { renameSync, writeFileSync } from 'node:fs';
import { connect as connectPlain, type Socket } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { connect, type TLSSocket } from 'node:tls';
import OpenAI from 'openai';
import { Agent, fetch as undiciFetch } from 'undici';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { ServerTexts } from '../../shared/net/tls_texts.ts';
import { Authority } from '../support/certificates.ts';
import { harbour, run, runToEnd, temporaryFolder } from '../support/cluster.ts';
import { staysSo, until } from '../support/until.ts';

const authority = new Authority();
const folder = temporaryFolder();
const at = (name: string): string => join(folder.path, name);
const ca = authority.issue('first').ca;
/** A connection for each request, as clients that start anew have. */
const anew = new Agent({ connect: { ca }, pipelining: 0 });

/** Puts files in the place of others at once. */
function replace({ cert, key }: ServerTexts): void {
  for (const [name, held] of [
    ['https.key', key],
    ['https.crt', cert],
  ] as const) {
    writeFileSync(at(`${name}.new`), held);
    renameSync(at(`${name}.new`), at(name));
  }
}

interface Started {
  readonly url: string;
  readonly port: number;
  /** Standard error, and standard output. */
  readonly said: string;
  readonly output: string;
  readonly end: () => Promise<void>;
}
const started: Started[] = [];

/** Starts a process that serves HTTPS: `up` with a decode instance, or a router alone. */
async function start(role: 'up' | 'router', ...args: string[]): Promise<Started> {
  const where = ['--bind', '127.0.0.1:0', '--hub-bind', '127.0.0.1:0', '--model', harbour, '--log-level', 'info'];
  const child = run([role, ...where, '--https-cert', at('https.crt'), '--https-key', at('https.key'), ...args]);
  assert(child.stdout && child.stderr);
  let [output, said] = ['', ''];
  child.stdout.on('data', (chunk: Buffer) => (output += chunk.toString()));
  child.stderr.on('data', (chunk: Buffer) => (said += chunk.toString()));
  const url = await until('it is ready', () => {
    assert.equal(child.exitCode, null, said);
    return /ready.*(https:\/\/127\.0\.0\.1:\d+)/.exec(output)?.[1];
  });
  const own: Started = {
    url,
    port: Number(new URL(url).port),
    get said() {
      return said;
    },
    get output() {
      return output;
    },
    end: async () => {
      if (child.exitCode !== null) return;
      child.kill('SIGTERM');
      await once(child, 'exit');
    },
  };
  started.push(own);
  return own;
}

let router: Started;
beforeAll(async () => {
  replace(authority.issue('first'));
  router = await start('up', '--prefill', '0', '--store', '0', '--data-dir', folder.path);
});
afterAll(async () => {
  for (const one of started) await one.end();
  await anew.close();
  authority.remove();
  folder.remove();
});

/** A connection that has shaken hands; `more`: options of TLS. */
async function open(port = router.port, more: object = {}): Promise<TLSSocket> {
  const socket = connect(Object.assign({ host: '127.0.0.1', port, ca, allowHalfOpen: true }, more));
  await once(socket, 'secureConnect');
  return socket;
}

async function shown(): Promise<string | undefined> {
  const socket = await open();
  const subject = socket.getPeerX509Certificate()?.subject;
  socket.destroy();
  return subject;
}

function requestOf(body: object, more = ''): string {
  const held = JSON.stringify(body);
  return `POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n${more}content-length: ${held.length}\r\n\r\n${held}`;
}

async function numOpen(): Promise<number> {
  const response = await undiciFetch(`${router.url}/api/pool`, { dispatcher: anew });
  const { router: own } = (await response.json()) as { router: { requests: number } };
  return own.requests;
}

test('the official client streams over HTTPS while the certificate is replaced; nothing that runs is cut', async () => {
  const client = new OpenAI({
    baseURL: `${router.url}/v1`,
    apiKey: 'none',
    maxRetries: 0,
    fetch: ((url: string, init: object) => undiciFetch(url, { ...init, dispatcher: anew })) as never,
  });
  let [isOver, numStreams] = [false, 0];
  const streaming = async (seed: number): Promise<void> => {
    for (; !isOver; numStreams++) {
      let tokens = 0;
      const body = { model: 'harbour', prompt: [5, 6, seed + (numStreams % 99)], max_tokens: 60 };
      const more = { ignore_eos: true, stream_options: { include_usage: true } };
      const stream = await client.completions.create({ ...body, ...more, stream: true });
      for await (const { usage } of stream) tokens += usage?.completion_tokens ?? 0;
      assert.equal(tokens, 60, 'a stream is whole');
    }
  };
  const clients = [streaming(100), streaming(300)];
  // One connection from before, over all changes.
  const old = await open();
  const short = { prompt: [7, 8, 9], max_tokens: 4, stream: true };
  old.write(requestOf(short));
  const whole = text(old);
  assert.equal(await shown(), 'CN=first');
  for (const name of ['second', 'third']) {
    const before = numStreams;
    replace(authority.issue(name));
    await until(`a new connection is shown ${name}`, async () => (await shown()) === `CN=${name}`);
    await until('streams go on', () => numStreams > before + 2);
  }
  // A key of another certificate is not used, and the log says so.
  writeFileSync(at('https.key'), authority.issue('other').key);
  await until('the log says why', () => /renewed certificate for clients cannot be used.*key/.test(router.said));
  assert.equal(await shown(), 'CN=third');
  isOver = true;
  await Promise.all(clients);
  old.write(requestOf(short, 'connection: close\r\n'));
  assert.equal((await whole).split('data: [DONE]').length, 3, 'a connection of the first certificate goes on');
  assert.match(router.said, /certificate for clients has been renewed: .*CN=second/);
  assert.doesNotMatch(router.said, /PRIVATE KEY/);
  replace(authority.issue('last'));
  await until('files that fit count again', async () => (await shown()) === 'CN=last');
});

test('a client that closes its side after the request is answered; one that has left frees its request', async () => {
  for (const stream of [false, true]) {
    const socket = await open();
    socket.end(requestOf({ prompt: [5, 6, 7], max_tokens: 40, ignore_eos: true, stream }, 'connection: close\r\n'));
    const answer = await text(socket);
    assert.match(answer, stream ? /data: \[DONE\]\n\n/ : /"completion_tokens":40/);
  }
  for (const stream of [false, true]) {
    const socket = await open();
    socket.write(requestOf({ prompt: [5, 6, 7], max_tokens: 2_000, ignore_eos: true, stream }));
    await until('it runs', async () => (await numOpen()) === 1);
    socket.destroy();
    await until('it has ended', async () => (await numOpen()) === 0);
  }
});

test('plain HTTP is told to use https, HTTP/2 alone and a client that does not trust are turned away, each in few lines of the log', async () => {
  for (let i = 0; i < 20; i++) {
    const response = await fetch(router.url.replace('https:', 'http:'), { method: 'POST', body: 'x'.repeat(100_000) });
    expect(response.status).toBe(400);
    const { error } = (await response.json()) as { error: { message: string } };
    assert.match(error.message, /speaks HTTPS: write https:/);
  }
  const half = connectPlain({ port: router.port, host: '127.0.0.1', allowHalfOpen: true });
  half.end('GET / HTTP/1.0\r\n\r\n');
  assert.match(await text(half), /^HTTP\/1\.1 400 .*https:\/\//s);
  for (const garbage of ['\0', '\x16\x03\x01\x00\x05hello']) {
    const socket = connectPlain({ port: router.port, host: '127.0.0.1' });
    socket.on('error', () => undefined).end(garbage, 'latin1');
    socket.resume();
    await once(socket, 'close');
  }
  await assert.rejects(open(router.port, { ALPNProtocols: ['h2'] }), /no application protocol/);
  const both = await open(router.port, { ALPNProtocols: ['h2', 'http/1.1'] });
  assert.equal(both.alpnProtocol, 'http/1.1');
  both.destroy();
  await assert.rejects(open(router.port, { ca: undefined }), /unable to verify|self-signed|issuer/);
  await until('it is said', () => /TLS handshake failed/.test(router.said));
  const count = (what: RegExp): number => router.said.split('\n').filter((line) => what.test(line)).length;
  assert.deepEqual([count(/plain HTTP on the port/), count(/TLS handshake failed/)], [1, 1]);
  assert.doesNotMatch(router.said, /Exception|Error:/);
});

test('every place that names the URL has https', () => {
  assert.match(router.output, /router started: https:/);
  assert.match(router.output, /OpenAI API https:.*\/v1, dashboard https:.*\/dashboard/);
  assert.match(router.output, /curl https:/);
  assert.match(router.said, /listening .*url=https:/);
});

const closed = async (socket: Socket): Promise<void> => {
  socket.on('error', () => undefined).resume();
  await once(socket, 'close');
};
const plain = (port: number): Socket => connectPlain({ port, host: '127.0.0.1' });

test('who sends nothing, or too slowly, does not stay', async () => {
  // eslint-disable-next-line time/speed -- a limit of the router, which is waited for
  const { port, end } = await start('router', '--body-timeout-ms', '300');
  await closed(plain(port));
  const begun = plain(port);
  begun.write('\x16\x03', 'latin1');
  await closed(begun);
  await closed(await open(port, { allowHalfOpen: false }));
  const slow = await open(port);
  slow.write('POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-le');
  assert.match(await text(slow), /^HTTP\/1\.1 408 .*did not arrive in time/s);
  await end();
});

test('who does not read is ended; connections that are not HTTP yet do not hold up the end of the router', async () => {
  // eslint-disable-next-line time/speed -- a limit of the router, which is waited for
  const { port, end } = await start('router', '--stalled-reader-ms', '1000');
  const stalled = await open(port);
  stalled.on('error', () => undefined).pause();
  // More than the sockets hold: the router has to wait for its reader.
  const request = 'GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n';
  for (let i = 0; i < 2_000; i++) stalled.write(request);
  await until('it is ended', () => {
    if (!stalled.destroyed) stalled.write(request);
    return stalled.destroyed;
  });
  const unfinished = plain(port);
  await once(unfinished, 'connect');
  await Promise.all([end(), closed(unfinished)]);
});

test('files that cannot be used are refused at the start, with what to do', async () => {
  authority.issue('over', undefined, -1);
  const [own, over, other] = ['first', 'over', 'third'].map((name) => authority.file(name));
  const cases: readonly (readonly [args: readonly string[], why: RegExp])[] = [
    [['--https-cert', `${own}.pem`], /--https-cert needs --https-key: set both, or none/],
    [['--https-key', `${own}.key`], /--https-key needs --https-cert/],
    [['--https-cert', `${own}.pem`, '--https-key', `${other}.key`], /key.*both have to be PEM/],
    [['--https-cert', `${own}.key`, '--https-key', `${own}.key`], /no certificate/],
    [['--https-cert', at('nowhere'), '--https-key', `${own}.key`], /--https-cert .*nowhere.*ENOENT/],
    [['--https-cert', `${over}.pem`, '--https-key', `${over}.key`], /CN=over .*has expired: clients would refuse it/],
  ];
  for (const [args, why] of cases) {
    const bind = ['--bind', '127.0.0.1:0', '--hub-bind', '127.0.0.1:0'];
    const { code, errors } = await runToEnd(['router', '--model', harbour, ...bind, ...args]);
    assert.equal(code, 2, errors);
    assert.match(errors, why);
    assert.doesNotMatch(errors, /PRIVATE KEY/);
  }
  await staysSo('the first router serves', async () => (await numOpen()) === 0);
});
