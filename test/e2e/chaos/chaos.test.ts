/**
 * The chaos programs, short: what comes out of them, never how long it took. `npm run chaos -- --minutes 10` runs them long, and
 * asserts gaps and times too. SEED=n repeats a run. Budget: 150 s.
 */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Random } from '../../../shared/base/random.ts';
import { Cluster } from '../../support/cluster.ts';
import { runAccessFuzz } from './access_fuzz.ts';
import { abuses, runAbuse } from './abuse.ts';
import { damages, runDamage } from './damage.ts';
import { runDurable } from './durable.ts';
import { runFuzz } from './fuzz.ts';
import { rewriteKeys } from './keys_fuzz.ts';
import { runKills } from './kills.ts';
import type { Answer } from './load.ts';
import { runBatches, runRate } from './rate.ts';
import { longTest, sampleOf, sized } from '../../support/long.ts';
import { assertNoneMatches } from '../../support/no_lines.ts';
import { until } from '../../support/until.ts';

const seed = Number(process.env['SEED'] ?? 20_261_122);

function expectEqual(answers: readonly Answer[]): void {
  const wrong = answers.filter(({ outcome }) => outcome !== 'equal');
  assert.deepEqual(
    wrong.map(({ outcome, message }) => `${outcome}: ${message}`),
    [],
    `SEED=${seed}`,
  );
}

test('while processes are killed and stopped, every answer is the right one', async () => {
  const least = { ms: sized(15_000, 3_000), strikes: sized(5, 2), answers: sized(21, 6) };
  const { answers } = await runKills(least, new Random(seed), sized(16, 10));
  expectEqual(answers);
});

test.each(sampleOf([['sealed', true] as const, ['in clear', false] as const], 2))(
  'a store whose files are damaged in every way serves on, and every answer is the right one: records %s',
  async (_, isSealed) => {
    // Each kind in the long run; else a quarter of them, which the seed picks.
    const numRounds = sized(Object.keys(damages).length, Math.ceil(Object.keys(damages).length / 4));
    const { rounds, answers } = await runDamage(numRounds, new Random(seed), isSealed);
    expect(rounds.length).toBe(numRounds);
    expectEqual(answers);
  },
);

test('S1: a store that is killed while it writes has what it called durable, and serves nothing that is not whole', async () => {
  const { numDurable, numLost, numRead, faults } = await runDurable(sized(6, 2), new Random(seed));
  assert.deepEqual(faults, [], `SEED=${seed}`);
  assert.equal(numLost, 0, `SEED=${seed}`);
  expect(numDurable).toBeGreaterThan(0);
  expect(numRead).toBeGreaterThan(numDurable);
});

longTest('malformed input is answered in the shape of the API where no keys are asked for', async () => {
  const cluster = await Cluster.up();
  try {
    const { statuses } = await runFuzz(cluster, 400, new Random(seed));
    expect(statuses[200]).toBeGreaterThan(10);
  } finally {
    await cluster.close();
  }
});

describe('one cluster with keys', () => {
  let cluster: Cluster;
  beforeAll(async () => {
    // eslint-disable-next-line time/speed -- ends bodies that dribble, which others send at once, and readers that stand still
    cluster = await Cluster.upWithKeys('--body-timeout-ms', '2000', '--stalled-reader-ms', '1000');
  });
  afterAll(async () => {
    await cluster.close();
  });

  test('short requests at full speed and batches of 255 all end well', async () => {
    const random = new Random(seed);
    // More resets than a Node server takes at once, had each call ended with one.
    const rate = await runRate(cluster, Infinity, random, 2_500);
    assert.deepEqual(rate.failures, []);
    expect(rate.numAnswered).toBeGreaterThanOrEqual(2_500);
    assert.deepEqual((await runBatches(cluster, 5, random)).failures, []);
    assertNoneMatches(cluster.errors, /MaxListeners/);
  });

  test.each(sampleOf(Object.entries(abuses), 3))('during %s a stream goes on', async (_name, abuse) => {
    const { error, numTokens } = await runAbuse(cluster, abuse);
    assert.equal(error, undefined);
    expect(numTokens).toBeGreaterThan(20);
  });

  test('malformed input is answered in the shape of the API, and no process ends', async () => {
    const { statuses } = await runFuzz(cluster, 400, new Random(seed));
    expect(statuses[200]).toBeGreaterThan(10);
    expect(statuses[400]).toBeGreaterThan(50);
  });

  test('keys, log-ins and files of keys that are malformed are refused, and right ones are taken meanwhile', async () => {
    let isOver = false;
    const rewriting = rewriteKeys(cluster, () => isOver, new Random(seed));
    const fuzzing = runAccessFuzz(cluster, sized(2_000, 400), new Random(seed)).finally(() => (isOver = true));
    const [statuses] = await Promise.all([fuzzing, rewriting]);
    for (const status of [200, 303, 401, 403]) expect(statuses[status], String(status)).toBeGreaterThan(5);
  });

  test('after all of it nothing is open, used or queued (R2)', async () => {
    await until('the router has nothing open but this question', async () => {
      const { requests, answers, body_bytes: bodyBytes, promises } = await cluster.open();
      return requests === 0 && answers === 0 && bodyBytes === 0 && promises === 0;
    });
    await cluster.idle();
  });
});
