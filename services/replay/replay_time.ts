/** Simulated time of a replay: callbacks in the order of their times. */
import type { Clock } from '../../shared/base/clock.ts';
import { EventHeap, type TimedEvent } from '../../shared/base/event_heap.ts';

interface Callback extends TimedEvent {
  readonly run: () => void;
}

/** Time that moves from event to event. Deterministic: events of one time run in the order in which they were added. */
export class ReplayTime {
  readonly #events = new EventHeap<Callback>();
  #order = 0;
  nowMs = 0;
  numEvents = 0;

  /** Calls `run` after `delayMs`. */
  after(delayMs: number, run: () => void): void {
    this.at(this.nowMs + Math.max(0, delayMs), run);
  }

  /** Calls `run` at `atMs`, or now when that is past. */
  at(atMs: number, run: () => void): void {
    this.#events.push({ atMs: Math.max(this.nowMs, atMs), order: this.#order++, run });
  }

  /** Runs the next event. Returns false when there is none. */
  next(): boolean {
    const event = this.#events.pop();
    if (!event) return false;
    this.nowMs = event.atMs;
    this.numEvents++;
    event.run();
    return true;
  }

  /** The time as production code reads it. Nothing in a replay sleeps by a promise. */
  get clock(): Clock {
    const refuse = (): Promise<void> => Promise.reject(new Error('a replay has no promises'));
    return { nowMs: () => this.nowMs, wallMs: () => this.nowMs, sleep: refuse, turn: refuse };
  }
}
