/** Where samples of one prompt are placed: together in each round, whoever fails meanwhile. */
import assert from 'node:assert/strict';
import { describe, expect, test } from 'vitest';
import { SampleGroup, type Placed, type SamplePlacement } from '../../../services/router/relay/sample_group.ts';

/** A conductor that places each leader at the next instance, when it is told to. */
class Conductor {
  readonly leaders: object[] = [];
  readonly #waiting: { resolve: (placed: Placed) => void; reject: (error: Error) => void; decode: string }[] = [];

  placement(sample: object, mayFollow = true): SamplePlacement {
    return {
      mayFollow: () => mayFollow,
      lead: () =>
        new Promise((resolve, reject) => {
          this.leaders.push(sample);
          this.#waiting.push({ resolve, reject, decode: `decode-${this.leaders.length}` });
        }),
      follow: (leader) => Promise.resolve({ ...leader, numTokens: 7 }),
    };
  }

  async answer(error?: Error): Promise<void> {
    const one = this.#waiting.shift();
    assert(one);
    if (error) one.reject(error);
    else one.resolve({ chosen: { decode: { id: one.decode } }, blocks: {}, numTokens: 5 } as unknown as Placed);
    await new Promise(setImmediate);
  }
}

const decodeOf = ({ chosen }: Placed): string => chosen.decode.id;
const samples = ['a', 'b', 'c'].map((name) => ({ name }));
const [a, b, c] = samples as [object, object, object];

test('the first leads, the others follow it to its instance, numbered as they come', async () => {
  const conductor = new Conductor();
  const group = new SampleGroup('r', 3);
  const all = samples.map((sample) => group.place(sample, conductor.placement(sample)));
  await conductor.answer();
  const placed = await Promise.all(all);
  assert.deepEqual(placed.map(decodeOf), ['decode-1', 'decode-1', 'decode-1']);
  assert.deepEqual(
    placed.map((one) => one.group),
    [0, 1, 2].map((index) => ({ id: 'r.1', index, size: 3 })),
  );
  // The leader computes the prompt, the others ask for their own placement of blocks.
  assert.deepEqual(
    placed.map(({ numTokens }) => numTokens),
    [5, 7, 7],
  );
  assert.deepEqual(conductor.leaders, [a]);
});

test('after a failure the first to return leads another round, which the others join, in any order, and for which nobody waits', async () => {
  const conductor = new Conductor();
  const group = new SampleGroup('r', 3);
  const all = samples.map((sample) => group.place(sample, conductor.placement(sample)));
  await conductor.answer();
  await Promise.all(all);
  const again = [c, a].map((sample) => group.place(sample, conductor.placement(sample)));
  await conductor.answer();
  const placed = await Promise.all(again);
  assert.deepEqual(placed.map(decodeOf), ['decode-2', 'decode-2']);
  assert.deepEqual(
    placed.map((one) => one.group),
    [0, 1].map((index) => ({ id: 'r.2', index, size: 1 })),
  );
  assert.deepEqual(conductor.leaders, [a, c]);
  // A sample that fails twice in a round that others still use leads one more.
  const third = group.place(a, conductor.placement(a));
  await conductor.answer();
  assert.deepEqual([decodeOf(await third), (await third).group], ['decode-3', { id: 'r.3', index: 0, size: 1 }]);
});

test('a sample that may not run where its leader runs leads another round', async () => {
  const conductor = new Conductor();
  const group = new SampleGroup('r', 3);
  const first = group.place(a, conductor.placement(a));
  const second = group.place(b, conductor.placement(b, false));
  await conductor.answer();
  await first;
  await conductor.answer();
  assert.deepEqual([decodeOf(await first), decodeOf(await second)], ['decode-1', 'decode-2']);
  // A sample that comes later joins the newest round.
  assert.equal(decodeOf(await group.place(c, conductor.placement(c))), 'decode-2');
});

describe('a placement that fails', () => {
  test('fails the leader and all that follow it, and the next one leads again', async () => {
    const conductor = new Conductor();
    const group = new SampleGroup('r', 2);
    const all = [a, b].map((sample) => group.place(sample, conductor.placement(sample)));
    const ends = Promise.allSettled(all);
    await conductor.answer(new Error('nobody is there'));
    expect((await ends).map(({ status }) => status)).toEqual(['rejected', 'rejected']);
    const again = group.place(b, conductor.placement(b));
    await conductor.answer();
    assert.equal(decodeOf(await again), 'decode-2');
  });
});
