/** Limits of tenants over HTTP: who is refused before its body is read, in which form, with which headers, and what is counted. Budget: 5 s. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import OpenAI, { RateLimitError } from 'openai';
import Anthropic from '@anthropic-ai/sdk';
import { afterEach, beforeEach, test } from 'vitest';
import type { ApiContext } from '../../../services/router/api/api_context.ts';
import { Surfaces } from '../../../services/router/api/surfaces.ts';
import type { Caller, CallerLimits } from '../../../services/router/access/caller.ts';
import { Admission } from '../../../services/router/conductor/admission.ts';
import { TenantLimits } from '../../../services/router/conductor/tenant_limits.ts';
import { listenHttp } from '../../../services/router/http/http_server.ts';
import { HttpSeries } from '../../../services/router/metrics/http_series.ts';
import { RequestLog } from '../../../services/router/record/request_log.ts';
import type { RequestTrace } from '../../../services/router/record/request_trace.ts';
import type { GeneratedToken, TakeToken } from '../../../services/router/relay/decode_attempt.ts';
import type { GenerationBounds } from '../../../services/router/relay/relay.ts';
import type { Generation } from '../../../services/router/relay/generation.ts';
import type { HttpApp } from '../../../services/router/router.ts';
import { surfaces } from '../../../services/router/surfaces/registry.ts';
import { systemClock } from '../../../shared/base/clock.ts';
import { pushed } from '../../support/pulled.ts';
import { until } from '../../support/until.ts';
import { bodiesWithoutThreads, contextParts } from '../api_context.ts';
import { host } from '../surfaces/support.ts';

/** Tokens that every answer is expected to have, and has. */
const [EXPECTED, GENERATED] = [10, 3];

class World {
  nowMs = 0;
  limits: CallerLimits = { maxRequests: undefined, maxSamples: undefined, allowsPriority: true };
  readonly share = {
    share: 1,
    gives: true,
    numRouters: 1,
    over: () => ({ requests: 0, tokens: 0 }),
    heard: () => ({}),
  };
  readonly clock = { ...systemClock, nowMs: () => this.nowMs, wallMs: () => 1_700_000_000_000 };
  readonly tenants = new TenantLimits(this.clock, this.share);
  readonly admission = new Admission(8);
  /** Requests that reached a thread which reads texts. */
  numRead = 0;
  /** Called for each sample at the relay, before its first token. */
  onRelay: () => Promise<void> = () => Promise.resolve();
  readonly bodies = bodiesWithoutThreads();
  readonly codec = {
    hasTokenizer: true,
    maxCharacters: 1_000,
    decode: (lists: readonly unknown[]) => Promise.resolve(lists.map(() => '')),
    plainText: () => undefined,
    partOf: () => undefined,
    encode: () => {
      this.numRead++;
      return Promise.resolve(Uint32Array.of(1, 2, 3, 4));
    },
    encoderOf: () => {
      this.numRead++;
      return Promise.reject(new Error('no thread reads in this test'));
    },
  };
  readonly context = {
    ...contextParts(),
    requests: new RequestLog(systemClock, [], 8),
    admission: this.admission,
    bodies: this.bodies,
    clock: this.clock,
    of: () => this.context,
    codec: this.codec,
    relay: {
      expectedLength: () => Promise.resolve(EXPECTED),
      generate: (_generation: Generation, trace: RequestTrace, _bounds: GenerationBounds, take: TakeToken) =>
        pushed(this.#generate(trace))(take),
      embed: (_embedding: unknown, trace: RequestTrace) => {
        this.#place(trace);
        return Promise.resolve(Float32Array.of(1));
      },
    },
  } as unknown as ApiContext;

  readonly #close: (() => Promise<void>)[] = [];
  url = '';

  async start(): Promise<void> {
    const caller = (): Caller => ({
      key: 'key',
      tenant: 'research',
      cacheTenant: 'research',
      isAdmin: true,
      models: undefined,
      targets: undefined,
      limits: this.limits,
    });
    const app = {
      context: this.context,
      contexts: () => [],
      surfaces: new Surfaces(surfaces, host),
      callerOf: caller,
      logIns: undefined,
      limits: { tenants: this.tenants },
      observer: { history: {}, router: {}, everySecond: () => undefined },
      config: { allowed_origins: '*', body_timeout_ms: 60_000, max_connections: 100 },
      exposition: { http: new HttpSeries() },
    };
    const { url, close } = await listenHttp('127.0.0.1:0', app as unknown as HttpApp);
    this.url = url;
    this.#close.push(close);
  }

  async close(): Promise<void> {
    for (const close of this.#close) await close();
  }

  #place(trace: RequestTrace): void {
    trace.emit({ kind: 'placed', decode: 'd', reason: '', explanation: undefined, heldTokens: 0, isPrefilling: false });
  }

  async *#generate(trace: RequestTrace): AsyncGenerator<GeneratedToken> {
    await this.onRelay();
    this.#place(trace);
    for (let i = 1; i <= GENERATED; i++) {
      trace.emit({ kind: 'token' });
      const finish = i === GENERATED ? 'length' : undefined;
      yield { sampled: { token: 1, logprob: [], topTokens: [], topLogprobs: [], position: i }, finish };
    }
  }

