/**
 * The accounts of a router: one line of the audit log for each request, whoever sent it and however it ended, and the series of each
 * tenant. Over HTTP, with keys. Budget: 40 s.
 */
import assert from 'node:assert/strict';
import { appendFileSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, test } from 'vitest';
import { keyDigest, keyTextOf } from '../../shared/base/client_keys.ts';
import { runKeyCommand } from '../../services/cli/key.ts';
import type { AuditEntry } from '../../services/router/observe/audit_log.ts';
import { Cluster, mapConcurrently, temporaryFolder } from '../support/cluster.ts';
import { until } from '../support/until.ts';

const WORD = 'periwinkle';
const folder = temporaryFolder();
const at = (name: string): string => join(folder.path, name);
const audit = at('audit.jsonl');
const keys = Object.fromEntries(
  ['alice', 'bob', 'root'].map((name, i) => [name, keyTextOf(Buffer.alloc(32, i + 1))]),
) as Record<'alice' | 'bob' | 'root', string>;

const entries = [
  { name: 'alice', tenant: 'research', more: '' },
  // One request of the tenant at a time.
  { name: 'bob', tenant: 'sales', more: '  limits: {requests_in_flight: 1}\n' },
  { name: 'root', tenant: 'operators', more: '  admin: true\n' },
] as const;

let cluster: Cluster;
beforeAll(async () => {
  writeFileSync(
    at('keys.yaml'),
    entries
      .map(({ name, tenant, more }) => {
        const digest = keyDigest(keys[name]).toString('hex');
        return `- name: ${name}\n  sha256: ${digest}\n  tenant: ${tenant}\n${more}`;
      })
      .join(''),
  );
  cluster = await Cluster.inProcess('--keys', at('keys.yaml'), '--audit-log', audit);
});
afterAll(async () => {
  await cluster.close();
  folder.remove();
});

/** Lines that the file has now; one that is being written is left out. */
function linesIn(path = audit): AuditEntry[] {
  const whole = readFileSync(path, 'utf8').split('\n').slice(0, -1);
  return whole.map((line) => JSON.parse(line) as AuditEntry);
}

/** Requests that have been sent: each has a line some time. */
let numSent = 0;
beforeEach(() => {
  rmSync(audit, { force: true });
  numSent = 0;
});

/** Sends a request, to which a line belongs. */
async function send(path: string, key: string, more: RequestInit = {}): Promise<{ status: number; text: string }> {
  const authorization: Record<string, string> = key === '' ? {} : { authorization: `Bearer ${key}` };
  numSent++;
  const response = await fetch(`${cluster.url}${path}`, {
    redirect: 'manual',
    ...more,
    headers: { 'content-type': 'application/json', ...authorization, ...(more.headers as Record<string, string>) },
  });
  return { status: response.status, text: await response.text() };
}

function post(path: string, key: string, body: object, more: RequestInit = {}): ReturnType<typeof send> {
  return send(path, key, { ...more, method: 'POST', body: JSON.stringify(body) });
}

/** Returns the lines when all requests have theirs, and no more. */
async function allLines(): Promise<AuditEntry[]> {
  const lines = await until('every request has a line', () => {
    try {
      const found = linesIn();
      return found.length >= numSent && found;
    } catch {
      return false;
    }
  });
  assert.equal(lines.length, numSent);
  return lines;
}

const completion = { prompt: `${WORD} once upon a time`, max_tokens: 5, temperature: 0, ignore_eos: true };

/** Fields of a line that do not depend on a clock or on a port. */
function factsOf({
  time,
  duration_ms: durationMs,
  address,
  request_id: id,
  ...facts
}: AuditEntry): Partial<AuditEntry> {
  assert(Number.isFinite(Date.parse(time)) && durationMs >= 0, time);
  assert.match(address ?? '', /127\.0\.0\.1$/);
  // Requests of an endpoint have a record, whatever became of them.
  assert.equal(id !== null, facts.method === 'POST');
  return facts;
}

/** AuditEntry of a request that reached no model. */
const bare = { model: null, error: null, prompt_tokens: 0, cached_tokens: 0, output_tokens: 0 };

test('a request that was answered has its key, tenant, route, model, status and tokens; the file is for its owner alone', async () => {
  const { status, text } = await post('/v1/completions', keys.alice, completion);
  assert.equal(status, 200, text);
  const { usage, model } = JSON.parse(text) as {
    usage: { prompt_tokens: number; completion_tokens: number };
    model: string;
  };
  const [line] = await allLines();
  assert(line);
  assert.deepEqual(factsOf(line), {
    key: 'alice',
    tenant: 'research',
    method: 'POST',
    route: '/v1/completions',
    model,
    status: 200,
    error: null,
    prompt_tokens: usage.prompt_tokens,
    cached_tokens: 0,
    output_tokens: usage.completion_tokens,
  });
  assert.equal(statSync(audit).mode & 0o777, 0o600);
  const { text: shown } = await send(`/api/requests/${line.request_id}`, keys.root);
  const request = JSON.parse(shown) as { key: string; tenant: string };
  assert.deepEqual([request.key, request.tenant], ['alice', 'research']);
  const { text: rows } = await send('/api/requests?view=rows&tenant=research', keys.root);
  assert.deepEqual(
    new Set((JSON.parse(rows) as { requests: { tenant: string }[] }).requests.map(({ tenant }) => tenant)),
    new Set(['research']),
  );
  await allLines();
});

