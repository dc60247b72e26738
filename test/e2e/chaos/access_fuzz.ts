/**
 * Malformed input of the access layer: keys that are wrong, cut, huge, sent twice or in the wrong place, forged log-ins, forms of rubbish. Each
 * is refused in the form of the API of its path, those that have a right key among them are not, and the log tells of no exception.
 */
import assert from 'node:assert/strict';
import { request as httpRequest } from 'node:http';
import type { Random } from '../../../shared/base/random.ts';
import type { Cluster } from '../../support/cluster.ts';
import { assertNoLines } from '../../support/no_lines.ts';
import { changedText, exceptionsIn, expectFromApi } from './fuzz.ts';

/** Pairs of names and values, in the order in which they are sent. */
type Headers = readonly (readonly [name: string, value: string])[];

/** Credentials of one request. */
interface Shown {
  readonly headers: Headers;
  /** Query of the URL. */
  readonly query?: string;
  /** The holder of the key that a router finds in it. */
  readonly who: 'nobody' | 'client' | 'admin';
}

interface Reply {
  readonly status: number;
  readonly type: string;
  readonly text: string;
}

type Path = readonly [method: 'GET' | 'POST' | 'DELETE' | 'HEAD', path: string, least: 'client' | 'admin'];

/** Paths that take a key, with the least that may use them. */
const PATHS: readonly [Path, ...Path[]] = [
  ['POST', '/v1/chat/completions', 'client'],
  ['POST', '/v1/completions', 'client'],
  ['POST', '/v1/embeddings', 'client'],
  ['POST', '/v1/responses', 'client'],
  ['POST', '/v1/messages', 'client'],
  ['POST', '/v1/messages/count_tokens', 'client'],
  ['POST', '/tokenize', 'client'],
  ['POST', '/detokenize', 'client'],
  ['POST', '/invocations', 'client'],
  ['GET', '/v1/responses/resp_1', 'client'],
  ['DELETE', '/v1/responses/%00', 'client'],
  ['GET', '/v1/models', 'client'],
  ['HEAD', '/v1/models', 'client'],
  ['GET', '/v1/models/%F0%9F%8D%AA', 'client'],
  ['GET', '/openapi.json', 'client'],
  ['GET', '/load', 'client'],
  ['GET', '/metrics', 'admin'],
  ['GET', '/api/pool', 'admin'],
  ['GET', '/api/requests', 'admin'],
  ['GET', '/api/requests/nope', 'admin'],
  ['GET', '/api/session', 'admin'],
  ['POST', '/api/lookup', 'admin'],
  ['GET', '/dashboard', 'admin'],
  ['GET', '/dashboard/app.js', 'admin'],
];

/** Text of UTF-8 as headers carry it: a character for each byte. */
const bytes = (text: string): string => Buffer.from(text).toString('latin1');

/** Makes credentials of every kind from right ones. */
class Credentials {
  readonly #client: string;
  readonly #admin: string;
  /** Cookie of a log-in, `NAME=VALUE`. */
  readonly #cookie: string;
  readonly #random: Random;

