/** The order of requests while instances are full, under a clock that the test moves. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { BusyOrder, type Ranked } from '../../../services/router/relay/busy_order.ts';
import type { Clock } from '../../../shared/base/clock.ts';
import { Random } from '../../../shared/base/random.ts';

/** An order whose clock goes on by each sleep, and is at most moved by hand. */
function created(): { order: BusyOrder; clock: { nowMs: number }; turnMs: (one: Ranked) => Promise<number> } {
  const clock = { nowMs: 1_000_000 };
  const order = new BusyOrder({
    nowMs: () => clock.nowMs,
    sleep: (ms: number) => {
      clock.nowMs += ms;
      return Promise.resolve();
    },
  } as unknown as Clock);
  const turnMs = async (one: Ranked): Promise<number> => {
    const startMs = clock.nowMs;
    await order.turn(one, new AbortController().signal);
    return clock.nowMs - startMs;
  };
  return { order, clock, turnMs };
}

test('while nobody waits, every request asks at once', async () => {
  const { turnMs, clock } = created();
  assert.equal(await turnMs({ priority: 5, sinceMs: clock.nowMs }), 0);
});

test('a request pauses for one of a lower number, or of the same that came before it', async () => {
  const { order, turnMs, clock } = created();
  const first = { priority: 0, sinceMs: clock.nowMs };
  order.enter(first);
  assert.equal(await turnMs(first), 0, 'it is behind nobody');
  assert.equal(await turnMs({ priority: 0, sinceMs: first.sinceMs + 1 }), 1_000);
  assert.equal(await turnMs({ priority: 1, sinceMs: first.sinceMs - 1 }), 1_000, 'no pause is longer');
  assert.equal(await turnMs({ priority: -1, sinceMs: clock.nowMs }), 0);
  order.leave(first);
  assert.equal(await turnMs({ priority: 1, sinceMs: clock.nowMs }), 0);
  assert.equal(order.size, 0);
});

test('a request rises by one priority every ten seconds', async () => {
  const { order, turnMs, clock } = created();
  const old = { priority: 3, sinceMs: clock.nowMs };
  order.enter(old);
  clock.nowMs += 29_000;
  assert.equal(await turnMs({ priority: 0, sinceMs: clock.nowMs }), 0, 'three priorities take thirty seconds');
  clock.nowMs += 1_000;
  assert.equal(await turnMs({ priority: 0, sinceMs: clock.nowMs }), 1_000);
  assert.equal(await turnMs({ priority: -1, sinceMs: clock.nowMs }), 0);
});

test('a pause ends when the request before has been placed', async () => {
  const { order, clock } = created();
  const first = { priority: 0, sinceMs: clock.nowMs };
  order.enter(first);
  const later = order.turn({ priority: 1, sinceMs: clock.nowMs }, new AbortController().signal);
  order.leave(first);
  const startMs = clock.nowMs;
  await later;
  assert(clock.nowMs - startMs < 1_000, 'it looks again after 50 ms');
});

/** A request of a tenant that came at `sinceMs`. */
function of(sharer: string, sinceMs: number, more: Partial<Ranked> = {}): Ranked {
  return { sharer, sinceMs, priority: 0, ...more };
}

test('a tenant that comes goes before one whose requests were begun meanwhile, whatever their priority and age', async () => {
  const { order, turnMs, clock } = created();
  const flood = Array.from({ length: 20 }, (_, i) => of('flood', clock.nowMs, { priority: -(2 ** 31) + i }));
  for (const one of flood) order.enter(one);
  clock.nowMs += 3_600_000;
  const quiet = of('quiet', clock.nowMs, { priority: 5 });
  order.enter(quiet);
  order.placed(flood[0]!, () => 100);
  assert.equal(await turnMs(quiet), 0);
  assert.equal(await turnMs(flood[1]!), 1_000);
  // Its time is remembered until others have had as much.
  order.placed(quiet, () => 500);
  assert.equal(await turnMs(of('quiet', clock.nowMs)), 1_000);
  assert.equal(await turnMs(flood[1]!), 0);
});

test('tenants are placed by the predicted milliseconds and their weights', async () => {
  const { order, turnMs, clock } = created();
  const counts = { a: 0, b: 0 };
  const next = { a: of('a', clock.nowMs, { weight: 2 }), b: of('b', clock.nowMs) };
  order.enter(next.a);
  order.enter(next.b);
  for (let i = 0; i < 300; i++) {
    const name = (await turnMs(next.a)) === 0 ? 'a' : 'b';
    counts[name]++;
    // The next request of the tenant waits before this one is begun.
    const begun = next[name];
    next[name] = of(name, clock.nowMs, name === 'a' ? { weight: 2 } : {});
    order.enter(next[name]);
    order.placed(begun, () => (name === 'a' ? 10 : 40));
  }
  const ratio = (counts.a * 10) / (counts.b * 40);
  assert(Math.abs(ratio / 2 - 1) < 0.05, `${ratio}`);
});

test('requests that instances begin at once are charged too, while others wait', async () => {
  const { order, turnMs, clock } = created();
  const waiting = of('a', clock.nowMs);
  order.placed(of('b', 0), () => assert.fail('nobody waits'));
  order.enter(waiting);
  order.placed(of('b', clock.nowMs), () => 1_000);
  assert.equal(await turnMs(of('b', clock.nowMs)), 1_000);
  order.leave(waiting);
  assert.equal(await turnMs(of('b', clock.nowMs)), 0);
});

test('precedence goes before counters', async () => {
  const { order, turnMs, clock } = created();
  const plain = of('a', clock.nowMs);
  order.enter(plain);
  order.enter(of('b', clock.nowMs, { precedence: 2 }));
  order.placed(of('b', clock.nowMs), () => 1_000);
  assert.equal(await turnMs(plain), 1_000);
});

test('tenants that nobody named are one, in the order that they always had', async () => {
  const random = new Random(7);
  for (let round = 0; round < 200; round++) {
    const { order, turnMs, clock } = created();
    const all = Array.from({ length: 6 }, () => ({
      priority: random.below(4),
      sinceMs: clock.nowMs - random.below(60_000),
    }));
    for (const one of all) order.enter(one);
    order.placed({ priority: 0, sinceMs: clock.nowMs }, () => random.below(1_000));
    const level = ({ priority, sinceMs }: Ranked): number => priority - Math.floor((clock.nowMs - sinceMs) / 10_000);
    const [first] = [...all].sort((a, b) => level(a) - level(b) || a.sinceMs - b.sinceMs);
    assert.equal(await turnMs(first!), 0);
  }
});
