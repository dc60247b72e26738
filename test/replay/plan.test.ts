/** The search for the cheapest cluster, over runs that answer at once. Not covered: the attainment of real runs. Budget: 2 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { costOf, planCluster, type InstanceCosts, type Plan } from '../../services/replay/plan.ts';
import { planCommand } from '../../services/replay/plan_command.ts';
import { readPlanLine } from '../../services/replay/plan_arguments.ts';
import type { ClusterSize } from '../../services/replay/replay_options.ts';
import { ConfigError } from '../../shared/base/options.ts';
import { Random } from '../../shared/base/random.ts';

const EQUAL: InstanceCosts = { prefill: 1, decode: 1, both: 1 };

/** A cluster meets the targets from these numbers on: of any part, or of pairs none of which may fall short. */
interface Needs {
  readonly both: number;
  readonly pairs: readonly (readonly [prefill: number, decode: number])[];
}

function attainmentOf(cluster: ClusterSize, { both, pairs }: Needs): number {
  const isEnough =
    cluster.kind === 'aggregated'
      ? cluster.numInstances >= both
      : pairs.some(([p, d]) => cluster.numPrefill >= p && cluster.numDecode >= d);
  return isEnough ? 0.95 : 0.5;
}

function plan(needs: Needs, costs = EQUAL, maxInstances = 64, maxRuns = 1_000): Promise<Plan> {
  const run = (cluster: ClusterSize): Promise<number> => Promise.resolve(attainmentOf(cluster, needs));
  return planCluster({ maxInstances, maxRuns, costs, targetShare: 0.9, run });
}

test('the cheapest cluster of each kind is found, as by trying all', async () => {
  const random = new Random(7);
  for (let round = 0; round < 300; round++) {
    const below = (n: number): number => 1 + random.below(n);
    const pairs = Array.from({ length: below(3) }, () => [below(20), below(20)] as const);
    const costs = { prefill: below(4), decode: below(4), both: below(4) };
    const needs = { both: below(30), pairs };
    const maxInstances = 24;
    const found = await plan(needs, costs, maxInstances);
    assert.equal(found.aggregated?.cost, needs.both <= maxInstances ? needs.both * costs.both : undefined);
    const possible = pairs
      .filter(([p, d]) => p + d <= maxInstances)
      .map(([numPrefill, numDecode]) => costOf({ kind: 'split', numPrefill, numDecode }, costs));
    const least = possible.length > 0 ? Math.min(...possible) : undefined;
    assert.equal(found.split?.cost, least, `round ${round}: ${JSON.stringify({ needs, costs })}`);
    assert(found.isComplete);
  }
});

test('few runs find a cluster of tens of instances', async () => {
  const { tried, aggregated, split } = await plan({ both: 23, pairs: [[9, 14]] });
  assert.deepEqual([aggregated?.cost, split?.cost], [23, 23]);
  assert(tried.length <= 24, `${tried.length} runs`);
});

test('a search that is out of runs says so', async () => {
  const { tried, isComplete } = await plan({ both: 23, pairs: [[9, 14]] }, EQUAL, 64, 5);
  assert.equal(tried.length, 5);
  assert(!isComplete);
});

test('the costs of roles arrive, and an instance of both costs as the dearer one', () => {
  assert.deepEqual(readPlanLine(['t', '--cost', 'prefill=2,decode=.5'])?.costs, { prefill: 2, decode: 0.5, both: 2 });
  assert.deepEqual(readPlanLine(['t', '--cost', 'both=3'])?.costs, { prefill: 1, decode: 1, both: 3 });
  for (const cost of ['prefill', 'prefill=0', 'store=1', 'prefill=-1', 'decode=1;both=1'])
    assert.throws(() => readPlanLine(['t', '--cost', cost]), ConfigError);
  assert.equal(readPlanLine(['--help']), undefined);
});

test('the command prints the clusters that were tried, and that no split is needed where any part costs no more', async () => {
  let text = '';
  const host = {
    clock: { nowMs: () => 0, wallMs: () => 0, sleep: () => Promise.resolve(), turn: () => Promise.resolve() },
    out: { write: (part: string) => (text += part) },
    errors: { write: () => true },
    fetchText: () => Promise.reject(new Error('no network')),
    machine: 'test',
  };
  const line = ['generate:zipf,requests=20', '--max-instances', '8', '--rate', '3'];
  const needs = { both: 3, pairs: [[2, 2] as const] };
  const rates: (number | undefined)[] = [];
  await planCommand(line, host, ({ ratePerSecond }) => {
    rates.push(ratePerSecond);
    return (cluster) => Promise.resolve(attainmentOf(cluster, needs));
  });
  assert.deepEqual(rates, [3]);
  assert.match(text, /^3 both +3 +95\.0 % +yes$/m);
  assert.match(text, /Least cost: 3 both \(cost 3\)\./);
  assert.match(text, /any instance may do any part, no split is needed; .* is 2 prefill \+ 2 decode \(cost 4\)/);
  text = '';
  await planCommand(
    [...line, '--cost', 'both=2'],
    host,
    () => (cluster) => Promise.resolve(attainmentOf(cluster, needs)),
  );
  assert.match(
    text,
    /Least cost: 2 prefill \+ 2 decode \(cost 4\)\.\nOf instances that do any part, 3 both \(cost 6\) would be needed/,
  );
});
