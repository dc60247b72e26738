/** Log of what happened in the cluster, as `/api/events`, the dashboard's marks and the stream read it. */
import type { Clock } from '../../../shared/base/clock.ts';
import type { ClusterEvent, EventKind } from './api_types.ts';

/** Events kept (P1). */
const MAX_EVENTS = 10_000;
/** Kinds of repeated events that are told apart (P1). */
const MAX_REPEATED = 1_024;
/** Milliseconds in which an event that repeats is reported once. */
const REPEAT_MS = 60_000;

/** An event before it has its number and time; fields that are left out are null. */
export interface NewEvent {
  readonly kind: EventKind;
  readonly node?: string | undefined;
  readonly role?: string | undefined;
  readonly model?: string | undefined;
  readonly text: string;
}

/** Choice of events: those with a number above `since`, of these kinds and of this node; an absent field chooses all. */
export interface EventChoice {
  readonly since?: number | undefined;
  readonly kinds?: readonly string[] | undefined;
  readonly node?: string | undefined;
  readonly limit: number;
}

/** The last MAX_EVENTS events of the cluster; an event that repeats is kept once a minute, with the number of times. */
export class EventLog {
  readonly #clock: Pick<Clock, 'nowMs' | 'wallMs'>;
  /** Event n is at n % MAX_EVENTS. */
  readonly #events: ClusterEvent[] = [];
  #last = 0;
  readonly #repeated = new Map<string, { readonly atMs: number; count: number }>();

  constructor(clock: Pick<Clock, 'nowMs' | 'wallMs'>) {
    this.#clock = clock;
  }

  /** Number of the last event; 0 before the first. */
  get last(): number {
    return this.#last;
  }

  add({ kind, node = null, role = null, model = null, text }: Nullable<NewEvent>): void {
    const id = ++this.#last;
    this.#events[id % MAX_EVENTS] = { id, at: this.#clock.wallMs(), kind, node, role, model, text };
  }

  /** Adds an event that may come again and again, such as the refusal of a process that retries: once a minute for each `key`. */
  addRepeated(key: string, event: NewEvent): void {
    const nowMs = this.#clock.nowMs();
    const before = this.#repeated.get(key);
    if (before && nowMs - before.atMs < REPEAT_MS) {
      before.count++;
      return;
    }
    this.#repeated.delete(key);
    this.#repeated.set(key, { atMs: nowMs, count: 0 });
    const [oldest] = this.#repeated.keys();
    if (this.#repeated.size > MAX_REPEATED && oldest !== undefined) this.#repeated.delete(oldest);
    const { count = 0 } = before ?? {};
    this.add(count > 0 ? { ...event, text: `${event.text} (${count} times more since then)` } : event);
  }

  /** Returns the chosen events, newest first. */
  list({ since = 0, kinds, node, limit }: EventChoice): ClusterEvent[] {
    const chosen: ClusterEvent[] = [];
    for (let id = this.#last; id > Math.max(since, this.#last - MAX_EVENTS) && chosen.length < limit; id--) {
      const event = this.#events[id % MAX_EVENTS];
      if (!event || (kinds && !kinds.includes(event.kind)) || (node !== undefined && event.node !== node)) continue;
      chosen.push(event);
    }
    return chosen;
  }
}

type Nullable<T> = { readonly [K in keyof T]: T[K] | null } & Pick<NewEvent, 'kind' | 'text'>;
