/** Loops that tick in step. Not covered: the clock of the machine. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { inStep, type Clock } from '../../shared/base/clock.ts';

/** Clock whose sleeps end when `advance` passes their time, each `earlyMs` too soon. */
class ManualClock implements Clock {
  #nowMs = 130;
  readonly #sleeps: { readonly untilMs: number; readonly wake: () => void }[] = [];
  readonly #earlyMs: number;

  constructor(earlyMs: number) {
    this.#earlyMs = earlyMs;
  }

  nowMs(): number {
    return this.#nowMs;
  }

  wallMs(): number {
    return this.#nowMs;
  }

  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => {
      this.#sleeps.push({ untilMs: this.#nowMs + ms - this.#earlyMs, wake: resolve });
    });
  }

  turn(): Promise<void> {
    return Promise.resolve();
  }

  /** Lets the time pass up to `nowMs`, a sleep at a time. */
  async advance(nowMs: number): Promise<void> {
    for (;;) {
      const due = this.#sleeps.sort((a, b) => a.untilMs - b.untilMs).findIndex(({ untilMs }) => untilMs <= nowMs);
      const [next] = due < 0 ? [] : this.#sleeps.splice(due, 1);
      this.#nowMs = next ? Math.max(this.#nowMs, next.untilMs) : nowMs;
      next?.wake();
      await new Promise(setImmediate);
      if (!next) return;
    }
  }

  /** Stands still until `nowMs`: what is due by then ends late. */
  stop(nowMs: number): void {
    this.#nowMs = nowMs;
  }
}

test.each([0, 0.5])(
  'loops in step tick at the same multiples of their times, also with timers %d ms early',
  async (early) => {
    const clock = new ManualClock(early);
    const ticks: string[] = [];
    const over = new AbortController();
    for (const ms of [250, 500])
      inStep(clock, ms, over.signal, () => {
        ticks.push(`${ms} at ${Math.round(clock.nowMs())}`);
      });
    await clock.advance(1_010);
    over.abort();
    await clock.advance(2_000);
    assert.deepEqual(ticks.sort(), [
      '250 at 1000',
      '250 at 250',
      '250 at 500',
      '250 at 750',
      '500 at 1000',
      '500 at 500',
    ]);
  },
);

test('a tick says by how much it is late, and those of a time that was missed are left out', async () => {
  const clock = new ManualClock(0);
  const late: number[] = [];
  const over = new AbortController();
  inStep(clock, 250, over.signal, (lateMs) => {
    late.push(lateMs);
  });
  await clock.advance(250);
  clock.stop(1_310);
  await clock.advance(1_500);
  over.abort();
  assert.deepEqual(late, [0, 810, 0]);
});
