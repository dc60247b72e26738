/** Keys and log-ins: who is found by what a request comes with, and what becomes of it when keys change. Budget: 2 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { keyDigest, keyTextOf } from '../../../shared/base/client_keys.ts';
import { systemClock } from '../../../shared/base/clock.ts';
import { Failure } from '../../../shared/base/failure.ts';
import { Keys } from '../../../services/router/access/keys.ts';
import { readKeysFile, type KeyEntry } from '../../../services/router/access/keys_file.ts';
import { Sessions } from '../../../services/router/access/sessions.ts';

const keyOf = (n: number): string => keyTextOf(Buffer.alloc(32, n));
const [ALICE, BOB, ROOT] = [keyOf(1), keyOf(2), keyOf(3)];

function entriesOf(
  ...texts: readonly (readonly [name: string, key: string, tenant: string, more?: string])[]
): readonly KeyEntry[] {
  const lines = texts.map(([name, key, tenant, more = '']) => {
    return `- {name: ${name}, sha256: "${keyDigest(key).toString('hex')}", tenant: ${tenant}${more}}`;
  });
  return readKeysFile('keys.yaml', lines.join('\n'), ['m']);
}

const usual = entriesOf(
  ['alice', ALICE, 'research'],
  ['bob', BOB, 'sales', ', sharing: all, weight: 2'],
  ['root', ROOT, 'ops', ', admin: true'],
);
const ask = (keys: Keys, headers: Record<string, string>, url = '/v1/models'): string => {
  try {
    return keys.callerOf({ url, headers }).key;
  } catch (error) {
    assert(error instanceof Failure && error.code === 'invalid_api_key' && error.status === 401);
    return error.message;
  }
};

test('a key is taken as a bearer token or as x-api-key, whatever the case of the scheme', () => {
  const keys = new Keys(usual, false);
  for (const headers of [
    { authorization: `Bearer ${ALICE}` },
    { authorization: `bearer   ${ALICE}  ` },
    { 'x-api-key': ALICE },
    { authorization: 'Basic eDp5', 'x-api-key': ALICE },
    { authorization: `Bearer ${ALICE}`, 'x-api-key': 'something else' },
  ])
    assert.equal(ask(keys, headers), 'alice', JSON.stringify(headers));
});

test('anything else is refused, and the message says what to do', () => {
  const keys = new Keys(usual, false);
  const cases: readonly (readonly [Record<string, string>, RegExp, string?])[] = [
    [{}, /asks for an API key: send the header `Authorization: Bearer KEY`/],
    [{ authorization: '' }, /no bearer token/],
    [{ authorization: 'Bearer' }, /no bearer token/],
    [{ authorization: `Basic ${ALICE}` }, /no bearer token/],
    [{ authorization: ALICE }, /no bearer token/],
    [{ authorization: 'Bearer sk-other' }, /not known here/],
    [{ authorization: `Bearer ${ALICE.slice(0, -1)}` }, /not known here/],
    [{ authorization: `Bearer ${keyDigest(ALICE).toString('hex')}` }, /not known here/],
    [{ authorization: `Bearer ${ALICE}${ALICE}` }, /not known here/],
    [{ authorization: `Bearer ${'a'.repeat(10_240)}` }, /over 512 characters/],
    [{ 'x-api-key': 'a'.repeat(10_240) }, /over 512 characters/],
    [{}, /a key in a URL ends up in logs/, `/v1/models?api_key=${ALICE}`],
    [{}, /a key in a URL/, `/v1/models?x=1&Access_Token=${ALICE}`],
    [{}, /asks for an API key/, '/v1/models?monkey=1'],
  ];
  for (const [headers, message, url] of cases) {
    const answer = ask(keys, headers, url);
    assert.match(answer, message);
    assert(!answer.includes(ALICE), 'no message repeats a key');
  }
});

test('a caller has what its entry and its tenant state', () => {
  const more = ', limits: {requests_in_flight: 3}, sharing: all';
  const keys = new Keys(
    entriesOf(
      ['a', ALICE, 't'],
      ['b', BOB, 't', more],
      ['c', ROOT, 'u', ', admin: true, models: [m], max_priority: 4, targets: {ttft_ms: 9}'],
    ),
    false,
  );
  const [a, c] = [ALICE, ROOT].map((key) => keys.find(key)?.caller);
  assert.deepEqual([a?.cacheTenant, a?.limits.maxRequests, a?.isAdmin, a?.models], ['', 3, false, undefined]);
  assert.deepEqual([c?.tenant, c?.cacheTenant, c?.isAdmin, c?.maxPriority, c?.targets?.ttftMs], ['u', 'u', true, 4, 9]);
  assert.deepEqual([...(c?.models ?? [])], ['m']);
  assert.deepEqual(
    ['t', 'u', 'v'].map((tenant) => keys.sharesBlocks(tenant)),
    [true, false, false],
  );
});

test('keys are replaced while requests run: a removed one is refused at once, and its requests end if they are to', () => {
  for (const isAborting of [false, true]) {
    const keys = new Keys(usual, isAborting);
    const [alice, bob] = [ALICE, BOB].map((key) => keys.find(key)?.caller.revoked);
    // Bob's weight changes, alice's key goes, a new one comes.
    keys.replace(entriesOf(['bob', BOB, 'sales', ', sharing: all, weight: 5'], ['carol', keyOf(4), 'sales']));
    assert.match(ask(keys, { 'x-api-key': ALICE }), /not known here, or has been removed/);
    assert.deepEqual([ask(keys, { 'x-api-key': BOB }), ask(keys, { 'x-api-key': keyOf(4) })], ['bob', 'carol']);
    assert.equal(keys.find(BOB)?.caller.weight, 5);
    assert.deepEqual([alice?.aborted, bob?.aborted], isAborting ? [true, false] : [undefined, undefined]);
    if (isAborting) assert.match(String(alice?.reason), /key of this request has been removed/);
    // A second change still knows bob's requests.
    keys.replace(entriesOf(['bob', keyOf(5), 'sales']));
    if (isAborting) assert.equal(bob?.aborted, true);
  }
});

test('a key with another name is the same key: its requests go on, also where two change their names', () => {
  const keys = new Keys(usual, true);
  const [alice, bob] = [ALICE, BOB].map((key) => keys.find(key)?.caller.revoked);
  keys.replace(entriesOf(['bob', ALICE, 'research'], ['alice', BOB, 'sales']));
  assert.deepEqual([ask(keys, { 'x-api-key': ALICE }), alice?.aborted, bob?.aborted], ['bob', false, false]);
  keys.replace(entriesOf(['carol', ALICE, 'research']));
  assert.deepEqual([ask(keys, { 'x-api-key': ALICE }), alice?.aborted, bob?.aborted], ['carol', false, true]);
  keys.replace(entriesOf(['bob', BOB, 'sales']));
  assert.equal(alice?.aborted, true);
});

test('an admin who is none any more, or of another tenant, has no open requests under the old right', () => {
  const keys = new Keys(usual, true);
  const [root, alice] = [ROOT, ALICE].map((key) => keys.find(key)?.caller.revoked);
  keys.replace(entriesOf(['alice', ALICE, 'other'], ['root', ROOT, 'ops']));
  assert.deepEqual([root?.aborted, alice?.aborted], [true, true]);
});

interface Browser {
  readonly keys: Keys;
  readonly sessions: Sessions;
  /** Lets this many ms pass. */
  readonly pass: (ms: number) => void;
  readonly secret: { value: string };
  readonly cookie: string;
}

