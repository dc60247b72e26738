/** Fair shares of an engine: what they promise, and that each promise is found broken where its guard is taken out. Budget: 60 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { queueOrderNames } from '../../shared/engine/queue_order.ts';
import { checkMutant, type UnitMutant } from '../support/unit_mutants.ts';
import { TimedEngine } from '../support/timed_engine.ts';
import { fairChecks, jain } from './fair_checks.ts';

describe('the engine keeps its promises:', () => {
  for (const [name, check] of Object.entries(fairChecks)) test(name, check);
});

const counters = 'shared/base/fair_shares.ts';
const order = 'shared/engine/fair_order.ts';
const mutants: readonly (readonly [name: string, breaks: keyof typeof fairChecks, mutant: UnitMutant])[] = [
  [
    'no lift on return',
    'whoever comes back has saved nothing up',
    { file: counters, from: 'Math.max(this.#left.get(name) ?? 0, leastMs);', to: 'this.#left.get(name) ?? 0;' },
  ],
  [
    'no memory of what a tenant had',
    'whoever had more than the others and comes back has it still',
    { file: counters, from: 'else if (share.virtualMs > this.#liftMs())', to: 'else if (false)' },
  ],
  [
    'a charge without hits',
    'rows that are hit cost nothing',
    {
      file: 'shared/engine/engine_time.ts',
      from: 'rowMs * count + readMs',
      to: 'rowMs * (count > 1 ? start + count : 1) + readMs',
    },
  ],
  [
    'a counter per key instead of tenant',
    'a thousand priorities have one share',
    {
      file: 'shared/engine/queued_sequences.ts',
      from: '({ request }) => request.sharer ?? NO_TENANT',
      to: '({ request: { sharer, priority } }) => ({ ...sharer, tenant: `${sharer.tenant} ${priority}` })',
    },
  ],
  [
    'age across tenants',
    'age counts within a tenant only',
    {
      file: order,
      from: 'let startMs = this.#shares.virtualMs(tenant)',
      to: 'let startMs = -1e6 * Math.floor((nowMs - sequences[0].times.submittedMs) / 30_000) + this.#shares.virtualMs(tenant)',
    },
  ],
  [
    'weights that nobody reads',
    'weights divide the time',
    { file: counters, from: 'share.virtualMs += ms / share.weight', to: 'share.virtualMs += ms' },
  ],
  [
    'priority across tenants',
    'a quiet tenant waits for the next free seat at most, whatever priorities others state',
    {
      file: order,
      from: 'const { precedence = 0 } = this.#reader.sharerOf(sequence);',
      to: 'const precedence = -(sequence.request.priority ?? 0);',
    },
  ],
  [
    'no fair order',
    'requests that cost 1 : 4 : 16 : 64 get equal time',
    { file: order, from: 'if (this.#shares.numTenants < 2)', to: 'if (true)' },
  ],
];

test.each(mutants)('%s breaks the promise: %s', async (_, breaks, mutant) => {
  await assert.rejects(checkMutant(mutant, 'test/engine/fair_checks.ts', 'fairChecks', breaks), assert.AssertionError);
});

test.each(queueOrderNames)('one tenant is served under %s as without fair shares, to the step', async (queueOrder) => {
  const runs: TimedEngine[] = [];
  for (const fairShares of [true, false]) {
    const random = new Random(5);
    const engine = new TimedEngine({ queueOrder, fairShares, maxNumSeqs: 10, chunkTokens: 64, numBlocks: 40 });
    for (let i = 0; i < 150; i++) {
      engine.submit({
        tenant: 'a',
        prompt: 1 + random.below(200),
        output: 1 + random.below(200),
        priority: random.below(3) - 1,
        precedence: random.below(2),
        weight: 1 + random.below(3),
        expectedTokens: random.below(60),
        prefix: random.below(3),
        prefixTokens: random.below(2) * 64,
      });
      await engine.run(engine.nowMs + random.below(60));
    }
    await engine.run();
    assert(engine.preempted.length > 0 && engine.outcomes.every(({ endMs }) => endMs !== undefined));
    runs.push(engine);
  }
  const [fair, plain] = runs;
  assert.deepEqual(fair!.outcomes, plain!.outcomes);
  assert.deepEqual([fair!.admitted, fair!.preempted], [plain!.admitted, plain!.preempted]);
});

test('blocks are taken from the tenant that has had the most, as seldom as without fair shares', async () => {
  const run = async (fairShares: boolean): Promise<TimedEngine> => {
    const engine = new TimedEngine({ maxNumSeqs: 12, numBlocks: 150, fairShares });
    for (let i = 0; i < 40; i++) engine.submit({ tenant: 'flood', prompt: 100, output: 400 });
    await engine.run(2_000);
    for (let i = 0; i < 5; i++) engine.submit({ tenant: 'quiet', prompt: 100, output: 100 });
    await engine.run();
    assert(engine.outcomes.every(({ endMs }) => endMs !== undefined));
    return engine;
  };
  const [fair, plain] = [await run(true), await run(false)];
  const isQuiet = (id: number): boolean => fair.outcomes[id]!.tenant === 'quiet';
  assert(plain.preempted.some(isQuiet), 'blocks run short for those that came last');
  assert.deepEqual(fair.preempted.filter(isQuiet), []);
  assert(fair.preempted.length <= 1.1 * plain.preempted.length);
});

test('tenants that take turns do not preempt one another by turns', async () => {
  const run = async (fairShares: boolean): Promise<TimedEngine> => {
    const engine = new TimedEngine({ maxNumSeqs: 12, numBlocks: 150, fairShares });
    for (const tenant of ['a', 'b']) engine.keep({ tenant, prompt: 100, output: 400 }, 20);
    await engine.run(40_000);
    return engine;
  };
  const [fair, plain] = [await run(true), await run(false)];
  assert(jain([fair.msOf('a'), fair.msOf('b')]) > 0.999);
  assert(plain.preempted.length > 200, 'blocks run short');
  assert(fair.preempted.length <= 1.15 * plain.preempted.length, `${fair.preempted.length}, ${plain.preempted.length}`);
  const numEnded = ({ outcomes }: TimedEngine): number => outcomes.filter(({ endMs }) => endMs !== undefined).length;
  assert(numEnded(fair) >= 0.95 * numEnded(plain), `${numEnded(fair)}, ${numEnded(plain)}`);
});

test('a full queue refuses the tenant that waits with the most, and the newcomer where that is its own', async () => {
  const engine = new TimedEngine({ maxNumSeqs: 1, maxWaiting: 10 });
  const long = { prompt: 64, output: 64 };
  for (let i = 0; i < 11; i++) {
    engine.submit({ ...long, tenant: 'flood' });
    if (i === 0) await engine.run(1);
  }
  assert.throws(() => engine.submit({ ...long, tenant: 'flood' }), { code: 'overloaded' });
  const quiet = Array.from({ length: 5 }, () => engine.submit({ ...long, tenant: 'quiet' }));
  assert.throws(() => engine.submit({ ...long, tenant: 'quiet' }), { code: 'overloaded' });
  const refused = engine.outcomes.filter((one) => one.refused === 'overloaded').map(({ id }) => id);
  // One holds device blocks; of the ten that wait, the last five make room.
  assert.deepEqual(refused, [6, 7, 8, 9, 10]);
  await engine.run();
  assert(quiet.every(({ endMs }) => endMs !== undefined));
});
