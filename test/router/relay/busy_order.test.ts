/** The order of requests while instances are full, under a clock that the test moves. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { BusyOrder, type Ranked } from '../../../services/router/relay/busy_order.ts';
import type { Clock } from '../../../shared/base/clock.ts';

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
