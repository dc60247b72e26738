/** Keys of clients over a running cluster: every route and who may use it, tenants apart, keys that change, and what is refused at the start. Budget: 40 s. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, test } from 'vitest';
import { Cluster, run, runToEnd, temporaryFolder } from '../support/cluster.ts';
import { once } from 'node:events';
import { until } from '../support/until.ts';

type Who = 'nobody' | 'unknown' | 'tenant' | 'other' | 'admin';
const keys: Record<Who, string> = { nobody: '', unknown: 'penstock_wrong', tenant: '', other: '', admin: '' };
const folder = temporaryFolder();
const file = join(folder.path, 'keys.yaml');
/** Entries of the file by the name of the key. */
const entries = new Map<string, Readonly<Record<string, unknown>>>();
let cluster: Cluster;

/** Makes a key with the command, and notes its entry. */
async function newKey(name: string, ...more: string[]): Promise<string> {
  const { output, code, errors } = await runToEnd(['key', name, '--json', ...more]);
  assert.equal(code, 0, errors);
  const { key, entry } = JSON.parse(output) as { key: string; entry: Record<string, unknown> };
  entries.set(name, entry);
  return key;
}

function writeKeys(names: readonly string[] = [...entries.keys()]): void {
  writeFileSync(file, JSON.stringify(names.map((name) => entries.get(name))));
}

beforeAll(async () => {
  keys.tenant = await newKey('tenant', '--tenant', 'research');
  keys.other = await newKey('other', '--tenant', 'sales', '--model', 'harbour');
  keys.admin = await newKey('admin', '--tenant', 'ops', '--admin');
  writeKeys();
  const models = ['--model', 'harbour', '--model', 'harbour-tools'];
  cluster = await Cluster.inProcess('--keys', file, '--revoke', 'abort', ...models);
});
afterAll(async () => {
  await cluster.close();
  folder.remove();
});

function ask(who: string, path: string, init: RequestInit = {}): Promise<Response> {
  const key = who in keys ? keys[who as Who] : who;
  const headers = new Headers(init.headers);
  if (key !== '') headers.set('authorization', `Bearer ${key}`);
  return fetch(`${cluster.url}${path}`, { ...init, headers, redirect: 'manual' });
}

function post(who: string, path: string, body: object): Promise<Response> {
  return ask(who, path, {
    method: 'POST',
    body: JSON.stringify(body),
    headers: { 'content-type': 'application/json' },
  });
}

