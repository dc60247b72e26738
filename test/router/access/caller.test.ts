/** Who sends a request, as a router with two tenants would say it: salts, targets, limits and counts are apart. Over HTTP. Budget: 5 s. */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, test } from 'vitest';
import { systemClock } from '../../../shared/base/clock.ts';
import { abortable } from '../../../shared/base/signal.ts';
import { Failure } from '../../../shared/base/failure.ts';
import type { CacheScope } from '../../../shared/kv/format.ts';
import type { ApiContext } from '../../../services/router/api/api_context.ts';
import { oneCaller, type Caller, type ResolveCaller } from '../../../services/router/access/caller.ts';
import { originOf } from '../../../services/router/api/new_generation.ts';
import { Surfaces } from '../../../services/router/api/surfaces.ts';
import { Admission } from '../../../services/router/conductor/admission.ts';
import { TenantLimits } from '../../../services/router/conductor/tenant_limits.ts';
import { listenHttp } from '../../../services/router/http/http_server.ts';
import { HttpSeries } from '../../../services/router/metrics/http_series.ts';
import { RequestLog } from '../../../services/router/record/request_log.ts';
import type { RequestTrace } from '../../../services/router/record/request_trace.ts';
import type { Embedding } from '../../../services/router/relay/embedding_run.ts';
import type { GeneratedToken, TakeToken } from '../../../services/router/relay/decode_attempt.ts';
import type { GenerationBounds } from '../../../services/router/relay/relay.ts';
import type { Generation } from '../../../services/router/relay/generation.ts';
import type { PreviewedRequest } from '../../../services/router/relay/preview.ts';
import type { HttpApp } from '../../../services/router/router.ts';
import { surfaces } from '../../../services/router/surfaces/registry.ts';
import { pushed } from '../../support/pulled.ts';
import { until } from '../../support/until.ts';
import { bodiesWithoutThreads, contextParts } from '../api_context.ts';
import { host } from '../surfaces/support.ts';

const own = { ttftMs: 50, tbtMs: undefined, totalMs: undefined };
const tenants: Readonly<Record<string, Caller>> = {
  one: {
    key: 'key of one',
    tenant: 'one',
    cacheTenant: 'one',
    isAdmin: true,
    models: undefined,
    targets: own,
    limits: { maxRequests: 1, maxSamples: undefined, allowsPriority: true },
  },
  two: {
    key: 'key of two',
    tenant: 'two',
    cacheTenant: '',
    isAdmin: true,
    models: undefined,
    targets: undefined,
    limits: { maxRequests: undefined, maxSamples: undefined, allowsPriority: false },
  },
};

/** Takes the name of a tenant for its key. */
const callerOf: ResolveCaller = ({ headers: { authorization } }) => {
  const found = tenants[String(authorization).replace('Bearer ', '')];
  if (!found) throw new Failure('invalid_api_key', 'this key is not known');
  return found;
};

/** A request on its way through the relay, which ends when the test says so. */
interface Seen {
  readonly tenant: string;
  readonly priority: number;
  readonly scope: CacheScope;
  readonly ttftMs: number | undefined;
}

class World {
  readonly seen: Seen[] = [];
  readonly admission = new Admission(8);
  readonly requests = new RequestLog(systemClock, [], 8);
  readonly bodies = bodiesWithoutThreads();
  /** Called for each request at the relay. */
  onRelay: () => Promise<void> = () => Promise.resolve();

  readonly context = {
    ...contextParts(900),
    requests: this.requests,
    admission: this.admission,
    bodies: this.bodies,
    clock: systemClock,
    of: () => this.context,
    codec: {
      hasTokenizer: false,
      decode: (lists: readonly unknown[]) => Promise.resolve(lists.map(() => '')),
      plainText: () => undefined,
      partOf: () => undefined,
    },
    relay: {
      generate: (generation: Generation, trace: RequestTrace, { signal }: GenerationBounds, take: TakeToken) =>
        pushed(this.#generate(generation, trace, signal))(take),
      embed: ({ origin, scope }: Embedding) => {
        this.seen.push({ ...origin, scope, ttftMs: undefined });
        return Promise.resolve(Float32Array.of(1));
      },
      preview: ({ generation: { origin, request }, targets }: PreviewedRequest) => {
        this.seen.push({ ...origin, scope: request.scope, ttftMs: targets?.ttftMs });
        return Promise.resolve(undefined);
      },
    },
  } as unknown as ApiContext;

  async *#generate(
    { origin, request }: Generation,
    trace: RequestTrace,
    signal: AbortSignal,
  ): AsyncGenerator<GeneratedToken> {
    this.seen.push({ ...origin, scope: request.scope, ttftMs: trace.record.facts.targets?.ttftMs });
    await abortable(this.onRelay(), signal, () => new Failure('cancelled', 'the client went away'));
    yield { sampled: { token: 1, logprob: [], topTokens: [], topLogprobs: [], position: 1 }, finish: 'length' };
  }
}