function loggedIn(cluster = 'default'): Browser {
  let nowMs = 1_000_000;
  const clock = { ...systemClock, wallMs: () => nowMs };
  const pass = (ms: number): void => {
    nowMs += ms;
  };
  const keys = new Keys(usual, false);
  const secret = { value: 'first-token' };
  const sessions = new Sessions({ keys, cluster, secrets: () => secret.value, clock });
  const known = keys.find(ROOT);
  assert(known);
  const header = sessions.begin(known, false);
  assert.match(header, /^penstock_session_[0-9a-f]{8}=[\w.-]+; Path=\/; HttpOnly; SameSite=Strict; Max-Age=43200$/);
  assert.match(sessions.begin(known, true), /; Secure;/);
  return { keys, sessions, pass, secret, cookie: header.slice(0, header.indexOf(';')) };
}

const host = 'router:8000';

test('a log-in holds for twelve hours, at every router with a token of the cluster, until its key is removed', () => {
  const { keys, sessions, pass, secret, cookie } = loggedIn();
  const who = (): string | undefined => sessions.callerOf({ host, cookie: `other=1; ${cookie}; more=2` })?.key;
  assert.equal(who(), 'root');
  secret.value = 'second-token\nfirst-token';
  assert.equal(who(), 'root');
  secret.value = 'second-token';
  assert.equal(who(), undefined);
  secret.value = 'first-token';
  pass(12 * 3_600_000 - 1_000);
  assert.equal(who(), 'root');
  pass(1_000);
  assert.equal(who(), undefined);
  const later = loggedIn();
  later.keys.replace(entriesOf(['root', keyOf(9), 'ops', ', admin: true']));
  assert.equal(later.sessions.callerOf({ host, cookie: later.cookie }), undefined);
  assert.equal(keys.find(ROOT)?.caller.key, 'root');
});

