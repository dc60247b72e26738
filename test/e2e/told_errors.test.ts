/**
 * Errors that clients read over a running cluster: no address and no name of an instance, which `/api/requests` has. The forms of all APIs:
 * test/net/status.test.ts; lost instances: test/router/relay/relay.test.ts. Budget: 15 s.
 */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, test } from 'vitest';
import { CLIENT_KEY, Cluster } from '../support/cluster.ts';

const INSIDE = /127\.0\.0\.1|localhost|decode-\d|prefill-\d|store-\d/;
const chat = { model: 'harbour', max_tokens: 4, messages: [{ role: 'user', content: 'hello' }] };
const completion = { model: 'harbour', max_tokens: 4, prompt: 'hello' };
let cluster: Cluster;

beforeAll(async () => {
  cluster = await Cluster.withKeys('--model', 'harbour', '--decode', '1', '--prefill', '1');
});
afterAll(() => cluster.close());

/** Asks with a client's key. Returns the text of the answer. */
async function told(path: string, body: object): Promise<string> {
  const headers = { authorization: `Bearer ${CLIENT_KEY}`, 'content-type': 'application/json' };
  const answer = await fetch(`${cluster.url}${path}`, { method: 'POST', headers, body: JSON.stringify(body) });
  return answer.text();
}

test('a client reads what an instance has against its request, and not which instance', async () => {
  const none = { allowed_token_ids: [5], bad_words: ['\u0002'] };
  const words = /"error":.*no token is left: the grammar, bad_words and allowed_token_ids exclude all/;
  for (const [path, body] of [
    ['/v1/chat/completions', chat],
    ['/v1/completions', completion],
  ] as const)
    for (const stream of [false, true]) {
      const text = await told(path, { ...body, ...none, stream });
      assert.match(text, words);
      assert.doesNotMatch(text, INSIDE);
      const [inside] = (await cluster.requests(1)) as unknown as { error: string | null }[];
      assert.match(inside?.error ?? '', /^127\.0\.0\.1:\d+: no token is left/);
    }
});