describe('routes', () => {
  /** Who may use which route. A route of the server that is not here fails the test. */
  const table: Readonly<Record<'open' | 'client' | 'admin', readonly string[]>> = {
    open: [
      '/health',
      '/v1/health',
      '/readyz',
      '/livez',
      '/ping',
      '/version',
      '/',
      '/dashboard/login',
      '/dashboard/logout',
    ],
    client: [
      ...['/v1/chat/completions', '/v1/completions', '/v1/embeddings', '/v1/responses', '/v1/messages'],
      ...['/v1/messages/count_tokens', '/v1/responses/{id}', '/chat/completions', '/completions', '/embeddings'],
      ...['/responses', '/invocations', '/tokenize', '/detokenize', '/apply-template', '/v1/models', '/models'],
      ...['/v1/models/{model}', '/models/{model}', '/load', '/tokenizer_info', '/openapi.json', '/messages'],
    ],
    admin: [
      ...[
        '/metrics',
        '/api/requests',
        '/api/requests/{id}',
        '/api/decisions',
        '/api/hardware',
        '/api/pool',
        '/api/reuse',
      ],
      ...['/api/events', '/api/blocks', '/api/lookup', '/api/history', '/api/stream', '/api/session', '/api/profile'],
      ...['/dashboard', '/dashboard/app.js', '/dashboard/app.css', '/dashboard/icon.svg'],
    ],
  };

  async function routes(): Promise<readonly (readonly [path: string, methods: readonly string[]])[]> {
    const answer = await ask('admin', '/openapi.json');
    const { paths } = (await answer.json()) as { paths: Record<string, Record<string, unknown>> };
    return Object.entries(paths).map(([path, operations]) => [path, Object.keys(operations)] as const);
  }

  const statusFor = (access: 'open' | 'client' | 'admin', who: Who): 'passes' | 401 | 403 => {
    if (access === 'open') return 'passes';
    if (who === 'nobody' || who === 'unknown') return 401;
    return access === 'admin' && who !== 'admin' ? 403 : 'passes';
  };

  test('each is open to those whom the table names, with every method, and to nobody else', async () => {
    const all = await routes();
    assert(all.length > 40);
    const streams = ['/api/stream', '/api/profile'];
    for (const [path, methods] of all) {
      const access = (['open', 'client', 'admin'] as const).find((one) => table[one].includes(path));
      assert(access, `${path} is in the table`);
      const asked =
        path.replace('{model}', 'harbour').replace('{id}', 'resp_1') + (path === '/api/profile' ? '?seconds=1' : '');
      const withHead = methods.includes('get') && !streams.includes(path) ? [...methods, 'head'] : methods;
      for (const method of withHead)
        for (const who of Object.keys(keys) as Who[]) {
          const isPost = method === 'post';
          const body =
            isPost && !path.startsWith('/dashboard')
              ? { body: '{}', headers: { 'content-type': 'application/json' } }
              : {};
          const stop = new AbortController();
          const answer = await ask(who, asked, { method: method.toUpperCase(), signal: stop.signal, ...body });
          const expected = statusFor(access, who);
          const what = `${method} ${path} by ${who}: ${answer.status}`;
          // An empty form has no key, which its page says.
          const isForm = isPost && path === '/dashboard/login';
          if (isForm) assert.match(answer.headers.get('content-type') ?? '', /html/, what);
          else if (expected === 'passes') assert(answer.status !== 401 && answer.status !== 403, what);
          else assert.equal(answer.status, expected, what);
          assert(answer.status < 500, what);
          if (expected === 401) assert.equal(answer.headers.get('www-authenticate'), 'Bearer');
          stop.abort();
        }
    }
  });

  test('errors have the form of the API of their path', async () => {
    const form = async (who: Who, path: string): Promise<unknown> => (await post(who, path, {})).json();
    const openai = (await form('nobody', '/v1/chat/completions')) as { error: Record<string, unknown> };
    assert.deepEqual([openai.error['code'], openai.error['type']], ['invalid_api_key', 'authentication_error']);
    const anthropic = (await form('unknown', '/v1/messages')) as { type: string; error: { type: string } };
    assert.deepEqual([anthropic.type, anthropic.error.type], ['error', 'authentication_error']);
    const inside = (await (await ask('tenant', '/metrics')).json()) as { error: Record<string, unknown> };
    assert.equal(inside.error['code'], 'permission_denied');
  });

  test('a page of the dashboard leads to the log-in; what it loads, and programs, get a 401', async () => {
    const page = await ask('nobody', '/dashboard', { headers: { accept: 'text/html,*/*' } });
    assert.deepEqual([page.status, page.headers.get('location')], [303, 'dashboard/login']);
    assert.equal((await ask('nobody', '/dashboard')).status, 401);
    assert.equal((await ask('nobody', '/dashboard/app.js', { headers: { accept: 'text/html' } })).status, 401);
  });

  test('a browser logs in with a key of an admin, and with no other', async () => {
    const logIn = (key: string): Promise<Response> =>
      ask('nobody', '/dashboard/login', { method: 'POST', body: new URLSearchParams({ key }) });
    assert.deepEqual(
      [(await logIn('wrong')).status, (await logIn('')).status, (await logIn(keys.tenant)).status],
      [401, 401, 403],
    );
    const answer = await logIn(keys.admin);
    const [cookie = ''] = (answer.headers.get('set-cookie') ?? '').split(';');
    assert.deepEqual([answer.status, answer.headers.get('location')], [303, '../dashboard']);
    const withCookie = (path: string, more: Record<string, string> = {}): Promise<Response> =>
      ask('nobody', path, { headers: { cookie, ...more } });
    assert.equal((await withCookie('/dashboard')).status, 200);
    assert.deepEqual(await (await withCookie('/api/session')).json(), { logged_in_as: 'admin' });
    assert.equal((await withCookie('/api/pool', { 'sec-fetch-site': 'same-site' })).status, 403);
    assert.equal((await withCookie('/v1/models', { origin: 'http://127.0.0.1:1' })).status, 401);
  });

  /** Sends something to a page of log-ins. @returns its status, its text, and the cookie that it sets */
  async function send(
    path: string,
    body: URLSearchParams | string,
    headers: Record<string, string> = {},
  ): Promise<readonly [status: number, text: string, cookie: string | null]> {
    const answer = await ask('nobody', path, { method: 'POST', body, headers });
    return [answer.status, await answer.text(), answer.headers.get('set-cookie')];
  }

  test('the log-in says what it takes where it is sent something else', async () => {
    const form = (body: URLSearchParams | string, type?: string): ReturnType<typeof send> =>
      send('/dashboard/login', body, type === undefined ? {} : { 'content-type': type });
    const [tooLarge, large] = await form(new URLSearchParams({ key: 'a'.repeat(10_000) }));
    assert.equal(tooLarge, 413);
    assert.match(large, /<h1>Penstock.*role="alert">The form is larger than 4096 bytes/s);
    for (const [body, type] of [
      ['key', 'text/plain'],
      ['<key/>', 'application/xml'],
    ] as const) {
      const [status, text] = await form(body, type);
      assert.equal(status, 415, type);
      assert.match(text, /role="alert">Send the key as a form: key=.*application\/x-www-form-urlencoded/);
    }
  });

  test('pages of other servers log nobody in or out; browsers that say nothing of the page are known by Origin', async () => {
    const key = new URLSearchParams({ key: keys.admin });
    const own = { origin: cluster.url };
    for (const headers of [own, {}, { 'sec-fetch-site': 'same-origin', origin: 'https://penstock.example' }]) {
      const [status, , cookie] = await send('/dashboard/login', key, headers);
      assert.deepEqual([status, cookie?.startsWith('penstock_session_')], [303, true], JSON.stringify(headers));
      const [end, , ended] = await send('/dashboard/logout', key, headers);
      assert.deepEqual([end, ended?.includes('Max-Age=0')], [303, true], JSON.stringify(headers));
    }
    for (const headers of [
      { origin: 'https://evil.example' },
      { origin: 'null' },
      { 'sec-fetch-site': 'cross-site' },
      { 'sec-fetch-site': 'same-site', ...own },
    ])
      for (const path of ['/dashboard/login', '/dashboard/logout']) {
        const [status, text, cookie] = await send(path, key, headers);
        assert.deepEqual([status, cookie], [403, null], `${path} ${JSON.stringify(headers)}`);
        assert.match(text, /a page of another server\. If a proxy is in front, let it pass on the header Host/);
      }
    // A page whose policy hides where forms come from would refuse its own.
    const page = await ask('nobody', '/dashboard/login');
    assert.equal(page.headers.get('referrer-policy'), 'same-origin');
  });

  test('the cookie is for HTTPS only where the browser speaks it, also with a proxy in front', async () => {
    const cookieWith = async (headers: Record<string, string>): Promise<string> =>
      (await send('/dashboard/login', new URLSearchParams({ key: keys.admin }), headers))[2] ?? '';
    const proto = 'x-forwarded-proto';
    for (const value of ['https', 'HTTPS', 'https, http'])
      assert.match(await cookieWith({ [proto]: value }), /; Secure/, value);
    for (const value of ['http', 'http, https', 'httpsx', ''])
      assert.doesNotMatch(await cookieWith({ [proto]: value }), /Secure/, value);
    assert.doesNotMatch(await cookieWith({}), /Secure/);
  });
});

