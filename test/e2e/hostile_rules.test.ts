/**
 * Twelve clients of one tenant, each with a key of its own, that send hostile rules, next to another tenant: how many of theirs are refused before
 * the other's new rule is followed. A conversion takes 3 s of CPU time, far more than an answer, so the count does not depend on the speed of
 * the machine; test/text/grammar/hostile_rules.test.ts has the order itself. Budget: 20 s.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, test } from 'vitest';
import { keyDigest } from '../../shared/base/client_keys.ts';
import { slowToConvert } from '../grammar/slow_rules.ts';
import { Cluster, temporaryFolder } from '../support/cluster.ts';
import { sized } from '../support/long.ts';
import { until } from '../support/until.ts';

const NUM_CLIENTS = 12;
/** One conversion runs when the new rule comes, and another one may end before its answer is read; in one line all others would be first. */
const MOST = NUM_CLIENTS / 3;
const folder = temporaryFolder();
let cluster: Cluster;

beforeAll(async () => {
  const entry = (name: string, tenant: string): object => ({ name, tenant, sha256: keyDigest(name).toString('hex') });
  const hostile = Array.from({ length: NUM_CLIENTS }, (_, i) => entry(`hostile-${i}`, 'hostile'));
  const file = join(folder.path, 'keys.yaml');
  writeFileSync(file, JSON.stringify([...hostile, entry('quiet', 'quiet')]));
  cluster = await Cluster.inProcess('--keys', file, '--prefill', '0', '--store', '0');
});
afterAll(async () => {
  await cluster.close();
  folder.remove();
});

async function ask(key: string, body: object, signal: AbortSignal): Promise<{ status: number; text: string }> {
  const answer = await fetch(`${cluster.url}/v1/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ prompt: [5, 6, 7], max_tokens: 8, ...body }),
    signal,
  });
  return { status: answer.status, text: await answer.text() };
}

test('a new choice of another tenant is followed while those of the hostile one wait', async () => {
  const over = new AbortController();
  let [numSent, numRefused] = [0, 0];
  const client = async (_: unknown, number: number): Promise<void> => {
    while (!over.signal.aborted) {
      const { pattern } = slowToConvert(numSent++);
      const answer = await ask(`hostile-${number}`, { guided_regex: pattern }, over.signal).catch(() => undefined);
      if (!answer) return;
      assert.equal(answer.status, 400, answer.text);
      numRefused++;
    }
  };
  const clients = Promise.all(Array.from({ length: NUM_CLIENTS }, client));
  try {
    for (let round = 0; round < sized(15, 1); round++) {
      const numBefore = numRefused;
      await until('a hostile rule is refused, and others wait', () => numRefused > numBefore);
      const numAtArrival = numRefused;
      const { status, text } = await ask('quiet', { guided_choice: [`yes ${round}`] }, over.signal);
      assert.equal(status, 200, text);
      assert.equal((JSON.parse(text) as { choices: { text: string }[] }).choices[0]?.text, `yes ${round}`);
      assert(numRefused - numAtArrival <= MOST, `${numRefused - numAtArrival} hostile rules before its own`);
    }
  } finally {
    over.abort();
    await clients;
  }
});
