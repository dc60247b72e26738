/** The sum of what was used in the last minute, against a plain list of all uses. Budget: 2 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { RateWindow } from '../../../services/router/conductor/rate_window.ts';
import { Random } from '../../../shared/base/random.ts';

const MINUTE_MS = 60_000;

test('the sum has all of the last minute, and nothing over 61 s old, whatever is used, taken back and left alone', () => {
  const random = new Random(7);
  const window = new RateWindow();
  let uses: { atMs: number; amount: number; slice: number }[] = [];
  let nowMs = 123_456;
  for (let i = 0; i < 5_000; i++) {
    nowMs += random.below(50) === 0 ? random.below(150_000) : random.below(3_000);
    uses = uses.filter(({ atMs }) => atMs > nowMs - 2 * MINUTE_MS);
    const sumSince = (sinceMs: number): number =>
      uses.reduce((sum, { atMs, amount }) => (atMs > sinceMs ? sum + amount : sum), 0);
    const used = window.used(nowMs);
    assert(used >= sumSince(nowMs - MINUTE_MS), `step ${i}`);
    assert(used <= sumSince(nowMs - MINUTE_MS - 1_000), `step ${i}`);
    const one = uses[random.below(Math.max(1, uses.length))];
    if (one && random.below(4) === 0) {
      const back = random.below(one.amount + 1);
      window.release(back, one.slice, nowMs);
      one.amount -= back;
    } else {
      const amount = 1 + random.below(100);
      uses.push({ atMs: nowMs, amount, slice: window.use(amount, nowMs) });
    }
  }
});

test('the wait for room is the time until there is some, and not a moment less', () => {
  const random = new Random(8);
  for (let round = 0; round < 200; round++) {
    const window = new RateWindow();
    let nowMs = random.below(1_000_000);
    for (let i = random.below(20); i >= 0; i--) {
      window.use(1 + random.below(50), nowMs);
      nowMs += random.below(6_000);
    }
    const used = window.used(nowMs);
    const most = random.below(used + 10);
    const waitMs = window.untilMs(most, nowMs);
    if (used <= most) {
      assert.equal(waitMs, 0);
      continue;
    }
    assert(waitMs > 0 && waitMs <= 61_000, `${waitMs} ms`);
    assert(window.used(nowMs + waitMs - 0.01) > most);
    assert(window.used(nowMs + waitMs) <= most);
  }
});

test('a wait for less than nothing ends when all is over a minute old', () => {
  const window = new RateWindow();
  window.use(5, 500);
  assert.equal(window.untilMs(-3, 700), 61_000 - 700);
  assert.equal(window.untilMs(0, 700), 61_000 - 700);
});

test('what is taken back after a minute changes nothing', () => {
  const window = new RateWindow();
  const slice = window.use(9, 0);
  window.use(4, 70_000);
  window.release(9, slice, 70_000);
  assert.equal(window.used(70_000), 4);
});