/** Returns a key whose first model is not the router's. */
async function second(): Promise<string> {
  const key = await newKey('second', '--tenant', 'second', '--model', 'harbour-tools');
  writeKeys();
  await until('it is taken', async () => (await ask(key, '/v1/models')).status === 200);
  return key;
}

describe('tenants', () => {
  const chat = (text: string): object => ({
    model: 'harbour',
    max_tokens: 1,
    messages: [{ role: 'user', content: `${text}${' and a harbour log of some length'.repeat(24)}` }],
  });
  const cachedOf = async (who: Who, body: object): Promise<number> => {
    const answer = await post(who, '/v1/chat/completions', body);
    const { usage } = (await answer.json()) as { usage: { prompt_tokens_details: { cached_tokens: number } } };
    return usage.prompt_tokens_details.cached_tokens;
  };

  test("a prompt of another tenant cannot be found by guessing: its own prompts hit, another's never", async () => {
    for (let i = 0; i < 8; i++) {
      const secret = chat(`the code is ${4_711 + i}`);
      assert.equal(await cachedOf('tenant', secret), 0);
      await until('its own blocks are hit', async () => (await cachedOf('tenant', secret)) > 0);
      assert.equal(await cachedOf('other', secret), 0);
      // However a salt is spelled.
      for (const salt of ['research', '["research",""]', '","research'])
        assert.equal(await cachedOf('other', { ...secret, cache_salt: salt }), 0);
    }
  });

  test('the look-up of a prompt is for admins, and finds nothing of a tenant', async () => {
    const secret = chat('the code is 4711');
    assert.equal((await post('tenant', '/api/lookup', secret)).status, 403);
    const found = (await (await post('admin', '/api/lookup', secret)).json()) as {
      cached_tokens: number;
      ranges: unknown[];
    };
    const never = (await (await post('admin', '/api/lookup', chat('the code is 0000'))).json()) as typeof found;
    assert.deepEqual([found.cached_tokens, found.ranges.length], [never.cached_tokens, never.ranges.length]);
  });

  test('a stored response is found by its own tenant only', async () => {
    const stored = await post('tenant', '/v1/responses', { model: 'harbour', input: 'hello', max_output_tokens: 2 });
    const { id } = (await stored.json()) as { id: string };
    assert.equal((await ask('tenant', `/v1/responses/${id}`)).status, 200);
    for (const who of ['other', 'admin'] as const) {
      assert.equal((await ask(who, `/v1/responses/${id}`)).status, 404);
      assert.equal((await ask(who, `/v1/responses/${id}`, { method: 'DELETE' })).status, 404);
      const next = { model: 'harbour', input: 'go on', previous_response_id: id, max_output_tokens: 2 };
      assert.equal((await post(who, '/v1/responses', next)).status, 404);
    }
    assert.equal((await ask('tenant', `/v1/responses/${id}`, { method: 'DELETE' })).status, 200);
  });

  test('a model that is not of the key does not exist for it', async () => {
    const models = async (who: Who): Promise<string[]> =>
      ((await (await ask(who, '/v1/models')).json()) as { data: { id: string }[] }).data.map(({ id }) => id);
    assert.deepEqual([await models('tenant'), await models('other')], [['harbour', 'harbour-tools'], ['harbour']]);
    const tools = { model: 'harbour-tools', messages: [{ role: 'user', content: 'hello' }], max_tokens: 1 };
    const refused = await post('other', '/v1/chat/completions', tools);
    const { error } = (await refused.json()) as { error: { code: string; message: string } };
    assert.deepEqual([refused.status, error.code], [404, 'model_not_found']);
    assert(!error.message.includes('`harbour-tools`.') && error.message.endsWith('serves `harbour`'), error.message);
    assert.equal((await post('tenant', '/v1/chat/completions', tools)).status, 200);
    for (const path of ['/v1/models/harbour-tools', '/tokenizer_info?model=harbour-tools'])
      assert.deepEqual([(await ask('other', path)).status, (await ask('tenant', path)).status], [404, 200]);
    // Without a name it is the first that the key may use.
    const unnamed = await post('other', '/v1/completions', { prompt: 'a', max_tokens: 1 });
    assert.equal(((await unnamed.json()) as { model: string }).model, 'harbour');
  });

  test("a body is judged by the models of the key alone: another's vocabulary does not show, and the first of the key counts", async () => {
    const refused = async (path: string, body: object): Promise<string> => {
      const answer = await post('other', path, body);
      assert(answer.status === 400 || answer.status === 404, String(answer.status));
      return (await answer.text())
        .replaceAll('harbour-tools', 'NAME')
        .replaceAll('nope', 'NAME')
        .replace(/"request_id":"\w+"/, '');
    };
    const messages = [{ role: 'user', content: 'hello' }];
    for (const [path, body] of [
      ['/v1/chat/completions', { messages, logit_bias: { 99999999: 1 } }],
      ['/v1/completions', { prompt: [1_000_000] }],
      ['/v1/embeddings', { input: [1_000_000] }],
      ['/v1/responses', { input: 'hello', max_output_tokens: 1 }],
      ['/v1/messages', { messages, max_tokens: 1 }],
      ['/tokenize', { prompt: 'a' }],
      ['/detokenize', { tokens: [1_000_000] }],
    ] as const)
      assert.equal(
        await refused(path, { ...body, model: 'harbour-tools' }),
        await refused(path, { ...body, model: 'nope' }),
        path,
      );
    // harbour has 1,536 tokens, harbour-tools 1,952.
    for (const who of ['other', 'second'] as const) {
      const key = who === 'other' ? keys.other : await second();
      const status = async (id: number): Promise<number> =>
        (await post(key, '/v1/completions', { prompt: [1, id], max_tokens: 1 })).status;
      assert.deepEqual([await status(1_500), await status(1_900)], [200, who === 'other' ? 400 : 200], who);
    }
  });

  test('to a tenant an answer says its tokens, to an admin where it ran', async () => {
    const keysOf = async (who: Who): Promise<string[]> => {
      const answer = await post(who, '/v1/completions', { model: 'harbour', prompt: 'a b c', max_tokens: 1 });
      return Object.keys(JSON.parse(answer.headers.get('x-penstock-request') ?? '{}') as object);
    };
    assert.deepEqual(await keysOf('tenant'), ['id', 'prompt_tokens', 'tokens']);
    assert((await keysOf('admin')).includes('decode'));
  });
});

