/** Turns that are shared fairly among keys, under a simulated clock. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { FairTurns } from '../../shared/base/fair_turns.ts';
import { SimulatedClock } from '../sim/simulated_clock.ts';

interface Begun {
  readonly clock: SimulatedClock;
  readonly turns: FairTurns;
  /** Names of the jobs, in the order in which they began, and of those that were refused. */
  readonly begun: string[];
  readonly refused: string[];
  /** Asks for a job of this length. */
  readonly ask: (key: string, name: string, ms: number, isSmall?: boolean) => void;
}

function made(maxWaiting = 100): Begun {
  const clock = new SimulatedClock();
  const turns = new FairTurns(clock, maxWaiting, () => new Error('refused'));
  const [begun, refused]: string[][] = [[], []];
  assert(begun && refused);
  const ask: Begun['ask'] = (key, name, ms, isSmall = false) => {
    const job = async (): Promise<void> => {
      begun.push(name);
      await clock.sleep(ms);
    };
    turns.run({ key, isSmall }, job).catch(() => refused.push(name));
  };
  return { clock, turns, begun, refused, ask };
}

test('a key of twice the weight has twice the time', async () => {
  const { clock, turns, begun } = made();
  for (let i = 0; i < 30; i++)
    for (const [key, weight] of [
      ['a', 2],
      ['b', 1],
    ] as const)
      void turns.run({ key, weight }, async () => {
        begun.push(key);
        await clock.sleep(10);
      });
  await clock.run(300);
  const numOf = (name: string): number => begun.filter((key) => key === name).length;
  assert(Math.abs(numOf('a') - 2 * numOf('b')) <= 3, `${numOf('a')} and ${numOf('b')}`);
});

test('jobs of one key run in their order', async () => {
  const { clock, begun, ask } = made();
  for (const name of ['1', '2', '3']) ask('a', name, 10);
  await clock.run(100);
  assert.deepEqual(begun, ['1', '2', '3']);
});

test('a key that asks for much delays another by one job, and the time of both is the same over long', async () => {
  const { clock, begun, ask } = made();
  for (let i = 0; i < 20; i++) ask('many', `m${i}`, 100);
  await clock.run(50);
  for (let i = 0; i < 8; i++) ask('few', `f${i}`, 50);
  await clock.run(100_000);
  assert.equal(begun[1], 'f0');
  // Two jobs of 50 ms for each of 100 ms.
  const upTo = begun.slice(0, begun.indexOf('f7'));
  assert.equal(upTo.filter((name) => name.startsWith('m')).length, 4);
  assert.equal(begun.length, 28);
});

test('a key that has not asked for long has saved nothing up; a small job is first among equals', async () => {
  const { clock, begun, ask } = made();
  for (let i = 0; i < 10; i++) ask('a', `a${i}`, 100);
  await clock.run(900);
  for (let i = 0; i < 3; i++) ask('b', `b${i}`, 100);
  ask('c', 'c', 1, true);
  await clock.run(10_000);
  assert.deepEqual(begun.slice(9), ['a9', 'c', 'b0', 'b1', 'b2']);
});

test('where too many wait, the last job of the key with the most is refused (P1)', async () => {
  const { clock, begun, refused, ask } = made(4);
  for (let i = 0; i < 5; i++) ask('many', `m${i}`, 10);
  ask('one', 'o', 10);
  ask('many', 'm5', 10);
  await clock.run(1_000);
  assert.deepEqual(
    [refused, begun],
    [
      ['m4', 'm5'],
      ['m0', 'o', 'm1', 'm2', 'm3'],
    ],
  );
});

test('a job that fails ends its turn', async () => {
  const { clock, turns, begun, ask } = made();
  const failed = turns.run({ key: 'a' }, () => Promise.reject(new Error('it fails')));
  ask('b', 'b', 1);
  await assert.rejects(failed, /it fails/);
  await clock.run(10);
  assert.deepEqual(begun, ['b']);
});

test('who joins a waiting job has it as early as one of its own; it is refused last', async () => {
  const { clock, turns, begun, refused, ask } = made(3);
  const named = (key: string, name: string): void => {
    turns
      .run({ key, name }, async () => {
        begun.push(name);
        await clock.sleep(100);
      })
      .catch(() => refused.push(name));
  };
  for (const name of ['m0', 'm1', 'm2', 'common']) named('many', name);
  turns.join('common', { key: 'other' });
  ask('third', 't', 100);
  await clock.run(1_000);
  assert.deepEqual([begun, refused], [['m0', 'common', 't', 'm1'], ['m2']]);
});

test('who joins a job keeps its weight', async () => {
  const { clock, turns, begun } = made();
  const ask = (key: string, weight: number, name: string): void => {
    void turns.run({ key, weight, name }, async () => {
      begun.push(key);
      await clock.sleep(10);
    });
  };
  for (let i = 0; i < 30; i++)
    for (const [key, weight] of [
      ['a', 4],
      ['b', 1],
    ] as const)
      ask(key, weight, `${key}${i}`);
  turns.join('b29', { key: 'a', weight: 4 });
  await clock.run(240);
  const numOf = (name: string): number => begun.filter((key) => key === name).length;
  assert(numOf('a') > 3 * numOf('b'), `${numOf('a')} and ${numOf('b')}`);
});

test('a key is not charged for what its job waits for before it begins', async () => {
  const { clock, turns, begun, ask } = made();
  const small = (name: string): void => {
    void turns.run({ key: 'small' }, async (begins) => {
      begun.push(name);
      await clock.sleep(500);
      begins();
      await clock.sleep(10);
    });
  };
  for (let i = 0; i < 10; i++) ask('large', `l${i}`, 100);
  await clock.run(50);
  small('s0');
  await clock.run(650);
  // Another one runs: if the first had been charged for 500 ms, the second would wait for four more.
  small('s1');
  await clock.run(10_000);
  assert.deepEqual(begun.slice(0, 4), ['l0', 's0', 'l1', 's1']);
});
