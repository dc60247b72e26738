/** Bodies of requests that are refused before anybody reads them, over real sockets. Budget: 20 s. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { CLIENT_KEY, Cluster } from '../support/cluster.ts';
import { until } from '../support/until.ts';

const MIB = 1 << 20;
let cluster: Cluster;

beforeAll(async () => {
  cluster = await Cluster.withKeys('--model', 'harbour', '--decode', '1', '--prefill', '0', '--store', '0');
});
afterAll(() => cluster.close());

/** A connection to the router, and what has come over it. */
interface Connection {
  readonly socket: Socket;
  readonly received: () => string;
  readonly isClosed: () => boolean;
}

async function connected(): Promise<Connection> {
  const socket = connect(Number(new URL(cluster.url).port), '127.0.0.1');
  let [text, isClosed] = ['', false];
  socket.on('data', (chunk: Buffer) => (text += chunk.toString()));
  socket.on('error', () => undefined);
  socket.on('close', () => (isClosed = true));
  await once(socket, 'connect');
  return { socket, received: () => text, isClosed: () => isClosed };
}

/** The head of a request with a body of so many bytes. */
function head(path: string, numBytes: number, ...headers: string[]): string {
  const all = ['Host: x', 'Content-Type: application/json', `Content-Length: ${numBytes}`, ...headers];
  return `POST ${path} HTTP/1.1\r\n${all.join('\r\n')}\r\n\r\n`;
}

/** Sends bytes as fast as they are taken. Returns how many were, at most `numBytes`: fewer when the connection ends. */
async function send({ socket, isClosed }: Connection, numBytes: number): Promise<number> {
  const part = Buffer.alloc(MIB, ' ');
  let numSent = 0;
  while (numSent < numBytes && !isClosed() && socket.writable) {
    numSent += part.length;
    if (!socket.write(part)) await until('it is taken', () => !socket.writableNeedDrain || isClosed());
  }
  return numSent;
}

const PATHS = [
  ['/v1/chat/completions', 401],
  ['/v1/nothing', 404],
  ['/ping', 200],
] as const;

test.for(PATHS)('of a body after the answer, 64 MiB are read and no more: %s', async ([path, status]) => {
  const connection = await connected();
  connection.socket.write(head(path, 512 * MIB));
  await until('it is answered', () => connection.received().includes('\r\n\r\n'));
  expect(connection.received()).toMatch(new RegExp(`^HTTP/1.1 ${status} `));
  // The rest is in the buffers of the connection.
  expect(await send(connection, 512 * MIB)).toBeLessThan(128 * MIB);
  await until('the connection ends', connection.isClosed);
});

test('a connection goes on after a refused body of usual size', async () => {
  const connection = await connected();
  const refused = head('/v1/chat/completions', 8 * MIB);
  for (let i = 1; i <= 10; i++) {
    connection.socket.write(refused);
    await send(connection, 8 * MIB);
    await until('it is answered', () => connection.received().split('HTTP/1.1 401').length === i + 1);
  }
  assert(!connection.isClosed());
  connection.socket.destroy();
});

test('who asks before sending a body is told to only with a key, and for a body that is not too large', async () => {
  const body = JSON.stringify({ model: 'harbour', prompt: 'hello', max_tokens: 1 });
  const expect100 = 'Expect: 100-continue';
  const key = `Authorization: Bearer ${CLIENT_KEY}`;
  const answerTo = async (request: string): Promise<Connection> => {
    const connection = await connected();
    connection.socket.write(request);
    await until('something is answered', () => connection.received().includes('\r\n\r\n'));
    return connection;
  };
  for (const [request, status] of [
    [head('/v1/completions', body.length, expect100), 401],
    [head('/v1/nothing', body.length, expect100), 404],
    [head('/v1/completions', 512 * MIB, expect100, key), 413],
  ] as const) {
    const refused = await answerTo(request);
    expect(refused.received()).toMatch(new RegExp(`^HTTP/1.1 ${status} `));
    await until('the connection ends', refused.isClosed);
  }
  const taken = await answerTo(head('/v1/completions', body.length, expect100, key));
  expect(taken.received()).toBe('HTTP/1.1 100 Continue\r\n\r\n');
  taken.socket.write(body);
  await until('it is answered', () => /HTTP\/1\.1 200 [^]*"choices"/.test(taken.received()));
  taken.socket.destroy();
  const form = await answerTo(
    `POST /dashboard/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 5\r\n${expect100}\r\n\r\n`,
  );
  expect(form.received()).toMatch(/^HTTP\/1.1 100 /);
  form.socket.write('key=a');
  await until('it is answered', () => form.received().includes('HTTP/1.1 401 '));
  form.socket.destroy();
});