  constructor(client: string, admin: string, cookie: string, random: Random) {
    [this.#client, this.#admin, this.#cookie, this.#random] = [client, admin, cookie, random];
  }

  next(): Shown {
    return this.#random.pick([this.#right, this.#wrong, this.#several, this.#misplaced, this.#loggedIn]).call(this);
  }

  #right(this: Credentials): Shown {
    const who = this.#random.pick(['client', 'admin'] as const);
    const key = who === 'client' ? this.#client : this.#admin;
    const headers = this.#random.pick<Headers>([
      [['authorization', `Bearer ${key}`]],
      [['AUTHORIZATION', `bEARER   ${key}  `]],
      [['x-api-key', key]],
      // A scheme that has no key, as of a proxy in front.
      [
        ['authorization', 'Basic Zm9vOmJhcg=='],
        ['x-api-key', key],
      ],
    ]);
    return { headers, who };
  }

  /** Returns a text that is no key. */
  #noKey(): string {
    const [key, random] = [this.#client, this.#random];
    const at = 1 + random.below(key.length - 1);
    return random.pick([
      key.slice(0, at),
      key.slice(at),
      `${key}x`,
      key.toUpperCase(),
      `${key.slice(0, at)}\t${key.slice(at)}`,
      `penstock_${key}`,
      `${key},${key}`,
      bytes('ключ-🔑'),
      `${key}\u00a0`,
      'x'.repeat(random.pick([512, 513, 600, 10_240, 12_000])),
      'é'.repeat(5_000),
      ' '.repeat(10_000),
      '{"key":null}',
      '__proto__',
      '0'.repeat(64),
      '',
    ]);
  }

  #wrong(this: Credentials): Shown {
    const text = this.#noKey();
    const scheme = this.#random.pick(['Bearer ', 'bearer ', 'Bearer', 'Basic ', 'Digest ', 'Bearer Bearer ', '']);
    const header = this.#random.pick([['authorization', `${scheme}${text}`] as const, ['x-api-key', text] as const]);
    return { headers: [header], who: 'nobody' };
  }

  /** Several headers with a key: the first Authorization counts, then x-api-key, of which two are none. */
  #several(this: Credentials): Shown {
    const [right, wrong] = [`Bearer ${this.#client}`, `Bearer x${this.#noKey().replace(/\s/g, '')}`];
    return this.#random.pick<Shown>([
      { headers: [['authorization', right], ['authorization', wrong]], who: 'client' }, // prettier-ignore
      { headers: [['authorization', wrong], ['authorization', right]], who: 'nobody' }, // prettier-ignore
      { headers: [['authorization', wrong], ['x-api-key', this.#client]], who: 'nobody' }, // prettier-ignore
      { headers: [['x-api-key', this.#noKey()], ['authorization', right]], who: 'client' }, // prettier-ignore
      { headers: [['authorization', right], ['x-api-key', this.#admin]], who: 'client' }, // prettier-ignore
      { headers: [['x-api-key', this.#client], ['x-api-key', this.#client]], who: 'nobody' }, // prettier-ignore
    ]);
  }

  /** A right key where none is looked for. */
  #misplaced(this: Credentials): Shown {
    const name = this.#random.pick([
      'api_key',
      'api-key',
      'key',
      'token',
      'Authorization',
      'x-api-key',
      '%',
      'a=%ff&key',
    ]);
    return this.#random.pick<Shown>([
      { headers: [], query: `?${name}=${this.#admin}`, who: 'nobody' },
      { headers: [], query: `?${'a=1&'.repeat(2_000)}key=${this.#admin}`, who: 'nobody' },
      { headers: [['cookie', `authorization=Bearer ${this.#admin}`]], who: 'nobody' },
      { headers: [['proxy-authorization', `Bearer ${this.#admin}`]], who: 'nobody' },
      { headers: [['api-key', this.#admin]], who: 'nobody' },
      { headers: [], who: 'nobody' },
    ]);
  }

  /** Cookies of log-ins, of which only the first is right. */
  #loggedIn(this: Credentials): Shown {
    const [cookie, random] = [this.#cookie, this.#random];
    const [name = '', value = ''] = cookie.split('=');
    const [key = '', expiry = '', mac = ''] = value.split('.');
    const other = mac.startsWith('A') ? 'B' : 'A';
    const forged = random.pick([
      `${name}=${key}.${expiry}.${other}${mac.slice(1)}`,
      `${name}=${key}.1.${mac}`,
      `${name}=${key}.${'9'.repeat(12)}.${mac}`,
      `${name}=${Buffer.from('__proto__').toString('base64url')}.${expiry}.${mac}`,
      `${name}=${key}.${expiry}.`,
      `${name}=${bytes('🍪')}`,
      `${name}=${value.slice(0, random.below(value.length))}`,
      `${name}x=${value}`,
      `${name}=${key}.1.${mac}; `.repeat(80),
      ';'.repeat(12_000),
      ' '.repeat(12_000),
      `${name}=${'a'.repeat(11_000)}`,
    ]);
    return random.pick<Shown>([
      { headers: [['cookie', cookie]], who: 'admin' },
      { headers: [['cookie', `a=1; ${cookie}`]], who: 'admin' },
      { headers: [['cookie', `${name}=${key}.1.${mac}; ${cookie}`]], who: 'admin' },
      { headers: [['cookie', forged]], who: 'nobody' },
      { headers: [['cookie', forged]], who: 'nobody' },
      { headers: [['cookie', cookie], ['sec-fetch-site', 'cross-site']], who: 'nobody' }, // prettier-ignore
      { headers: [['cookie', cookie], ['origin', bytes('http://é')]], who: 'nobody' }, // prettier-ignore
      // A key that is shown counts alone.
      { headers: [['cookie', cookie], ['x-api-key', 'wrong']], who: 'nobody' }, // prettier-ignore
    ]);
  }
}

/** Sends headers as they are, those of one name several times, over a connection of its own. */
async function send(
  cluster: Cluster,
  method: string,
  path: string,
  headers: Headers,
  body: string | undefined,
): Promise<Reply> {
  const { host, hostname, port } = new URL(cluster.url);
  const all = [['host', host], ['connection', 'close'], ...headers]; // prettier-ignore
  if (body !== undefined) all.push(['content-length', String(Buffer.byteLength(body))]);
  return new Promise((resolve, reject) => {
    const request = httpRequest({ hostname, port, method, path, headers: all.flat() }, (response) => {
      const chunks: Buffer[] = [];
      response.on('data', (chunk: Buffer) => chunks.push(chunk));
      response.once('error', reject);
      response.once('end', () => {
        const { statusCode: status = 0, headers: replied } = response;
        resolve({ status, type: replied['content-type'] ?? '', text: Buffer.concat(chunks).toString() });
      });
    });
    request.once('error', reject);
    request.end(body);
  });
}

async function one(cluster: Cluster, shown: Shown, random: Random): Promise<number> {
  const [method, path, least] = random.pick(PATHS);
  const body = method === 'POST' ? random.pick(['{}', '{"prompt":[5],"max_tokens":1}', '{', '', '\u0000']) : undefined;
  const type: Headers =
    body === undefined ? [] : [['content-type', random.pick(['application/json', 'text/plain', 'x'])]];
  const { status, text } = await send(cluster, method, path + (shown.query ?? ''), [...shown.headers, ...type], body);
  const asked = `${method} ${path} ${JSON.stringify(shown).slice(0, 500)}`;
  const what = `${asked}: ${status} ${text.slice(0, 300)}`;
  // Pages of other origins are refused before their key is looked at.
  const isOfOtherPage = shown.headers.some(([name]) => name === 'sec-fetch-site' || name === 'origin');
  if (shown.who === 'nobody') assert(status === 401 || (isOfOtherPage && status === 403), what);
  else if (shown.who === 'client' && least === 'admin') assert.equal(status, 403, what);
  else assert(status !== 401 && status !== 403, what);
  if (method !== 'HEAD') expectFromApi(path, status, text, asked);
  return status;
}

/** Sends something to the log-in page: it logs in whoever shows an admin's key, and else says on the page what is wrong. */
async function logIn(cluster: Cluster, client: string, random: Random): Promise<number> {
  const right = `key=${cluster.key}`;
  const body = random.pick([
    right,
    changedText(right, random),
    `key=${client}`,
    `key=${encodeURIComponent('ключ')}`,
    `key=%ff%00&key=${cluster.key}`,
    'key='.repeat(900),
    '{"key":1}',
    '[]',
    'null',
    '',
    'a'.repeat(random.pick([4_096, 4_097, 100_000])),
  ]);
  const form = 'application/x-www-form-urlencoded';
  const type = random.pick([form, form, form, `${form}; charset=utf-7`, 'application/json', 'multipart/form-data', '']);
  const headers: Headers = type === '' ? [] : [['content-type', type]];
  const path = random.pick(['/dashboard/login', '/dashboard/login', '/dashboard/logout']);
  const reply = await send(cluster, 'POST', path, headers, body);
  const what = `${path} ${type} ${body.slice(0, 200)}: ${reply.status} ${reply.text.slice(0, 300)}`;
  assert([303, 400, 401, 403, 413, 415].includes(reply.status), what);
  if (path === '/dashboard/login' && reply.status !== 303) assert.match(reply.type, /^text\/html/, what);
  if (body === right && type === form) assert.equal(reply.status, 303, what);
  return reply.status;
}

/** Logs in as a browser does. @returns the cookie, `NAME=VALUE` */
async function cookieOf(cluster: Cluster): Promise<string> {
  const form = { method: 'POST', body: new URLSearchParams({ key: cluster.key }), redirect: 'manual' } as const;
  const cookie = (await fetch(`${cluster.url}/dashboard/login`, form)).headers.get('set-cookie');
  assert(cookie);
  return cookie.split(';', 1)[0] ?? '';
}

/** Sends so many malformed requests to a cluster with keys. @returns the answers by status */
export async function runAccessFuzz(
  cluster: Cluster,
  count: number,
  random: Random,
): Promise<Readonly<Record<number, number>>> {
  const statuses: Record<number, number> = {};
  const client = (cluster.clientHeaders(0)['authorization'] ?? '').replace('Bearer ', '');
  const credentials = new Credentials(client, cluster.key, await cookieOf(cluster), random);
  const worker = async (): Promise<void> => {
    for (let i = 0; i < count / 4; i++) {
      const status = random.chance(1, 6)
        ? await logIn(cluster, client, random)
        : await one(cluster, credentials.next(), random);
      statuses[status] = (statuses[status] ?? 0) + 1;
    }
  };
  await Promise.all(Array.from({ length: 4 }, worker));
  assertNoLines(exceptionsIn(cluster.errors));
  return statuses;
}