  post(path: string, body: object, signal?: AbortSignal): Promise<Response> {
    const headers = { 'content-type': 'application/json' };
    return fetch(`${this.url}${path}`, { method: 'POST', headers, body: JSON.stringify(body), signal: signal ?? null });
  }

  /** Tokens that are left of this minute, by the headers of an answer. */
  left({ headers }: Response): number {
    return Number(headers.get('x-ratelimit-remaining-tokens'));
  }

  /** Sets limits, the others as they are. */
  limit(limits: Partial<CallerLimits>): void {
    this.limits = { ...this.limits, ...limits };
  }
}

let world: World;
beforeEach(async () => {
  world = new World();
  await world.start();
});
afterEach(() => world.close());

const ids = { prompt: [1, 2, 3, 4], max_tokens: 20 };

test('a flood is refused by its headers: no thread reads it, no memory holds it, and each API has its own form', async () => {
  world.limit({ requestsPerMinute: 1 });
  const [first, ...others] = await Promise.all(
    Array.from({ length: 20 }, () => world.post('/v1/completions', { prompt: 'x'.repeat(1_000), max_tokens: 1 })),
  );
  const statuses = [first, ...others].map((answer) => answer?.status).toSorted();
  assert.deepEqual([world.numRead, statuses.filter((status) => status === 429).length], [1, 19]);
  assert.equal(world.bodies.allBytes, 0);
  const forms = {
    '/v1/chat/completions': { type: 'rate_limit_error', code: 'rate_limit_exceeded', param: null },
    '/v1/responses': { type: 'rate_limit_error', code: 'rate_limit_exceeded', param: null },
    '/v1/embeddings': { type: 'rate_limit_error', code: 'rate_limit_exceeded', param: null },
    '/v1/messages': { type: 'rate_limit_error' },
    '/v1/messages/count_tokens': { type: 'rate_limit_error' },
    '/tokenize': { type: 'rate_limit_error', code: 'rate_limit_exceeded', param: null },
  };
  for (const [path, form] of Object.entries(forms)) {
    const answer = await world.post(path, { messages: [] });
    const { error } = (await answer.json()) as { error: { message: string } };
    const { message, ...rest } = error;
    assert.deepEqual([answer.status, answer.headers.get('retry-after'), rest], [429, '61', form], path);
    assert.match(message, /the tenant research may use 1 requests a minute; .* try again in 61 s/);
    assert.equal(answer.headers.get('x-ratelimit-remaining-requests'), '0');
    assert.equal(answer.headers.get('anthropic-ratelimit-requests-limit') !== null, path.startsWith('/v1/messages'));
  }
  assert.equal((await fetch(`${world.url}/v1/models`)).status, 200, 'who lists models uses nothing');
  assert.equal(world.numRead, 1);
});

test('answers say what is left, whole ones, streams and errors, and pages may read it', async () => {
  world.limit({ requestsPerMinute: 60, tokensPerMinute: 1_000 });
  const whole = await world.post('/v1/completions', ids);
  assert.equal(whole.status, 200);
  await whole.text();
  assert.deepEqual(
    [...whole.headers].filter(([name]) => name.startsWith('x-ratelimit')),
    [
      ['x-ratelimit-limit-requests', '60'],
      ['x-ratelimit-limit-tokens', '1000'],
      ['x-ratelimit-remaining-requests', '59'],
      ['x-ratelimit-remaining-tokens', '986'],
      ['x-ratelimit-reset-requests', '1m1s'],
      ['x-ratelimit-reset-tokens', '1m1s'],
    ],
  );
  const stream = await world.post('/v1/completions', { ...ids, stream: true });
  assert.match(await stream.text(), /\[DONE\]/);
  // The first has ended, with fewer tokens than it was expected to have.
  assert.equal(world.left(stream), 1_000 - 7 - 14);
  const refused = await world.post('/v1/completions', { ...ids, n: 999 });
  assert.deepEqual([refused.status, world.left(refused)], [400, 1_000 - 7 - 7]);
  const { headers } = await fetch(`${world.url}/v1/completions`, { method: 'POST', headers: { origin: 'http://a.b' } });
  assert.match(headers.get('access-control-expose-headers') ?? '', /x-ratelimit-reset-tokens/);
});

test('tokens are those of all prompts and samples; embeddings have those of their prompts', async () => {
  world.limit({ tokensPerMinute: 1_000 });
  const many = await world.post('/v1/completions', { prompt: [ids.prompt, ids.prompt], max_tokens: 20, n: 3 });
  await many.text();
  assert.equal(world.left(many), 1_000 - 2 * (4 + 3 * EXPECTED));
  const embedded = await world.post('/v1/embeddings', { input: [ids.prompt, ids.prompt] });
  await embedded.text();
  assert.equal(world.left(embedded), 1_000 - 2 * (4 + 3 * GENERATED) - 8);
});