test('a refused request has a line with the code of its error, and a page or a look at the cluster has one', async () => {
  const asked = [
    [() => send('/v1/models', ''), { key: '', status: 401, error: 'invalid_api_key', route: '/v1/models' }],
    [() => send('/v1/models', 'sk-wrong'), { key: '', status: 401, error: 'invalid_api_key', route: '/v1/models' }],
    [() => send('/v1/models', keys.alice), { key: 'alice', status: 200, route: '/v1/models' }],
    [() => send('/metrics', keys.alice), { key: 'alice', status: 403, error: 'permission_denied', route: '/metrics' }],
    [() => send('/metrics', keys.root), { key: 'root', status: 200, route: '/metrics' }],
    [() => send('/api/pool', keys.root), { key: 'root', status: 200, route: '/api/pool' }],
    [() => send('/dashboard', keys.root), { key: 'root', status: 200, route: '/dashboard' }],
    [() => send(`/${WORD}?key=${keys.bob}`, keys.alice), { key: '', status: 404, error: 'http_404', route: 'none' }],
    [
      () => send(`/v1/responses/${WORD}`, keys.alice),
      { key: 'alice', status: 404, error: 'not_found', route: '/v1/responses/{id}' },
    ],
    [
      () => post('/v1/completions', keys.alice, { ...completion, model: WORD }),
      { key: 'alice', status: 404, error: 'model_not_found', route: '/v1/completions', method: 'POST' },
    ],
    [
      () => send('/v1/completions', keys.alice, { method: 'POST', body: `{"prompt": "${WORD}` }),
      { key: 'alice', status: 400, error: 'invalid_request', route: '/v1/completions', method: 'POST' },
    ],
  ] as const;
  for (const [ask, wanted] of asked) assert.equal((await ask()).status, wanted.status, JSON.stringify(wanted));
  // Routes that are open to everybody have no line.
  for (const path of ['/health', '/version']) await fetch(`${cluster.url}${path}`);
  const tenants = { '': '', alice: 'research', root: 'operators' };
  // Lines are in the order in which requests end, and an answer may be read before its request has.
  const ordered = (facts: readonly Partial<AuditEntry>[]): readonly Partial<AuditEntry>[] =>
    facts.toSorted((a, b) => sign(a).localeCompare(sign(b)));
  const sign = ({ key, route, status, error }: Partial<AuditEntry>): string =>
    JSON.stringify([key, route, status, error]);
  assert.deepEqual(
    ordered((await allLines()).map(factsOf)),
    ordered(asked.map(([, wanted]) => ({ method: 'GET', ...bare, tenant: tenants[wanted.key], ...wanted }))),
  );
});

