/**
 * A burst beyond what a cluster of real processes computes in time: some requests are refused at once with 429, those that are accepted
 * finish with the answers that they have without load. How fast refusals are is measured by the benchmarks. Budget: 30 s.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI, { APIError, BadRequestError, RateLimitError } from 'openai';
import { afterAll, beforeAll, test } from 'vitest';
import { keyDigest } from '../../shared/base/client_keys.ts';
import { Cluster, harbour, temporaryFolder, type RequestView } from '../support/cluster.ts';

const NUM_REQUESTS = 24;
/** About 600 ms of one thread: far more than a fifth of the target, on any machine. */
const PROMPT_TOKENS = 1_800;
const MAX_TOKENS = 8;
/** A fifth of it is less than the time of one prompt, so that a second one already has to wait too long. */
const TTFT_TARGET_MS = 50;

let cluster: Cluster;
const folder = temporaryFolder();
beforeAll(async () => {
  const entries = ['hurried', 'patient'].map((name) => {
    const sha256 = keyDigest(name).toString('hex');
    // Both share their blocks. Empty targets stand in place of the configured ones.
    return { name, sha256, tenant: name, sharing: 'all', admin: true, ...(name === 'patient' ? { targets: {} } : {}) };
  });
  writeFileSync(join(folder.path, 'keys.yaml'), JSON.stringify(entries));
  const targets = ['--slo-ttft-ms', String(TTFT_TARGET_MS), '--keys', join(folder.path, 'keys.yaml')];
  const split = ['--prefill', '1', '--decode', '1', '--store', '0', '--device', 'wasm', '--threads', '1'];
  cluster = await Cluster.up('--model', harbour, ...split, ...targets, '--log-level', 'error');
  cluster.key = 'hurried';
});
afterAll(async () => {
  await cluster.close();
  folder.remove();
});

type Traced = RequestView & {
  readonly targets: { readonly ttft_ms: number | null; readonly deadline_ms: number | null } | null;
  readonly rejection: { readonly reason: string; readonly prediction: { readonly wait_ms: number } } | null;
};

async function traces(): Promise<Traced[]> {
  return (await cluster.requests(500)) as Traced[];
}

const promptOf = (number: number): number[] =>
  Array.from({ length: PROMPT_TOKENS }, (_, i) => 3 + ((number * 193 + i * 31 + number * i * 7) % 1_500));

/** Asks for the answer to a prompt with a key. */
async function ask(number: number, apiKey = 'hurried', headers: Record<string, string> = {}): Promise<string> {
  const body = {
    model: 'harbour',
    prompt: promptOf(number),
    max_tokens: MAX_TOKENS,
    temperature: 0,
    ignore_eos: true,
  };
  const client = new OpenAI({ baseURL: `${cluster.url}/v1`, apiKey, maxRetries: 0 });
  const { choices, usage } = await client.completions.create(body, { headers });
  assert.equal(usage?.completion_tokens, MAX_TOKENS);
  return choices[0]?.text ?? '';
}

test('a burst beyond the targets is refused in part, with 429 and Retry-After, and the rest finishes', async () => {
  const settled = await Promise.allSettled(Array.from({ length: NUM_REQUESTS }, (_, i) => ask(i)));
  const refused = settled.flatMap((one) => (one.status === 'rejected' ? [one.reason as unknown] : []));
  const accepted = settled.flatMap((one, i) => (one.status === 'fulfilled' ? [{ i, text: one.value }] : []));
  assert(accepted.length >= 1, 'the first finds an idle cluster, and is served however late');
  console.log(`${refused.length} of ${NUM_REQUESTS} were refused`);
  assert(refused.length >= NUM_REQUESTS / 2);
  for (const error of refused) {
    assert(error instanceof RateLimitError, String(error));
    assert.deepEqual([error.status, error.code, error.type], [429, 'rate_limit_exceeded', 'rate_limit_error']);
    assert.match(error.message, /TTFT target of 50 ms: try again later$/);
    const seconds = Number(error.headers.get('retry-after'));
    assert(Number.isInteger(seconds) && seconds >= 1 && seconds <= 60, `retry after ${seconds} s`);
  }
  const rejected = (await traces()).filter(({ rejection }) => rejection !== null);
  assert.equal(rejected.length, refused.length);
  for (const { rejection, attempts, targets, phase } of rejected) {
    assert.deepEqual(
      [attempts, phase, targets?.ttft_ms],
      [[], 'failed', TTFT_TARGET_MS],
      'nothing was computed for it',
    );
    assert(rejection && rejection.reason === 'wait' && rejection.prediction.wait_ms > TTFT_TARGET_MS / 5);
  }
  const { decisions } = (await (
    await fetch(`${cluster.url}/api/decisions?limit=200`, { headers: cluster.headers })
  ).json()) as {
    decisions: { decision: { kind: string; rejection?: { prediction: { waitMs: number } } } }[];
  };
  const logged = decisions.filter(({ decision }) => decision.kind === 'reject');
  assert.equal(logged.length, refused.length);
  assert(logged.every(({ decision }) => (decision.rejection?.prediction.waitMs ?? 0) > TTFT_TARGET_MS / 5));
  const metrics = await (await fetch(`${cluster.url}/metrics`, { headers: cluster.headers })).text();
  assert.match(metrics, new RegExp(`^penstock_rejections_total\\{.*reason="wait".*\\} ${refused.length}$`, 'm'));
  await cluster.idle();
  for (const { i, text } of accepted) assert.equal(await ask(i, 'patient'), text, 'load changes no answer');
}, 180_000);

test('a tenant without targets waits, where others are refused', async () => {
  const texts = await Promise.all(Array.from({ length: 6 }, (_, i) => ask(100 + i, 'patient')));
  assert.equal(texts.length, 6);
}, 180_000);

test('a deadline that cannot be met is refused for good, and a header that is no time with 400', async () => {
  await cluster.idle();
  await assert.rejects(ask(200, 'patient', { 'x-penstock-deadline-ms': '1' }), (error) => {
    assert(error instanceof APIError, String(error));
    assert.deepEqual([error.status, error.code], [504, 'deadline_exceeded']);
    return true;
  });
  await assert.rejects(ask(201, 'patient', { 'x-penstock-slo-ttft-ms': 'soon' }), (error) => {
    assert(error instanceof BadRequestError, String(error));
    assert.equal(error.param, 'x-penstock-slo-ttft-ms');
    return true;
  });
  assert.equal(await ask(202, 'patient', { 'x-penstock-deadline-ms': '60000' }), await ask(202, 'patient'));
});
