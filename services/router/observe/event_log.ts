/** Log of what happened in the cluster, as `/api/events`, the dashboard's marks and the stream read it. */
import type { Clock } from '../../../shared/base/clock.ts';
import type { ClusterEvent } from '../../../shared/protocol/router_api.ts';
import { EventCrowds, type NewEvent } from './event_crowds.ts';

export type { NewEvent } from './event_crowds.ts';

/** Events kept (P1). */
const MAX_EVENTS = 10_000;
/** Kinds of repeated events that are told apart (P1). */
const MAX_REPEATED = 1_024;
/** Names of nodes that are kept for events that tell of several (P1). */
const MAX_NAMES = 100_000;
/** Milliseconds in which an event that repeats is reported once. */
const REPEAT_MS = 60_000;

/** Choice of events: those with a number above `since`, of these kinds and of this node, alone or among others; an absent field chooses all. */
export interface EventChoice {
  readonly since?: number | undefined;
  readonly kinds?: readonly string[] | undefined;
  readonly node?: string | undefined;
  readonly limit: number;
}

/**
 * The last MAX_EVENTS events of the cluster. An event that repeats is kept once a minute, with the number of times; when many nodes do the
 * same, the first few are told of singly and the others together, so that a rack that fails hides nothing else.
 */
export class EventLog {
  readonly #clock: Pick<Clock, 'nowMs' | 'wallMs'>;
  /** Event n is at n % MAX_EVENTS. */
  readonly #events: ClusterEvent[] = [];
  readonly #crowds: EventCrowds;
  /** Names of the nodes of events that tell of several, by number. */
  readonly #nodes = new Map<number, readonly string[]>();
  #numNames = 0;
  #last = 0;
  readonly #repeated = new Map<string, { readonly atMs: number; count: number }>();

  constructor(clock: Pick<Clock, 'nowMs' | 'wallMs'>) {
    this.#clock = clock;
    this.#crowds = new EventCrowds(clock);
  }

  /** Number of the last event; 0 before the first. */
  get last(): number {
    return this.#last;
  }

  /** Adds an event, or holds it back to be told of together with others of its kind: then {@link flush} adds it. */
  add(event: NewEvent): void {
    if (!this.#crowds.takes(event)) this.#append(event);
  }

  /** Adds the events that were held back and are due; to be called a few times a second. */
  flush(): void {
    for (const { event, nodes } of this.#crowds.due()) {
      this.#append(event);
      if (nodes.length < 2) continue;
      this.#nodes.set(this.#last, nodes);
      this.#numNames += nodes.length;
      for (const [id, names] of this.#nodes) {
        if (this.#numNames <= MAX_NAMES && id > this.#last - MAX_EVENTS) break;
        this.#nodes.delete(id);
        this.#numNames -= names.length;
      }
    }
  }

  #append({ kind, node = null, role = null, model = null, text }: Nullable<NewEvent>): void {
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
      if (!event || (kinds && !kinds.includes(event.kind))) continue;
      if (node !== undefined && event.node !== node && !this.#nodes.get(id)?.includes(node)) continue;
      chosen.push(event);
    }
    return chosen;
  }
}

type Nullable<T> = { readonly [K in keyof T]: T[K] | null } & Pick<NewEvent, 'kind' | 'text'>;
