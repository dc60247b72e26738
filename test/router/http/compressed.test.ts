/** Compressed answers: whole for whoever takes them, and plain for others. */
import assert from 'node:assert/strict';
import { gunzipSync } from 'node:zlib';
import fastify from 'fastify';
import { expect, test } from 'vitest';
import { compressed, takesGzip } from '../../../services/router/http/compressed.ts';

const nodes = Array.from({ length: 500 }, (_, i) => ({ name: `decode-${i}`, role: 'decode' }));

test('a large answer is compressed for whoever takes it, and is the same', async () => {
  const app = fastify();
  app.get('/large', compressed, () => ({ nodes }));
  app.get('/small', compressed, () => ({ nodes: nodes.slice(0, 3) }));
  const plain = await app.inject({ url: '/large', headers: { 'accept-encoding': 'identity' } });
  assert.equal(plain.headers['content-encoding'], undefined);
  assert.equal(plain.headers['content-length'], String(plain.rawPayload.length));
  assert.equal(plain.headers.vary, 'accept-encoding');
  const zipped = await app.inject({ url: '/large', headers: { 'accept-encoding': 'gzip, deflate, br' } });
  assert.equal(zipped.headers['content-encoding'], 'gzip');
  assert.equal(zipped.headers['content-length'], String(zipped.rawPayload.length));
  assert.equal(zipped.headers['content-type'], plain.headers['content-type']);
  assert.deepEqual(JSON.parse(gunzipSync(zipped.rawPayload).toString()), { nodes });
  expect(zipped.rawPayload.length).toBeLessThan(plain.rawPayload.length / 5);
  const small = await app.inject({ url: '/small', headers: { 'accept-encoding': 'gzip' } });
  assert.equal(small.headers['content-encoding'], undefined);
  const head = await app.inject({ method: 'HEAD', url: '/large', headers: { 'accept-encoding': 'gzip' } });
  assert.equal(head.statusCode, 200);
  assert.equal(head.rawPayload.length, 0);
  await app.close();
});

test.each([
  ['gzip', true],
  ['br;q=1.0, gzip;q=0.8, *;q=0.1', true],
  ['gzip;q=0', false],
  ['gzip; q=0.0, br', false],
  ['gzip;q=0.05', true],
  ['identity', false],
  ['x-gzipped', false],
  [undefined, false],
])('accept-encoding %s: %s', (header, isTaken) => {
  assert.equal(takesGzip(header), isTaken);
});
