/**
 * HTTP around the API, over real sockets: pages of other origins, comments while a stream waits, and what is refused before it is a request.
 * Budget: 20 s.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { text } from 'node:stream/consumers';
import OpenAI from 'openai';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Cluster } from '../support/cluster.ts';
import { until } from '../support/until.ts';

const PAGE = 'https://page.example';
let cluster: Cluster;
beforeAll(async () => {
  cluster = await Cluster.inProcess(
    ...[
      '--prefill',
      '0',
      '--store',
      '0',
      '--max-num-seqs',
      '1',
      '--allowed-origins',
      `*,${PAGE}`,
      // eslint-disable-next-line time/speed -- a pace
      ...['--sse-keep-alive-ms', '20'],
    ],
  );
});
afterAll(async () => {
  await cluster.close();
});

const post = (body: object, headers: Record<string, string> = {}): Promise<Response> =>
  fetch(`${cluster.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify(body),
  });

/** Sends raw bytes to the router and returns the status and error of the answer. */
async function answerTo(
  request: string,
): Promise<{ status: number; error: { message: string; type: string; code: string | null } }> {
  const socket = connect(Number(new URL(cluster.url).port), '127.0.0.1');
  await once(socket, 'connect');
  socket.write(request);
  const answer = await text(socket);
  const status = Number(answer.split(' ')[1]);
  return { status, ...(JSON.parse(answer.slice(answer.indexOf('\r\n\r\n'))) as { error: never }) };
}

test('every answer says which origin may read it: whole ones, streams, errors, what is inside of the cluster', async () => {
  const any = 'http://elsewhere.example';
  const allowed = ({ headers }: Response): string | null => headers.get('access-control-allow-origin');
  const prompt = [5, 6, 7];
  for (const [origin, want, ofApi] of [
    [PAGE, PAGE, PAGE],
    [any, '*', null],
  ] as const) {
    const headers = { origin };
    const whole = await post({ prompt, max_tokens: 2 }, headers);
    expect([whole.status, allowed(whole)]).toEqual([200, want]);
    expect(whole.headers.get('access-control-expose-headers')).toMatch(/x-penstock-request/);
    const stream = await post({ prompt, max_tokens: 2, stream: true }, headers);
    expect([stream.status, allowed(stream)]).toEqual([200, want]);
    assert.match(await stream.text(), /data: \[DONE\]\n\n$/);
    for (const refused of [
      await post({ prompt, n: 999 }, headers),
      await fetch(`${cluster.url}/nowhere`, { headers }),
    ]) {
      assert(refused.status >= 400);
      expect(allowed(refused)).toBe(want);
    }
    expect(allowed(await fetch(`${cluster.url}/api/pool`, { headers }))).toBe(ofApi);
    const asked = await fetch(`${cluster.url}/v1/chat/completions`, {
      method: 'OPTIONS',
      headers: {
        origin,
        'access-control-request-method': 'POST',
        'access-control-request-headers': 'authorization,content-type,x-stainless-os,anthropic-version',
      },
    });
    expect([asked.status, allowed(asked)]).toEqual([200, want]);
    expect(asked.headers.get('access-control-allow-headers')).toMatch(
      /authorization.*x-stainless-os.*anthropic-version/,
    );
  }
  expect(allowed(await post({ prompt, max_tokens: 1 }))).toBe(null);
});

test('a stream that waits for its turn sends comments, which clients pass over', async () => {
  const ended = new AbortController();
  const hogs = Array.from({ length: 2 }, async (_, i) => {
    while (!ended.signal.aborted) await (await post({ prompt: [9 + i], max_tokens: 300, ignore_eos: true })).text();
  });
  await until('both are there', async () => (await cluster.open()).requests === 2);
  const stream = await post({ prompt: [5, 6, 7], max_tokens: 2, stream: true });
  const body = await stream.text();
  assert.match(body, /^(: keep-alive\n\n)+data: /);
  assert.match(body, /data: \[DONE\]\n\n$/);
  // The official client, in the same place.
  const client = new OpenAI({ baseURL: `${cluster.url}/v1`, apiKey: 'none' });
  let numChunks = 0;
  for await (const chunk of await client.completions.create({
    model: 'harbour',
    prompt: [5, 6],
    max_tokens: 3,
    stream: true,
  }))
    numChunks += chunk.choices.length;
  expect(numChunks).toBeGreaterThan(0);
  ended.abort();
  await Promise.all(hogs);
});

test('what HTTP refuses has the shape of an error, and says what to do', async () => {
  const close = 'Connection: close\r\n';
  const host = 'Host: x\r\n';
  for (const [request, status, pattern] of [
    [
      `POST /v1/completions HTTP/1.1\r\n${host}Expect: 200-maybe\r\nContent-Length: 2\r\n${close}\r\n{}`,
      417,
      /Expect/i,
    ],
    [`GET /v1/models HTTP/1.1\r\n${close}\r\n`, 400, /Host/],
    [`GET /v1/nothing HTTP/1.1\r\n${host}${close}\r\n`, 404, /\/v1\/chat\/completions/],
    [
      `POST /v1/completions HTTP/1.1\r\n${host}Content-Type: text/plain\r\nContent-Length: 2\r\n${close}\r\n{}`,
      415,
      /application\/json/,
    ],
    [`GARBAGE\r\n\r\n`, 400, /./],
  ] as const) {
    const answer = await answerTo(request);
    expect(answer.status, request).toBe(status);
    assert.match(answer.error.message, pattern);
    assert.match(answer.error.type, /error$/);
  }
});
