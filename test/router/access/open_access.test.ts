/** Which of a key and a log-in a request counts under, where it has both. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { keyDigest, keyTextOf } from '../../../shared/base/client_keys.ts';
import { systemClock } from '../../../shared/base/clock.ts';
import { Current } from '../../../shared/base/current.ts';
import { openAccess } from '../../../services/router/access/open_access.ts';

const [ROOT, ALICE] = [1, 2].map((n) => keyTextOf(Buffer.alloc(32, n))) as [string, string];
const text = [
  ['root', ROOT],
  ['alice', ALICE],
]
  .map(
    ([name = '', key = '']) => `- {name: ${name}, sha256: "${keyDigest(key).toString('hex')}", tenant: t, admin: true}`,
  )
  .join('\n');

test('a key goes before a log-in; an Authorization of another scheme, which a proxy in front asks for, is no key', () => {
  const access = openAccess(
    {
      config: { keys: 'keys.yaml', revoke: 'finish', no_auth: false, allow_priority: false, cluster: 'default' },
      watchFiles: ({ read }) => new Current(read([text], undefined)),
      clock: systemClock,
      clusterTokens: new Current('a-token-of-this-test'),
      newId: () => 'id',
      signal: new AbortController().signal,
    },
    ['m'],
  );
  const known = access.logIns?.keys.find(ROOT);
  assert(known && access.logIns);
  const [cookie = ''] = access.logIns.sessions.begin(known, false).split(';');
  const who = (headers: Record<string, string>): string => {
    try {
      return access.callerOf({ url: '/api/pool', headers: { cookie, host: 'router:8000', ...headers } }).key;
    } catch (error) {
      return (error as Error).message;
    }
  };
  assert.equal(who({}), 'root');
  assert.equal(who({ authorization: 'Basic eDp5' }), 'root');
  assert.equal(who({ authorization: 'Bearer' }), 'root');
  assert.equal(who({ 'x-api-key': '' }), 'root');
  assert.equal(who({ authorization: `Bearer ${ALICE}` }), 'alice');
  assert.equal(who({ authorization: 'Basic eDp5', 'x-api-key': ALICE }), 'alice');
  assert.match(who({ authorization: 'Bearer wrong' }), /not known here/);
  assert.match(who({ 'x-api-key': 'wrong' }), /not known here/);
  assert.match(who({ cookie: '', authorization: 'Basic eDp5' }), /no bearer token/);
});
