/** The server of a process's own metrics. Budget: 1 s. */
import assert from 'node:assert/strict';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { EventEmitter } from 'node:events';
import { test } from 'vitest';
import { serveMetrics } from '../../services/cli/metrics_server.ts';

test('serves the text at /metrics and nothing else; a failure is an answer', async () => {
  let isBroken = false;
  const server = await serveMetrics('127.0.0.1:0', () =>
    isBroken ? Promise.reject(new Error('no load yet')) : Promise.resolve('penstock_x 1\n'),
  );
  try {
    const answer = await fetch(`${server.url}?scope=all`);
    assert.equal(await answer.text(), 'penstock_x 1\n');
    assert.equal(answer.headers.get('content-type'), 'text/plain; version=0.0.4; charset=utf-8');
    assert.equal((await fetch(server.url, { method: 'POST' })).status, 404);
    assert.equal((await fetch(server.url.replace('/metrics', '/'))).status, 404);
    isBroken = true;
    const failed = await fetch(server.url);
    assert.equal(failed.status, 500);
    assert.match(await failed.text(), /no load yet/);
    const port = new URL(server.url).port;
    await assert.rejects(
      serveMetrics(`127.0.0.1:${port}`, () => Promise.resolve('')),
      /cannot serve metrics on 127\.0\.0\.1:\d+: .*--metrics-bind/,
    );
  } finally {
    await server.close();
  }
});

test('a connection that cannot be accepted does not end the process', async () => {
  const found: EventEmitter[] = [];
  const onRequest = (message: unknown): void => {
    found.push((message as { server: EventEmitter }).server);
  };
  const channel = 'http.server.request.start';
  subscribe(channel, onRequest);
  const server = await serveMetrics('127.0.0.1:0', () => Promise.resolve('penstock_x 1\n'));
  try {
    await (await fetch(server.url)).text();
    const [own] = found;
    assert.ok(own);
    // Node reports each accept that fails so.
    for (let i = 0; i < 3; i++) assert.ok(own.emit('error', new Error('accept EMFILE')));
    assert.equal((await fetch(server.url)).status, 200);
  } finally {
    unsubscribe(channel, onRequest);
    await server.close();
  }
});