test('a request over a limit has a line with 429, and one whose client left has 499 with the tokens until then', async () => {
  const leaving = new AbortController();
  const long = { ...completion, max_tokens: 1_800, stream: true };
  numSent++;
  const streamed = await fetch(`${cluster.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-api-key': keys.bob },
    body: JSON.stringify(long),
    signal: leaving.signal,
  });
  await streamed.body?.getReader().read();
  assert.equal((await post('/v1/completions', keys.bob, completion)).status, 429);
  leaving.abort();
  const lines = await allLines();
  const of = (status: number): AuditEntry => {
    const line = lines.find((one) => one.status === status);
    assert(line, `a line with ${status} is among ${JSON.stringify(lines)}`);
    return line;
  };
  assert.deepEqual([of(429).key, of(429).tenant, of(429).error], ['bob', 'sales', 'rate_limit_exceeded']);
  const left = of(499);
  assert.deepEqual([left.key, left.route, left.error], ['bob', '/v1/completions', null]);
  assert(left.prompt_tokens > 0 && left.output_tokens > 0 && left.output_tokens < 1_800, JSON.stringify(left));
});

test('no line has a key, a text of a prompt or of an answer', async () => {
  const messages = [{ role: 'user', content: `tell me of ${WORD}` }];
  const { text } = await post('/v1/chat/completions', keys.alice, { messages, max_tokens: 24, temperature: 0 });
  const answer = (JSON.parse(text) as { choices: [{ message: { content: string } }] }).choices[0].message.content;
  assert(answer.length >= 10, answer);
  await send(`/v1/models/${WORD}?api_key=${keys.alice}`, '');
  await send('/v1/models', `${keys.bob}x`, { headers: { 'x-request-id': WORD, 'user-agent': WORD } });
  await post('/v1/completions', keys.bob, { ...completion, model: WORD, user: WORD });
  await allLines();
  const written = readFileSync(audit, 'utf8');
  for (const secret of [WORD, JSON.stringify(answer).slice(1, -1), ...Object.values(keys)])
    assert(!written.includes(secret), secret);
  for (const key of Object.values(keys)) assert(!written.includes(keyDigest(key).toString('hex')));
});

test('while requests run the file is renamed again and again, and no line is lost or there twice', async () => {
  const parts: string[] = [];
  const over = new AbortController();
  const hasLines = (): boolean => (statSync(audit, { throwIfNoEntry: false })?.size ?? 0) > 0;
  const renaming = (async (): Promise<void> => {
    for (;;) {
      await until('the file has lines', () => over.signal.aborted || hasLines());
      if (over.signal.aborted) return;
      parts.push(`${audit}.${parts.length}`);
      renameSync(audit, parts.at(-1) ?? '');
    }
  })();
  const ids = await mapConcurrently(Array.from({ length: 60 }), 6, async () => {
    const { text } = await post('/v1/completions', keys.alice, { ...completion, max_tokens: 2 });
    return (JSON.parse(text) as { id: string }).id;
  });
  over.abort();
  await renaming;
  const lines = await until('every request has a line', () => {
    const found = [...parts, audit].flatMap((path) => {
      try {
        return linesIn(path);
      } catch {
        return [];
      }
    });
    return found.length >= numSent && found;
  });
  assert(parts.length >= 3, `${parts.length} files`);
  assert.equal(lines.length, 60);
  assert.equal(new Set(lines.map(({ request_id: id }) => id)).size, ids.length);
  for (const path of parts) rmSync(path);
});

test('each tenant has its series, from the first scrape on, and a tenant that joins gets them', async () => {
  const scrape = async (): Promise<Map<string, number>> => {
    const { text } = await send('/metrics?scope=router', keys.root);
    const samples = text.matchAll(/^penstock_tenant_(\w+)\{tenant="(\w+)"(?:,status="(\w+)")?\} (\S+)$/gm);
    return new Map(
      [...samples].map(([, name, tenant, status = '', value]) => [`${name} ${tenant} ${status}`, Number(value)]),
    );
  };
  const before = await scrape();
  for (const tenant of ['research', 'sales', 'operators']) assert(before.has(`requests_total ${tenant} 2xx`), tenant);
  const prompt = Array.from({ length: 300 }, (_, i) => 3 + ((i * 11) % 900));
  for (let n = 0; n < 2; n++)
    assert.equal((await post('/v1/completions', keys.alice, { ...completion, prompt, max_tokens: 4 })).status, 200);
  await allLines();
  const after = await scrape();
  const more = (name: string, tenant = 'research'): number =>
    (after.get(`${name} ${tenant} ${name === 'requests_total' ? '2xx' : ''}`) ?? NaN) -
    (before.get(`${name} ${tenant} ${name === 'requests_total' ? '2xx' : ''}`) ?? NaN);
  assert.equal(more('requests_total'), 2);
  assert.equal(more('prompt_tokens_total'), 600);
  assert.equal(more('output_tokens_total'), 8);
  assert(more('cached_tokens_total') >= 256, `${more('cached_tokens_total')} cached`);
  assert(more('engine_ms_total') > 0);
  assert.equal(after.get('waiting research '), 0);
  // Those who look at the cluster are no clients of the API.
  assert.equal(more('requests_total', 'operators'), 0);
  for (const name of ['prompt_tokens_total', 'output_tokens_total', 'engine_ms_total'])
    assert.equal(more(name, 'sales'), 0, name);
  assert(more('engine_ms_total') > 0);
  const ignored = (): void => undefined;
  runKeyCommand(['carol', '--tenant', 'carols', '--append', at('keys.yaml')], Buffer.alloc(32, 9), ignored, ignored);
  await until('the new tenant has its series', async () => (await scrape()).has('waiting carols '));
});

test('the end of a router writes the last lines', async () => {
  const own = at('last.jsonl');
  appendFileSync(own, '');
  const other = await Cluster.inProcess('--audit-log', own);
  const { status } = await fetch(`${other.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(completion),
  });
  assert.equal(status, 200);
  await other.close();
  const [line, ...others] = linesIn(own).filter(({ route }) => route === '/v1/completions');
  assert(line && others.length === 0);
  // Without --keys nobody has a name.
  assert.deepEqual([line.key, line.tenant, line.status, line.output_tokens], ['', '', 200, 5]);
  assert.match(line.address ?? '', /127\.0\.0\.1$/);
});