test("official clients: OpenAI's sends its key as a bearer token, Anthropic's as x-api-key", async () => {
  const baseURL = cluster.url;
  const openai = (apiKey: string): OpenAI => new OpenAI({ baseURL: `${baseURL}/v1`, apiKey, maxRetries: 0 });
  const messages = [{ role: 'user', content: 'hello' } as const];
  const asked = { model: 'harbour', messages, max_tokens: 2 };
  const answer = await openai(keys.tenant).chat.completions.create(asked);
  assert.equal(answer.usage?.completion_tokens, 2);
  await assert.rejects(openai('wrong').chat.completions.create(asked), OpenAI.AuthenticationError);
  const anthropic = (apiKey: string): Anthropic => new Anthropic({ baseURL, apiKey, maxRetries: 0 });
  assert.equal((await anthropic(keys.tenant).messages.create(asked)).type, 'message');
  await assert.rejects(anthropic('wrong').messages.create(asked), Anthropic.AuthenticationError);
});

test('keys change while streams run: a new one is taken, a removed one is refused and its streams end, others go on', async () => {
  const fresh = await newKey('fresh', '--tenant', 'research');
  const isTaken = (key: string) => async (): Promise<boolean> => (await ask(key, '/v1/models')).status === 200;
  assert.equal(await isTaken(fresh)(), false);
  writeKeys();
  await until('the new key is taken', isTaken(fresh));
  const stream = async (key: string): Promise<string> => {
    const body = { model: 'harbour', prompt: 'a', max_tokens: 1_500, stream: true, ignore_eos: true };
    return (await post(key, '/v1/completions', body)).text();
  };
  // One after the other for as long as the file is changed, so that one runs at each moment.
  const over = new AbortController();
  const going = (async () => {
    for (;;) {
      const text = await stream(keys.tenant);
      if (over.signal.aborted || !text.includes('[DONE]')) return text;
    }
  })();
  const cut = (async () => {
    for (;;) {
      const text = await stream(fresh);
      if (!text.includes('[DONE]')) return text;
    }
  })();
  writeFileSync(file, '- name: [');
  writeKeys(['tenant', 'other', 'admin']);
  assert.match(await cut, /invalid_api_key/);
  await until('the removed key is refused', async () => !(await isTaken(fresh)()));
  over.abort();
  assert.match(await going, /\[DONE\]/);
  // A file that cannot be used is not used.
  writeFileSync(file, '- name: [');
  assert.equal(await isTaken(keys.tenant)(), true);
  writeKeys();
  await until('the keys are read again', isTaken(fresh));
});