/** The share of a router without others. */
const alone = { share: 1, gives: true, numRouters: 1, over: () => ({ requests: 0, tokens: 0 }), heard: () => ({}) };

let world: World;
let url: string;
let close: () => Promise<void>;
beforeAll(async () => {
  world = new World();
  const app = {
    context: world.context,
    surfaces: new Surfaces(surfaces, host),
    callerOf,
    logIns: undefined,
    limits: { tenants: new TenantLimits(systemClock, alone) },
    observer: { history: {}, router: {}, everySecond: () => undefined },
    config: { allowed_origins: '', body_timeout_ms: 60_000, max_connections: 100 },
    exposition: { http: new HttpSeries() },
  };
  ({ url, close } = await listenHttp('127.0.0.1:0', app as unknown as HttpApp));
});
afterAll(() => close());

async function post(
  tenant: string,
  path: string,
  body: object,
  more: Readonly<Record<string, string>> = {},
): Promise<{ status: number; text: string }> {
  const headers = { authorization: `Bearer ${tenant}`, 'content-type': 'application/json', ...more };
  const answer = await fetch(`${url}${path}`, { method: 'POST', headers, body: JSON.stringify(body) });
  return { status: answer.status, text: await answer.text() };
}

const prompt = { prompt: [1, 2], max_tokens: 1 };
const scopeOf = (tenant: string, salt = ''): CacheScope => ({ adapter: '', tenant, salt });

test('tenants have scopes and targets apart, at requests, embeddings and look-ups; a salt of the body separates further', async () => {
  world.seen.length = 0;
  for (const tenant of ['one', 'two']) {
    await post(tenant, '/v1/completions', { ...prompt, priority: 3 });
    await post(tenant, '/v1/completions', { ...prompt, cache_salt: 'x' });
    await post(tenant, '/v1/embeddings', { input: [1, 2] });
    await post(tenant, '/api/lookup', { tokens: [1, 2], cache_salt: 'x' });
  }
  assert.deepEqual(world.seen, [
    { tenant: 'one', priority: 3, scope: scopeOf('one'), ttftMs: 50 },
    { tenant: 'one', priority: 0, scope: scopeOf('one', 'x'), ttftMs: 50 },
    { tenant: 'one', priority: 0, scope: scopeOf('one'), ttftMs: undefined },
    { tenant: 'one', priority: 0, scope: scopeOf('one', 'x'), ttftMs: 50 },
    { tenant: 'two', priority: 0, scope: scopeOf(''), ttftMs: 900 },
    { tenant: 'two', priority: 0, scope: scopeOf('', 'x'), ttftMs: 900 },
    { tenant: 'two', priority: 0, scope: scopeOf(''), ttftMs: undefined },
    { tenant: 'two', priority: 0, scope: scopeOf('', 'x'), ttftMs: 900 },
  ]);
  assert.deepEqual([...new Set(world.requests.all().map(({ tenant }) => tenant))], ['two', 'one']);
});

test('of the sampling of a request only what is shown is kept: a bias has up to half a million values', async () => {
  await post('one', '/v1/completions', { ...prompt, temperature: 0.5, logit_bias: { 1: 2, 2: 3 } });
  const [last] = world.requests.all();
  assert.deepEqual(last?.record.facts.sampling, { temperature: 0.5, topP: 1, topK: 0 });
});

