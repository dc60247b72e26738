/** Pages that cannot load what CORS does not keep from them. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { PageGuard } from '../../../services/router/http/page_guard.ts';

const LOOPBACK = '127.0.0.1';
const LISTED = 'https://pool.example,http://Dev.Example:3000,*';

function isRefused(host: string, localAddress: string, url = '/api/pool', headers: object = {}): boolean {
  const guard = new PageGuard(LISTED, new Set());
  return guard.refusal({ url, headers: { host, ...headers }, socket: { localAddress } }) !== undefined;
}

test.each([
  ['evil.example:8000', LOOPBACK, true],
  ['evil.example.', '::1', true],
  ['evil.example', '::ffff:127.0.0.1', true],
  ['127.0.0.1.evil.example', LOOPBACK, true],
  ['evil.localhost.example', LOOPBACK, true],
  ['evil.example:80:80', LOOPBACK, true],
  ['evil.example:8x', LOOPBACK, true],
  ['user:word@evil.example:80', LOOPBACK, true],
  ['[::1]evil.example', LOOPBACK, true],
  ['127.0.0.1:8000', LOOPBACK, false],
  ['[::1]:8000', '::1', false],
  ['localhost:8000', LOOPBACK, false],
  ['LOCALHOST', LOOPBACK, false],
  ['gpu-7', LOOPBACK, false],
  ['router.pool.svc.cluster.local:80', LOOPBACK, false],
  ['pool.example', LOOPBACK, false],
  ['dev.example:8000', LOOPBACK, false],
  ['gpu-7.corp.example', '10.0.0.7', false],
])('of the host %s at %s: %s', (host, address, want) => {
  for (const route of ['/api/pool', '/v1/models', '/v1/chat/completions', '/metrics', '/dashboard', '/', '/nowhere'])
    assert.equal(isRefused(host, address, route), want, route);
});

test.each([
  [{ 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'no-cors', 'sec-fetch-dest': 'image' }, true],
  [{ 'sec-fetch-site': 'same-site', 'sec-fetch-mode': 'cors', origin: 'http://localhost:3000' }, true],
  [{ 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'navigate', 'sec-fetch-dest': 'iframe' }, true],
  [{ 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'navigate', 'sec-fetch-dest': 'document' }, false],
  [{ 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'cors', origin: 'https://pool.example' }, false],
  [{ 'sec-fetch-site': 'same-origin', 'sec-fetch-mode': 'cors' }, false],
  [{ 'sec-fetch-site': 'none', 'sec-fetch-mode': 'navigate' }, false],
  [{}, false],
])('a browser that sends %j is refused: %s', (headers, want) => {
  assert.equal(isRefused('localhost:8000', LOOPBACK, '/api/profile?seconds=60', headers), want);
  assert.equal(isRefused('localhost:8000', LOOPBACK, '/dashboard', headers), false);
});

test('the refusal says what to do', () => {
  const asked = { url: '/api/pool', headers: { host: 'evil.example' }, socket: { localAddress: LOOPBACK } };
  assert.match(new PageGuard('', new Set()).refusal(asked) ?? '', /"evil\.example".*--allowed-origins/);
});
