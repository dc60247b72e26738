/** Pages that may use the API, and the replies to a browser's preflight requests. Budget: 1 s. */
import assert from 'node:assert/strict';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { test } from 'vitest';
import { Cors } from '../../../services/router/http/cors.ts';

const clientPaths = new Set(['/v1/models', '/api/chat']);

function request(url: string, headers: Readonly<Record<string, string>>, method = 'POST'): IncomingMessage {
  return { url, method, headers } as unknown as IncomingMessage;
}

function headersFor(cors: Cors, of: IncomingMessage): Record<string, string> {
  const headers: Record<string, string> = {};
  const response = { setHeader: (name: string, value: string) => (headers[name] = value) };
  cors.allow(of, response as unknown as ServerResponse);
  return headers;
}

const PAGE = 'http://localhost:3000';
const originFor = (origins: string, url: string, origin = PAGE): string | undefined =>
  headersFor(new Cors(origins, clientPaths), request(url, { origin }))['access-control-allow-origin'];

test.each([
  ['', '/v1/models', undefined],
  [PAGE, '/v1/models', PAGE],
  [PAGE, '/api/pool', PAGE],
  [`https://app.example,${PAGE}`, '/health', PAGE],
  ['https://app.example', '/v1/models', undefined],
  ['*', '/v1/models', '*'],
  ['*', '/api/pool', undefined],
  ['*', '/api/requests?limit=3', undefined],
  ['*', '/apis', '*'],
  ['*', '/%61pi/pool', undefined],
  ['*', 'http://elsewhere/api/pool', undefined],
  ['*', '/v1/models?next=/api/pool', '*'],
  ['*', '/%', undefined],
  [`*,${PAGE}`, '/api/pool', PAGE],
])('of %j a page asks for %s: %s', (origins, url, want) => {
  assert.equal(originFor(origins, url), want);
});

test('an answer says what a page may read of it, and that it depends on the page', () => {
  const headers = headersFor(new Cors(PAGE, clientPaths), request('/v1/models', { origin: PAGE }));
  assert.match(headers['access-control-expose-headers'] ?? '', /x-penstock-request/);
  assert.equal(headers['vary'], 'origin');
  assert.equal(headers['access-control-allow-credentials'], 'true');
  const ofAll = headersFor(new Cors('*', clientPaths), request('/v1/models', { origin: PAGE }));
  assert.equal(ofAll['access-control-allow-credentials'], undefined, 'cookies only for pages that are listed');
  assert.deepEqual(headersFor(new Cors('', clientPaths), request('/v1/models', { origin: PAGE })), {});
});

test('a browser that asks first is told the headers that clients of OpenAI and Anthropic send', () => {
  const asks = (headers: string): Record<string, string> | undefined =>
    new Cors(PAGE, clientPaths).preflight(
      request(
        '/v1/chat/completions',
        { origin: PAGE, 'access-control-request-method': 'POST', 'access-control-request-headers': headers },
        'OPTIONS',
      ),
    );
  const wanted = 'authorization, content-type, x-api-key, anthropic-version, x-stainless-os';
  assert.equal(asks(wanted)?.['access-control-allow-headers'], wanted);
  assert.equal(asks('content-type, x-other')?.['access-control-allow-headers'], 'content-type');
});

test('a page that may not use it, and a request that is no such question, get no such answer', () => {
  const question = { origin: 'https://evil.example', 'access-control-request-method': 'POST' };
  assert.equal(new Cors(PAGE, clientPaths).preflight(request('/v1/models', question, 'OPTIONS')), undefined);
  assert.equal(new Cors(PAGE, clientPaths).preflight(request('/v1/models', { origin: PAGE }, 'OPTIONS')), undefined);
  const inside = { origin: PAGE, 'access-control-request-method': 'GET' };
  assert.equal(new Cors('*', clientPaths).preflight(request('/api/pool', inside, 'OPTIONS')), undefined);
});

test('a path of the API below /api is open to all pages where all may use the API; what only looks like it is not', () => {
  for (const url of ['/api/chat', '/api/chat?x', '/%61pi/chat']) assert.equal(originFor('*', url), '*', url);
  for (const url of ['/api/chat/', '/API/chat', '//api/chat', '/api/chats', '/api', '/api/%2e%2e/pool'])
    assert.equal(originFor('*', url), undefined, url);
});