test('a tenant at its own limit is refused, others are not; counts are of each', async () => {
  let release: () => void = () => undefined;
  const held = new Promise<void>((resolve) => (release = resolve));
  const arrived = new Promise<void>((resolve) => {
    world.onRelay = () => {
      resolve();
      return held;
    };
  });
  const first = post('one', '/v1/completions', prompt);
  await arrived;
  world.onRelay = () => Promise.resolve();
  const { admission } = world;
  assert.deepEqual([admission.numOf('one'), admission.numOf('two')], [1, 0]);
  const { status, text } = await post('one', '/v1/completions', prompt);
  const other = await post('two', '/v1/completions', prompt);
  release();
  assert.deepEqual([status, /the tenant one may have 1 requests in flight/.test(text)], [429, true]);
  assert.equal(other.status, 200, other.text);
  assert.equal((await first).status, 200);
  assert.deepEqual([admission.numOf('one'), admission.numRequests], [0, 0]);
});

test('where all places are taken, a tenant with fewer gets that of the newest request of the other, which is told so', async () => {
  let release: () => void = () => undefined;
  const held = new Promise<void>((resolve) => (release = resolve));
  const { admission } = world;
  world.onRelay = () => held;
  const flood = Array.from({ length: 8 }, () => post('two', '/v1/completions', prompt));
  await until('the router is full', () => admission.numOf('two') === 8);
  const quiet = post('one', '/v1/completions', prompt);
  await until('the other has a place', () => admission.numOf('one') === 1);
  assert.deepEqual([admission.numOf('two'), admission.numRequests], [7, 8]);
  release();
  world.onRelay = () => Promise.resolve();
  assert.equal((await quiet).status, 200);
  const answers = await Promise.all(flood);
  assert.deepEqual(answers.map(({ status }) => status).sort(), [...Array<number>(7).fill(200), 503]);
  assert.match(
    answers.find(({ status }) => status === 503)!.text,
    /8 requests are in flight, most of them of this client/,
  );
  assert.equal(admission.numRequests, 0);
});

test('a request says whose share it takes: the tenant with its weight, else the address; precedence only as far as it may', () => {
  const caller = { ...tenants['two']!, weight: 3, maxPriority: 2 };
  const of = (priority: number, one: Caller, client = '10.0.0.7'): object =>
    originOf({ caller: one, client }, { priority });
  assert.deepEqual(of(0, caller), { tenant: 'two', priority: 0, weight: 3 });
  assert.deepEqual(of(-1, caller), { tenant: 'two', priority: -1, weight: 3, precedence: 1 });
  assert.deepEqual(of(-9, caller), { tenant: 'two', priority: -9, weight: 3, precedence: 2 });
  assert.deepEqual(of(5, caller), { tenant: 'two', priority: 5, weight: 3 });
  const [open] = [oneCaller({ allow_priority: true })({ url: '/', headers: {} })];
  assert.deepEqual(of(-9, open), { tenant: '', priority: -9, client: '10.0.0.7' });
});

test('who may not ask is refused before the body is read, in the form of the API', async () => {
  const { bodies } = world;
  assert.deepEqual(await post('nobody', '/v1/completions', prompt).then(({ status }) => status), 401);
  const { status, text } = await post('nobody', '/v1/messages', { messages: 'x'.repeat(1_000) });
  assert.deepEqual([status, (JSON.parse(text) as { type: string }).type], [401, 'error']);
  assert.equal(bodies.allBytes, 0);
});

test('a router that asks for no keys has one caller, who shares blocks and may use everything', () => {
  const { tenant, cacheTenant, isAdmin, models } = oneCaller({ allow_priority: false })({ url: '/', headers: {} });
  assert.deepEqual(
    { tenant, cacheTenant, isAdmin, models },
    { tenant: '', cacheTenant: '', isAdmin: true, models: undefined },
  );
});

test('a look-up is in the log whatever becomes of it, and takes no place of requests', async () => {
  const before = world.requests.numClosed;
  const refused = await post('two', '/api/lookup', { tokens: [1] }, { 'x-penstock-slo-ttft-ms': 'soon' });
  assert.deepEqual([refused.status, world.admission.numRequests], [400, 0]);
  const [last] = world.requests.lastClosed(1);
  assert.deepEqual([world.requests.numClosed - before, last?.endpoint, last?.phase], [1, '/api/lookup', 'failed']);
});