test('a cookie that was changed, or made without the secret, is none', () => {
  const { sessions, cookie } = loggedIn();
  const field = cookie.slice(0, cookie.indexOf('='));
  const [name = '', expiry = '', mac = ''] = cookie.slice(field.length + 1).split('.');
  const alice = Buffer.from('alice').toString('base64url');
  for (const [n, e, m] of [
    [alice, expiry, mac],
    [name, String(Number(expiry) + 1), mac],
    [name, expiry, `${mac.slice(0, -1)}${mac.endsWith('A') ? 'E' : 'A'}`],
    [name, expiry, ''],
    ['', expiry, mac],
    [name, `${expiry}x`, mac],
  ])
    assert.equal(sessions.callerOf({ host, cookie: `${field}=${n}.${e}.${m}` }), undefined);
  assert.equal(sessions.callerOf({ host, cookie: `x${cookie}` }), undefined);
  assert.equal(sessions.callerOf({ host }), undefined);
});

test('clusters of one host have cookies of their own, and of several of one name each is tried, up to eight', () => {
  const [own, other] = [loggedIn('one'), loggedIn('two')];
  assert.notEqual(own.cookie.split('=')[0], other.cookie.split('=')[0]);
  const who = (cookie: string): string | undefined => own.sessions.callerOf({ host, cookie })?.key;
  assert.equal(who(`${other.cookie}; ${own.cookie}`), 'root');
  assert.equal(who(other.cookie), undefined);
  const old = own.cookie.replace(/\.[\w-]+$/, `.${'A'.repeat(43)}`);
  assert.equal(who(`${old}; ${own.cookie}`), 'root');
  assert.equal(who([...Array.from({ length: 7 }, () => old), own.cookie].join('; ')), 'root');
  assert.equal(who([...Array.from({ length: 8 }, () => old), own.cookie].join('; ')), undefined);
});

test('a log-in counts for pages of this server only, not for those of another port of its host', () => {
  const { sessions, cookie } = loggedIn();
  const who = (more: Record<string, string>): string | undefined => sessions.callerOf({ host, cookie, ...more })?.key;
  for (const more of [
    {},
    { 'sec-fetch-site': 'same-origin', origin: `http://${host}` },
    // A proxy in front may have put another Host in the place of the browser's.
    { 'sec-fetch-site': 'same-origin', origin: 'https://penstock.example' },
    { 'sec-fetch-site': 'none' },
    { origin: `https://${host}` },
  ])
    assert.equal(who(more), 'root', JSON.stringify(more));
  for (const more of [
    { 'sec-fetch-site': 'same-site' },
    { 'sec-fetch-site': 'cross-site' },
    { 'sec-fetch-site': 'same-site', origin: `http://${host}` },
    { 'sec-fetch-site': 'none', origin: 'http://evil.example' },
    { origin: 'http://router:3000' },
    { origin: 'http://evil.example' },
    { origin: 'null' },
  ])
    assert.equal(who(more), undefined, JSON.stringify(more));
});
