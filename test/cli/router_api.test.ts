/** Requests of commands to a router: names of its API, and what to do about answers and connections that are none. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { readCommandLine } from '../../shared/base/options.ts';
import { certificateTroubleOf, connectionTroubleOf, refusalOf, troubleText } from '../../services/cli/router_api.ts';
import { topOptions } from '../../services/cli/top/top_options.ts';

const apiOf = (given: string): string =>
  readCommandLine(topOptions, { command: 'top', tables: { top: topOptions } }, ['--api', given], {}).config.api;

test('an API is named by an address or a URL, and known by its origin', () => {
  assert.deepEqual(
    [
      '127.0.0.1:80',
      'router:8000',
      '[::1]:8000',
      'http://router',
      'HTTPS://Router.example:443/',
      'https://[::1]:8443',
    ].map(apiOf),
    [
      ...['http://127.0.0.1', 'http://router:8000', 'http://[::1]:8000', 'http://router'],
      ...['https://router.example', 'https://[::1]:8443'],
    ],
  );
  for (const wrong of [
    'router',
    'router:',
    '',
    'ftp://router:1',
    'https://router/v1',
    'https://a:b@router',
    'a b:1',
    'r:99999',
  ])
    assert.throws(() => apiOf(wrong), /--api: .* is not allowed: HOST:PORT or a URL without a path/, wrong);
});

test('answers that refuse say what to do, with the words of the router', () => {
  const body = JSON.stringify({ error: { message: 'no such key' } });
  const said = (status: number, hasKey: boolean, text = body): string => {
    const trouble = refusalOf(status, text, hasKey);
    return trouble ? troubleText(trouble) : '';
  };
  assert.match(said(401, false), /^it wants a key \(HTTP status 401, no such key\); give a key .*PENSTOCK_API_KEY$/);
  assert.match(said(401, true), /^it does not take this key/);
  assert.match(said(403, true), /^the key is no admin key .*no such key.*`admin: true`$/);
  assert.equal(said(403, false, '{"message":"the Host header"}'), 'it refuses this (HTTP status 403, the Host header)');
  assert.match(said(401, false, '<html>'), /^it wants a key \(HTTP status 401\);/);
  assert.match(said(400, false, '{"error":{"message":"this port speaks HTTPS"}}'), /write https:/);
  assert.deepEqual([said(400, false), said(404, true), said(503, true)], ['', '', '']);
  assert(said(401, true, JSON.stringify({ error: { message: 'x'.repeat(10_000) } })).length < 1_000);
});

test('connections that come to nothing say what to do about TLS', () => {
  const failed = (code: string): Error =>
    new TypeError('fetch failed', { cause: Object.assign(new Error('x'), { code }) });
  const said = (code: string): string => troubleText(connectionTroubleOf(failed(code)));
  for (const code of ['DEPTH_ZERO_SELF_SIGNED_CERT', 'SELF_SIGNED_CERT_IN_CHAIN', 'UNABLE_TO_VERIFY_LEAF_SIGNATURE'])
    assert.match(said(code), new RegExp(`cannot be verified \\(${code}\\); .*NODE_EXTRA_CA_CERTS`));
  assert.match(said('CERT_HAS_EXPIRED'), /not valid now .*renew it/);
  assert.match(said('ERR_TLS_CERT_ALTNAME_INVALID'), /for another host/);
  assert.match(said('ERR_SSL_WRONG_VERSION_NUMBER'), /speaks no TLS; write http:/);
  assert.equal(said('ECONNREFUSED'), 'ECONNREFUSED');
  assert.equal(troubleText(connectionTroubleOf(new Error('odd'))), 'odd');
  assert.equal(certificateTroubleOf('ECONNRESET'), undefined);
});
