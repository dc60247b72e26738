/**
 * Simulated time: events in one order, and whose they are. A process that is killed never runs again, whatever it awaits; one that
 * is paused finds what happened meanwhile when it goes on.
 */
import { setImmediate } from 'node:timers';
import type { Clock } from '../../shared/base/clock.ts';
import { EventHeap } from '../../shared/base/event_heap.ts';

export interface SimEvent {
  readonly atMs: number;
  /** Breaks ties, so that equal times run in the order they were set. */
  readonly order: number;
  readonly owner: SimProcess | undefined;
  readonly label: string;
  readonly run: () => void;
  isCancelled: boolean;
}

/** One incarnation of a process. */
export class SimProcess {
  readonly name: string;
  isDead = false;
  /** Present while it is paused: what it will find. */
  parked: SimEvent[] | undefined;
  /** When it last went on after a pause. */
  resumedMs = -Infinity;
  /** Set once the process has published its goodbye, lost on the bus or not. */
  hasLeft = false;
  /** While it hangs after its goodbye, whatever faults end. */
  isHanging = false;
  /** Wall clocks jump; nobody's differences may. */
  wallOffsetMs = 0;

  constructor(name: string) {
    this.name = name;
  }
}

/** Lines of the trace that are kept for a seed that fails. */
const MAX_TRACE = 400;
/** Events between two turns of the real loop. */
const TURN_EVENTS = 256;
const WALL_MS = 1_800_000_000_000;

export class Simulation {
  nowMs = 0;
  numEvents = 0;
  /** Hash of all events in order; the same seed yields the same hash. */
  traceHash = 0x811c9dc5;
  readonly #events = new EventHeap<SimEvent>();
  readonly #trace: { readonly atMs: number; readonly text: string }[] = [];
  #numNoted = 0;
  #order = 0;

  /** `label` says what happens, for the trace. */
  at(delayMs: number, owner: SimProcess | undefined, label: string, run: () => void): SimEvent {
    return this.atTime(this.nowMs + Math.max(0, delayMs), owner, label, run);
  }

  /** Events of one time keep their order. A delay would not have it: now + (then − now) is not then, in its last bit. */
  atTime(atMs: number, owner: SimProcess | undefined, label: string, run: () => void): SimEvent {
    const event: SimEvent = { atMs, order: this.#order++, owner, label, run, isCancelled: false };
    this.#events.push(event);
    return event;
  }

  /** For people, and part of the hash. */
  note(text: string): void {
    for (let i = 0; i < text.length; i++) this.traceHash = Math.imul(this.traceHash ^ text.charCodeAt(i), 0x01000193);
    this.#trace[this.#numNoted++ % MAX_TRACE] = { atMs: this.nowMs, text };
  }

  /** The last lines. */
  get trace(): readonly string[] {
    const oldest = this.#numNoted % MAX_TRACE;
    const kept =
      this.#numNoted < MAX_TRACE ? this.#trace : [...this.#trace.slice(oldest), ...this.#trace.slice(0, oldest)];
    return kept.map(({ atMs, text }) => `${atMs.toFixed(3).padStart(12)} ${text}`);
  }

  /** Runs events in order, each to where everything waits, until `isDone` or `untilMs`. `check` runs after each. */
  async run(untilMs: number, isDone: () => boolean, check: (owner: SimProcess | undefined) => void): Promise<void> {
    await settled(true);
    while (!isDone()) {
      const event = this.#events.first();
      if (!event || event.atMs > untilMs) {
        this.nowMs = Math.max(this.nowMs, Number.isFinite(untilMs) ? untilMs : this.nowMs);
        return;
      }
      this.#events.pop();
      if (event.isCancelled || event.owner?.isDead) continue;
      this.nowMs = event.atMs;
      if (event.owner?.parked) {
        event.owner.parked.push(event);
        continue;
      }
      this.numEvents++;
      this.note(`${event.owner?.name ?? '-'} ${event.label}`);
      event.run();
      await settled(this.numEvents % TURN_EVENTS === 0);
      check(event.owner);
    }
  }

  pause(process: SimProcess): void {
    process.parked ??= [];
  }

  resume(process: SimProcess): void {
    const parked = process.parked ?? [];
    if (process.parked) process.resumedMs = this.nowMs;
    process.parked = undefined;
    for (const { owner, label, run, isCancelled } of parked) if (!isCancelled) this.at(0, owner, label, run);
  }

  /** Time as this process sees it. */
  clockOf(process: SimProcess): Clock {
    return {
      nowMs: () => this.nowMs,
      wallMs: () => WALL_MS + this.nowMs + process.wallOffsetMs,
      turn: () =>
        new Promise((resolve) => {
          this.at(0, process, 'turn', resolve);
        }),
      sleep: (ms, signal) =>
        new Promise((resolve) => {
          if (signal?.aborted) {
            resolve();
            return;
          }
          const done = (): void => {
            event.isCancelled = true;
            signal?.removeEventListener('abort', done);
            resolve();
          };
          const event = this.at(ms, process, 'wake', done);
          signal?.addEventListener('abort', done);
        }),
    };
  }
}

/**
 * After every promise job that is queued, and those they queue: a tick runs when there is none left, and so does what it queues. A turn of
 * the real loop says the same and takes twice as long; now and then it has one.
 */
function settled(isTurn: boolean): Promise<void> {
  if (isTurn) return new Promise((resolve) => setImmediate(resolve));
  return new Promise((resolve) => {
    process.nextTick(() => {
      queueMicrotask(() => {
        process.nextTick(resolve);
      });
    });
  });
}