describe('at the start', () => {
  const refusedBy = async (...args: string[]): Promise<string> => {
    const { code, errors } = await runToEnd(['router', '--hub-bind', '127.0.0.1:0', '--log-level', 'silent', ...args], {
      PENSTOCK_CLUSTER_TOKEN: 'a-token-of-this-test-0',
    });
    assert.equal(code, 2, errors);
    return errors;
  };

  test('a router beyond this machine needs keys, unless it is told that it needs none', async () => {
    assert.match(
      await refusedBy('--bind', '0.0.0.0:0'),
      /refusing to listen on 0\.0\.0\.0:0 without keys of clients.*Give --keys FILE .*or --no-auth/,
    );
    assert.match(await refusedBy('--keys', file, '--no-auth'), /--keys and --no-auth exclude one another/);
    // A port that is in use ends it after it has been let through.
    const other = createServer().listen(0, '0.0.0.0');
    await once(other, 'listening');
    const { port } = other.address() as AddressInfo;
    for (const more of [['--no-auth'], ['--keys', file, '--model', 'harbour', '--model', 'harbour-tools']]) {
      const child = run(
        ['router', '--hub-bind', '127.0.0.1:0', '--bind', `0.0.0.0:${port}`, '--log-level', 'silent', ...more],
        {
          PENSTOCK_CLUSTER_TOKEN: 'a-token-of-this-test-0',
        },
      );
      let errors = '';
      child.stderr?.on('data', (chunk: Buffer) => (errors += chunk.toString()));
      await once(child, 'close');
      assert.match(errors, /cannot listen on 0\.0\.0\.0/, `ended with ${child.exitCode ?? child.signalCode}`);
    }
    other.close();
  });

  test('a file that cannot be used is refused, with its line', async () => {
    const bad = join(folder.path, 'bad.yaml');
    writeFileSync(bad, '- name: alice\n  sha256: abc\n  tenant: t\n');
    assert.match(await refusedBy('--keys', bad), /bad\.yaml:2: sha256: the SHA-256 of a key/);
    assert.match(await refusedBy('--keys', join(folder.path, 'none.yaml')), /--keys .*none\.yaml: ENOENT/);
  });
});

