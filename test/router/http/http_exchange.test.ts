/** The bytes of an answer on its connection, as Node's own client and a socket read them, and a reader that stops. Real HTTP. Budget: 10 s. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, request as requestOf, type IncomingMessage } from 'node:http';
import { connect, type AddressInfo, type Socket } from 'node:net';
import { afterEach, test } from 'vitest';
import { systemClock } from '../../../shared/base/clock.ts';
import { noBody } from '../../../services/router/api/bodies.ts';
import type { Sink } from '../../../services/router/api/exchange.ts';
import { withClient } from '../../../services/router/http/http_exchange.ts';
import { turn, until } from '../../support/until.ts';

const closers: (() => void)[] = [];
afterEach(() => {
  for (const close of closers.splice(0)) close();
});

/** A server whose answers `serve` writes, by the path of the request; their errors go to `errors`. Returns its port. */
async function served(serve: (sink: Sink, path: string) => Promise<void>, errors: unknown[] = []): Promise<number> {
  const serving = { clock: systemClock, answering: () => undefined, onBegin: undefined };
  const server = createServer((request, response) => {
    response.on('error', (error) => errors.push(error));
    void withClient(request, response, noBody, serving, ({ sink }) => serve(sink, request.url ?? ''));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  closers.push(() => {
    server.close();
    server.closeAllConnections();
  });
  return (server.address() as AddressInfo).port;
}

const headers = { 'content-type': 'text/event-stream' };
const parts = ['a', ' Kai', ' \u{1f6a2}', ' Übersee'.repeat(100), '\n\n'];

/** Writes the parts one after the other, some of them in one turn, and an end. */
async function writeParts(sink: Sink): Promise<void> {
  sink.begin(200, headers);
  for (const [i, part] of parts.entries()) {
    sink.write(part);
    if (i % 2 === 1) await turn();
  }
  sink.end('end');
}

/** Sends a request as text, and returns all that comes on its connection until `isOver`. */
async function conversation(port: number, request: string, isOver: (text: string) => boolean): Promise<string> {
  const socket = connect(port, '127.0.0.1');
  closers.push(() => socket.destroy());
  let text = '';
  socket.setEncoding('utf8').on('data', (more: string) => (text += more));
  socket.write(request);
  await until('all has come', () => isOver(text));
  return text;
}

/** Returns the texts of the chunks of a body, each of as many bytes as its length says, up to the empty one that ends it. */
function chunksOf(body: string): string[] {
  const bytes = Buffer.from(body);
  const chunks: string[] = [];
  for (let at = 0; at < bytes.length;) {
    const start = bytes.indexOf('\r\n', at) + 2;
    const end = start + Number.parseInt(bytes.toString('latin1', at, start), 16);
    assert.equal(bytes.toString('latin1', end, end + 2), '\r\n');
    chunks.push(bytes.toString('utf8', start, end));
    at = end + 2;
  }
  assert.equal(chunks.pop(), '');
  return chunks;
}

test('parts are chunks of all their bytes, whatever their characters are', async () => {
  const port = await served(writeParts);
  const text = await conversation(port, 'GET / HTTP/1.1\r\nhost: x\r\n\r\n', (all) => all.endsWith('0\r\n\r\n'));
  const chunks = chunksOf(text.slice(text.indexOf('\r\n\r\n') + 4));
  assert.equal(chunks.join(''), [...parts, 'end'].join(''));
  // Node may join those of one turn.
  assert(chunks.length >= 1 + parts.length / 2);
});

test('a text without bytes, and one after the end, change nothing', async () => {
  const errors: unknown[] = [];
  const port = await served(async (sink) => {
    sink.begin(200, headers);
    for (const part of ['a', '', 'b', '']) {
      sink.write(part);
      await turn();
    }
    sink.end('end');
    sink.write('late');
    await turn();
    sink.write('later');
  }, errors);
  const text = await conversation(port, 'GET / HTTP/1.1\r\nhost: x\r\n\r\n', (all) => all.endsWith('0\r\n\r\n'));
  assert.deepEqual(chunksOf(text.slice(text.indexOf('\r\n\r\n') + 4)), ['a', 'b', 'end']);
  assert.deepEqual(errors, []);
});

test('to HTTP/1.0 the parts go as they are', async () => {
  const port = await served(writeParts);
  const text = await conversation(port, 'GET / HTTP/1.0\r\n\r\n', (all) => all.endsWith('end'));
  assert.equal(text.slice(text.indexOf('\r\n\r\n') + 4), parts.join('') + 'end');
});

test('answers of one connection stay in order, also where the second is written first', async () => {
  let release: () => void = () => undefined;
  const held = new Promise<void>((resolve) => (release = resolve));
  const port = await served(async (sink, path) => {
    sink.begin(200, headers);
    sink.write(`${path} begins`);
    if (path === '/1') await held;
    for (let i = 0; i < 3; i++) {
      sink.write(` ${path}:${i}`);
      await turn();
    }
    if (path === '/2') release();
    sink.end(' ends');
  });
  const asked = ['/1', '/2', '/3'].map((path) => `GET ${path} HTTP/1.1\r\nhost: x\r\n\r\n`).join('');
  const text = await conversation(port, asked, (all) => all.split('\r\n0\r\n\r\n').length === 4);
  const bodies = text
    .split('\r\n0\r\n\r\n')
    .slice(0, 3)
    .map((one) => one.slice(one.indexOf('\r\n\r\n') + 4).replace(/(^|\r\n)[0-9a-f]+\r\n/g, ''));
  assert.deepEqual(
    bodies,
    ['/1', '/2', '/3'].map((path) => `${path} begins ${path}:0 ${path}:1 ${path}:2 ends`),
  );
});

test('a reader that stops is behind until it reads again, and loses nothing', async () => {
  const part = 'x'.repeat(10_000);
  let numParts = 0;
  let isStopped = false;
  const port = await served(async (sink) => {
    sink.begin(200, headers);
    while (!sink.isBehind) {
      sink.write(part);
      numParts++;
      await turn();
    }
    isStopped = true;
    await sink.drained(new AbortController().signal);
    assert(!sink.isBehind);
    sink.write('more');
    sink.end('');
  });
  const asking = requestOf({ port, host: '127.0.0.1' });
  asking.end();
  const [answer] = (await once(asking, 'response')) as [IncomingMessage & { socket: Socket }];
  answer.socket.pause();
  await until('it is behind', () => isStopped);
  answer.socket.resume();
  let length = 0;
  for await (const chunk of answer) length += (chunk as Buffer).length;
  assert.equal(length, numParts * part.length + 'more'.length);
});

test('who waits for a reader that is behind goes on when the request ends, or the reader goes', async () => {
  const left = new AbortController();
  const seen: string[] = [];
  const port = await served(async (sink, path) => {
    sink.begin(200, headers);
    while (!sink.isBehind) {
      sink.write('x'.repeat(10_000));
      await turn();
    }
    seen.push(`${path} waits`);
    await sink.drained(left.signal);
    seen.push(`${path} goes on`);
    sink.destroy();
  });
  const sockets = ['/1', '/2'].map((path) => {
    const socket = connect(port, '127.0.0.1');
    socket.pause().write(`GET ${path} HTTP/1.1\r\nhost: x\r\n\r\n`);
    return socket;
  });
  await until('both wait', () => seen.length === 2);
  sockets[0]?.destroy();
  await until('the first goes on', () => seen.includes('/1 goes on'));
  assert(!seen.includes('/2 goes on'));
  left.abort();
  await until('the second goes on', () => seen.includes('/2 goes on'));
  sockets[1]?.destroy();
});
