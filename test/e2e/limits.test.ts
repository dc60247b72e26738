/**
 * Limits of a tenant over two routers on a real nats-server: together they let its limit through, whoever leaves and joins, and a change of the
 * file holds at both. No answer depends on the speed of the machine: only requests that were sent and answered within one minute are added up.
 * Budget: 60 s.
 */
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import OpenAI, { RateLimitError } from 'openai';
import { afterAll, beforeAll, test } from 'vitest';
import { harbour, run, runToEnd, temporaryFolder } from '../support/cluster.ts';
import { NatsServer } from '../support/nats_server.ts';
import { until } from '../support/until.ts';

const LIMIT = 20;
const MINUTE_MS = 60_000;
const token = { PENSTOCK_CLUSTER_TOKEN: 'a-secret-of-this-test' };
const folder = temporaryFolder();
const file = join(folder.path, 'keys.yaml');
const children = new Map<string, ChildProcess>();
const urls = new Map<string, string>();
/** Requests that were let through, by when they were sent and answered. */
const served: { readonly sentMs: number; readonly answeredMs: number }[] = [];
let nats: NatsServer;
let key = '';
let entry: Record<string, unknown> = {};

function writeLimits(limits: object): void {
  writeFileSync(file, JSON.stringify([{ ...entry, limits }]));
}

async function start(name: string): Promise<void> {
  const own = name.startsWith('router')
    ? ['router', '--model', harbour, '--bind', '127.0.0.1:0', '--hub-bind', '127.0.0.1:0', '--keys', file]
    : ['decode', '--model', harbour, '--threads', '1'];
  const child = run([...own, '--name', name, '--bus', nats.url, '--log-level', 'error'], token);
  children.set(name, child);
  assert(child.stdout);
  const [line] = (await once(createInterface({ input: child.stdout }), 'line')) as [string];
  const url = /ready: (http:\S+),/.exec(line)?.[1];
  if (url === undefined) return;
  urls.set(name, url);
  await until(`${name} has an instance`, async () => (await fetch(`${url}/health`)).ok);
}

async function stop(name: string): Promise<void> {
  const child = children.get(name);
  assert(child);
  const exit = once(child, 'exit');
  child.kill('SIGTERM');
  await exit;
}

async function ask(router: string): Promise<Response> {
  // eslint-disable-next-line time/speed -- which requests lie within one minute, however long they took
  const sentMs = performance.now();
  const answer = await fetch(`${urls.get(router)}/v1/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ prompt: [5, 6, 7], max_tokens: 1 }),
  });
  const text = await answer.text();
  // eslint-disable-next-line time/speed -- the same
  if (answer.ok) served.push({ sentMs, answeredMs: performance.now() });
  else assert.match(text, /rate_limit_exceeded/, text);
  return answer;
}

/** Sends twenty times the limit to each of these routers. */
async function flood(...routers: readonly string[]): Promise<void> {
  const work = async (router: string): Promise<void> => {
    for (let i = 0; i < 5 * LIMIT; i++) {
      const { status, headers } = await ask(router);
      assert(status === 200 || status === 429);
      assert.equal(headers.get('x-ratelimit-limit-requests'), String(LIMIT));
      if (status === 429) assert(Number(headers.get('retry-after')) >= 1);
    }
  };
  await Promise.all(routers.flatMap((router) => [0, 1, 2, 3].map(() => work(router))));
}

/** Returns the most requests that are known to have been let through within one minute. */
function mostInMinute(): number {
  const within = served.map(
    (first) => served.filter((one) => one.sentMs >= first.sentMs && one.answeredMs < first.sentMs + MINUTE_MS).length,
  );
  return Math.max(0, ...within);
}

beforeAll(async () => {
  const made = await runToEnd(['key', 'alice', '--json', '--tenant', 'research']);
  assert.equal(made.code, 0, made.errors);
  ({ key, entry } = JSON.parse(made.output) as { key: string; entry: Record<string, unknown> });
  writeLimits({ requests_per_minute: LIMIT });
  nats = await NatsServer.start();
  await Promise.all(['router-1', 'router-2', 'decode-1'].map(start));
});

afterAll(async () => {
  for (const child of children.values()) child.kill('SIGKILL');
  await nats.close();
  folder.remove();
});

test('two routers together let the limit through, one that leaves and one that joins included', async () => {
  await flood('router-1', 'router-2');
  assert(served.length >= LIMIT / 2, `${served.length} are let through`);
  assert(mostInMinute() <= LIMIT, `${mostInMinute()} in a minute`);
  await stop('router-2');
  await flood('router-1');
  await start('router-2');
  await flood('router-1', 'router-2');
  assert(mostInMinute() <= 1.1 * LIMIT, `${mostInMinute()} in a minute`);
});

test('the official client sees a rate limit with its headers', async () => {
  const client = new OpenAI({ baseURL: `${urls.get('router-1')}/v1`, apiKey: key, maxRetries: 0 });
  // One of so many is refused, however much time passes between them.
  const asked = Array.from({ length: 2 * LIMIT }, () =>
    client.completions.create({ model: 'harbour', prompt: 'a', max_tokens: 1 }).then(
      () => undefined,
      (error: unknown) => error,
    ),
  );
  const refused = (await Promise.all(asked)).find((error) => error !== undefined);
  assert(refused instanceof RateLimitError);
  assert.deepEqual([refused.status, refused.code], [429, 'rate_limit_exceeded']);
  assert.match(refused.headers.get('x-ratelimit-reset-requests') ?? '', /^(\d+m)?\d+s$/);
});

test('limits that change in the file hold at both routers from then on, and no router ends', async () => {
  writeLimits({ requests_per_minute: 100_000, tokens_per_minute: 4 });
  for (const router of ['router-1', 'router-2'])
    await until(`${router} has the new limits`, async () => {
      const { headers } = await ask(router);
      return headers.get('x-ratelimit-limit-requests') === '100000' && headers.get('x-ratelimit-limit-tokens') === '4';
    });
  // Three tokens of the prompt and one of the answer are the whole limit, of which each router has a half.
  const answer = await fetch(`${urls.get('router-1')}/v1/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ prompt: [5, 6, 7], max_tokens: 1 }),
  });
  const { error } = (await answer.json()) as { error: { message: string } };
  assert.match(error.message, /tokens a minute \(2 of them at this router, .*\); this request alone needs 4/);
  assert.deepEqual([answer.status, answer.headers.get('retry-after')], [429, null]);
  for (const name of ['router-1', 'router-2', 'decode-1']) assert.equal(children.get(name)?.exitCode, null);
});