describe('penstock key', () => {
  test('prints a key once and its entry, whose digest is the key’s', async () => {
    const { output } = await runToEnd(['key', 'carol', '--tenant', 'sales', '--admin', '--model', 'harbour']);
    const [, key = ''] = /^(penstock_[\w-]{43})$/m.exec(output) ?? [];
    assert.match(
      output,
      /- name: carol\n {2}sha256: "?[0-9a-f]{64}"?\n {2}tenant: sales\n {2}admin: true\n {2}models: \["harbour"\]/,
    );
    assert(key !== '' && output.indexOf(key) === output.lastIndexOf(key));
  });

  test('appends an entry to a file that its owner alone can read, and refuses names that are none', async () => {
    const own = join(folder.path, 'own.yaml');
    for (const name of ['one', 'two']) {
      const { output, code } = await runToEnd(['key', name, '--tenant', 't', '--append', own]);
      assert.deepEqual([code, /^penstock_[\w-]{43}\n$/.test(output)], [0, true]);
    }
    const { statSync, readFileSync } = await import('node:fs');
    assert.equal(statSync(own).mode & 0o777, 0o600);
    const again = await runToEnd(['key', 'two', '--tenant', 't', '--append', own]);
    assert.deepEqual([again.code, again.output], [2, '']);
    assert.match(again.errors, /--append .*own\.yaml: it has a key of the name two already/);
    assert.equal(readFileSync(own, 'utf8').match(/^- name/gm)?.length, 2);
    for (const args of [
      ['a b', '--tenant', 't'],
      ['a'],
      ['a', '--tenant', ''],
      ['--tenant', 't'],
      ['a', 'b', '--tenant', 't'],
      ['a', '--what'],
    ]) {
      const { code, errors } = await runToEnd(['key', ...args]);
      assert.equal(code, 2, `${args.join(' ')}: ${errors}`);
    }
  });
});
