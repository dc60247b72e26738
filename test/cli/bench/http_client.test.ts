/** The load generator's way to a server, over real sockets of this machine: parts as they come, errors by kind, an end at once. Budget: 2 s. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, test } from 'vitest';
import { openHttpClient, RequestError, sendForJson, type HttpClient } from '../../../services/cli/bench/http_client.ts';

const toClose: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of toClose.splice(0)) await close();
});
const never = new AbortController().signal;
const ignore = (): void => undefined;

async function clientOf(answer: RequestListener, path = ''): Promise<HttpClient> {
  const server = createServer(answer).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const url = new URL(`http://127.0.0.1:${(server.address() as AddressInfo).port}${path}`);
  const client = openHttpClient(url, { apiKey: 'secret', isInsecure: false });
  toClose.push(
    () => client.close(),
    () => {
      server.closeAllConnections();
      server.close();
    },
  );
  return client;
}

const isRequestError = (kind: string, message: RegExp) => (error: unknown) =>
  error instanceof RequestError && error.kind === kind && message.test(error.message);

test('parts of an answer are handed over when they arrive, before the next one is sent', async () => {
  let sendMore = ignore;
  const client = await clientOf((_, response) => {
    response.write('first');
    sendMore = () => response.end('second');
  });
  const parts: string[] = [];
  await client.send(
    { path: '/', body: '{}' },
    (bytes) => {
      parts.push(Buffer.from(bytes).toString());
      // The server has not sent the rest yet: without this part it never would.
      sendMore();
    },
    never,
  );
  assert.deepEqual(parts, ['first', 'second']);
});

test('the path of the base URL, the key and the headers go with a request', async () => {
  const client = await clientOf((request, response) => {
    const { authorization, 'x-request-id': id } = request.headers;
    response.end(JSON.stringify([request.method, request.url, authorization, id]));
  }, '/prefix/');
  const answer = await sendForJson(client, { path: '/v1/models', headers: { 'x-request-id': 'a' } }, never);
  assert.deepEqual(answer, ['GET', '/prefix/v1/models', 'Bearer secret', 'a']);
});

test('errors have a kind, and the words of the server', async () => {
  const refusing = await clientOf((_, response) => {
    response.writeHead(429).end(JSON.stringify({ error: { message: 'too many', code: 429 } }));
  });
  await assert.rejects(
    refusing.send({ path: '/', body: '{}' }, ignore, never),
    isRequestError('HTTP 429', /^too many$/),
  );
  const breaking = await clientOf((_, response) => {
    response.write('a');
    response.socket?.destroySoon();
  });
  await assert.rejects(
    breaking.send({ path: '/', body: '{}' }, ignore, never),
    isRequestError('connection closed by the server', /./),
  );
  const nobody = openHttpClient(new URL('http://127.0.0.1:1'), { apiKey: undefined, isInsecure: false });
  toClose.push(() => nobody.close());
  await assert.rejects(nobody.send({ path: '/' }, ignore, never), isRequestError('connection refused', /ECONNREFUSED/));
});

test('a request that is ended rejects at once, whether it was answered, sent, or not begun', async () => {
  const came: (() => void)[] = [];
  const client = await clientOf(() => {
    came.shift()?.();
  });
  const ended = new AbortController();
  const arrived = new Promise<void>((resolve) => came.push(resolve));
  const sent = client.send({ path: '/', body: '{}' }, ignore, ended.signal);
  await arrived;
  const reason = new Error('interrupted');
  const alsoEnded = client.send({ path: '/', body: '{}' }, ignore, ended.signal);
  ended.abort(reason);
  await assert.rejects(sent, reason);
  await assert.rejects(alsoEnded, reason);
});

test('what a reader of the answer throws is the error, whatever its kind', async () => {
  const client = await clientOf((_, response) => response.end('a'));
  const read = (): void => {
    throw new Error('too long');
  };
  await assert.rejects(client.send({ path: '/', body: '{}' }, read, never), /^Error: too long$/);
});