test('one that is larger than the whole limit is refused for good, by a message that says so', async () => {
  world.limit({ tokensPerMinute: 20 });
  const answer = await world.post('/v1/completions', { ...ids, n: 2 });
  const { error } = (await answer.json()) as { error: { message: string; code: string } };
  assert.deepEqual([answer.status, error.code], [429, 'rate_limit_exceeded']);
  assert.deepEqual([answer.headers.get('retry-after'), answer.headers.get('x-should-retry')], [null, 'false']);
  assert.match(error.message, /20 tokens a minute; this request alone needs 24/);
  assert.equal((await world.post('/v1/completions', ids)).status, 200);
});

test('a failure, and a client that leaves, use what was computed by then', async () => {
  world.limit({ tokensPerMinute: 1_000, maxRequests: 1 });
  world.onRelay = () => Promise.reject(new Error('no instance'));
  await (await world.post('/v1/completions', ids)).text();
  world.onRelay = () => Promise.resolve();
  const after = await world.post('/v1/completions', ids);
  await after.text();
  assert.equal(world.left(after), 1_000 - 14, 'nothing was computed for the first');
  const leaving = new AbortController();
  let release: () => void = () => undefined;
  const held = new Promise<void>((resolve) => (release = resolve));
  const arrived = new Promise<void>((resolve) => {
    world.onRelay = () => {
      resolve();
      return held;
    };
  });
  const gone = world.post('/v1/completions', ids, leaving.signal).catch(() => undefined);
  await arrived;
  assert.equal((await world.post('/v1/completions', ids)).status, 429, 'one is in flight');
  leaving.abort();
  await gone;
  release();
  world.onRelay = () => Promise.resolve();
  await until('its place is free', async () => (await world.post('/v1/embeddings', { input: [1] })).status === 200);
});

test('a request is in flight from its headers on, and no longer when its client leaves before its body has come', async () => {
  world.limit({ maxRequests: 1 });
  const socket = connect(Number(new URL(world.url).port), '127.0.0.1');
  await once(socket, 'connect');
  const head =
    'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n';
  socket.write(head);
  await until('it is in flight', async () => (await world.post('/v1/completions', ids)).status === 429);
  socket.destroy();
  await until('it is not', async () => (await world.post('/v1/completions', ids)).status === 200);
  // Whatever refuses a body ends it, too.
  const large = await fetch(`${world.url}/v1/completions`, {
    method: 'POST',
    body: 'x',
    headers: { 'content-type': 'x' },
  });
  assert.equal(large.status, 415);
  for (let i = 0; i < 10; i++)
    assert.equal((await world.post('/v1/completions', ids)).status, 200, 'one after another');
});

test('samples of a request are those of all its prompts, and the refusal names the parameter', async () => {
  world.limit({ maxSamples: 4 });
  const of = async (body: object): Promise<[number, string | null | undefined, string | undefined]> => {
    const answer = await world.post('/v1/completions', { ...ids, ...body });
    const { error } = (await answer.json()) as { error?: { param: string | null; message: string } };
    return [answer.status, error?.param, error?.message];
  };
  assert.deepEqual(await of({ n: 4 }), [200, undefined, undefined]);
  assert.deepEqual(await of({ n: 5 }), [
    400,
    'n',
    'n: 5 samples are more than 4, the limit of a request of this API key',
  ]);
  assert.deepEqual((await of({ n: 2, best_of: 5 })).slice(0, 2), [400, 'best_of']);
  assert.deepEqual((await of({ prompt: [[1], [2], [3]], n: 2 })).slice(0, 2), [400, 'n']);
  assert.deepEqual((await of({ prompt: [[1], [2], [3], [4], [5]] })).slice(0, 2), [400, 'prompt']);
  assert.equal((await of({ prompt: [[1], [2]], n: 2 }))[0], 200);
});

test('the official clients see a rate limit, with its headers', async () => {
  world.limit({ requestsPerMinute: 1 });
  const client = new OpenAI({ baseURL: `${world.url}/v1`, apiKey: 'x', maxRetries: 0 });
  const create = () => client.completions.create({ model: 'm', ...ids });
  await create();
  await assert.rejects(create(), (error) => {
    assert(error instanceof RateLimitError);
    assert.deepEqual([error.status, error.code, error.type], [429, 'rate_limit_exceeded', 'rate_limit_error']);
    assert.equal(error.headers.get('x-ratelimit-limit-requests'), '1');
    assert.equal(error.headers.get('retry-after'), '61');
    return true;
  });
  const own = new Anthropic({ baseURL: world.url, apiKey: 'x', maxRetries: 0 });
  const message = own.messages.create({ model: 'm', max_tokens: 1, messages: [{ role: 'user', content: 'a' }] });
  await assert.rejects(message, (error) => {
    assert(error instanceof Anthropic.RateLimitError);
    assert.equal(error.headers.get('anthropic-ratelimit-requests-reset'), '2023-11-14T22:14:21Z');
    return true;
  });
});
