/**
 * The stream of the dashboard: a tick each second with what has changed, for up to 64 readers. Nothing is computed while there is none. A
 * reader that has not taken its last tick is left out, and gets what it missed when it reads again.
 */
import { Failure } from '../../../shared/base/failure.ts';
import type { Instance } from '../../../shared/placement/instance.ts';
import type { LoggedRequest } from '../record/logged_request.ts';
import type {
  NodeView,
  ClusterEvent,
  Health,
  LinkView,
  LossCost,
  RequestRow,
} from '../../../shared/protocol/router_api.ts';
import type { EventLog } from './event_log.ts';
import { MissedChanges } from './missed_changes.ts';
import { nodeState } from './node_state.ts';
import { nodeView, type Moment } from './node_view.ts';
import { rowOf } from './request_row.ts';
import { RowDeltas, type LazyRow, type Row, type RowChanges } from './row_deltas.ts';
import { shownDigits } from './shown_digits.ts';

/** Upper bound of the readers (P1). */
const MAX_READERS = 64;
/** Bytes of a tick for changed nodes, links and requests: under 20 KB in all, whatever the size of the cluster. */
const NODE_BYTES = 7_000;
const FLOW_BYTES = 2_000;
const REQUEST_BYTES = 4_000;
/** Events of a tick, and of the first one, which is also what a reader is owed at most. */
const MAX_EVENTS = 10;
const FIRST_EVENTS = 200;
const FIRST_REQUESTS = 100;
/** Requests in flight that a tick looks at. */
const MAX_ACTIVE = 64;
/** Requests that ended since the last tick and are looked at. */
const MAX_ENDED = 4_096;
/** Requests in flight whose end is owed (P1). */
const MAX_SHOWN = 4_096;

/** Parts of a tick that a reader can leave out. */
export const STREAM_PARTS = ['nodes', 'flows', 'events', 'requests'] as const;
const NO_ROWS: RowChanges = { changed: [], keys: [], gone: [] };
/** Name of a part of a tick. */
type StreamPart = (typeof STREAM_PARTS)[number];

/** One connection that reads the stream. */
export interface StreamReader {
  /** Whether earlier ticks are still on their way to the reader. */
  readonly isBehind: () => boolean;
  readonly write: (text: string) => void;
  readonly parts: ReadonlySet<StreamPart>;
}

/** State of the router that ticks are made of. */
export interface StreamSources {
  readonly moment: () => Moment;
  readonly router: { readonly name: string; readonly epoch: string };
  readonly instances: () => readonly Instance[];
  readonly health: () => Health;
  readonly routerNode: () => NodeView;
  /** Cost of the loss of each member, by its id as a holder. */
  readonly losses: () => ReadonlyMap<string, LossCost>;
  readonly now: () => Readonly<Record<string, number | null>>;
  readonly flows: () => readonly LinkView[];
  readonly events: Pick<EventLog, 'list' | 'last'>;
  readonly requests: {
    readonly all: () => readonly LoggedRequest[];
    readonly active: readonly LoggedRequest[];
    readonly numClosed: number;
    readonly lastClosed: (count: number) => readonly LoggedRequest[];
  };
}

/** Sends ticks to its readers. */
export class LiveStream {
  readonly #sources: StreamSources;
  /** Readers, and what those that are behind have missed. */
  readonly #readers = new Map<StreamReader, MissedChanges | undefined>();
  readonly #nodes = new RowDeltas({ key: ['name'], companions: ['heard_ms', 'heartbeats', 'joined_at'] });
  readonly #flows = new RowDeltas({ key: ['from', 'to', 'way'], companions: [] });
  /** Phase of each request in flight as it was sent last: its end is owed to the readers, whose rows would stay in flight otherwise. */
  readonly #phases = new Map<string, string>();
  /** Requests that have ended and whose end is owed. */
  #owed: LoggedRequest[] = [];
  #lastEvent = 0;
  #numClosed = 0;

  constructor(sources: StreamSources) {
    this.#sources = sources;
  }

  get numReaders(): number {
    return this.#readers.size;
  }

  /** Adds a reader, which gets its first tick at once. Returns the function that removes it. @throws Failure when there are too many. */
  open(reader: StreamReader): () => void {
    if (this.#readers.size >= MAX_READERS)
      throw new Failure('overloaded', `there are ${MAX_READERS} streams already: close a page of the dashboard`);
    if (this.#readers.size === 0) this.#begin();
    this.#readers.set(reader, undefined);
    reader.write(eventText(this.#head(), this.#whole(), reader.parts));
    return () => {
      this.#readers.delete(reader);
      if (this.#readers.size === 0) this.#forget();
    };
  }

  /**
   * Sends each reader what has changed since the last tick; called once a second. `isEarly`: in between, for news that cannot wait, which are
   * events and the nodes that they are about; all else stays for the next second, so that many events do not multiply the traffic.
   */
  tick(isEarly = false): void {
    if (this.#readers.size === 0) return;
    const before = this.#lastEvent;
    const changes = {
      nodes: this.#nodes.take(this.#nodeRows(), isEarly ? 0 : NODE_BYTES),
      flows: isEarly ? NO_ROWS : this.#flows.take(this.#flowRows(), FLOW_BYTES),
      events: this.#newEvents(),
      requests: isEarly ? [] : this.#changedRequests(),
    };
    const head = this.#head();
    let parts: Parts | undefined;
    for (const [reader, missed] of this.#readers) {
      const isBehind = reader.isBehind();
      const all = missed ?? (isBehind ? new MissedChanges(before) : undefined);
      all?.nodes.add(changes.nodes);
      all?.flows.add(changes.flows);
      all?.addRequests(changes.requests);
      this.#readers.set(reader, isBehind ? all : undefined);
      if (isBehind) continue;
      const own = all ? partsOf(this.#missed(all)) : (parts ??= partsOf(changes));
      reader.write(eventText(head, own, reader.parts));
    }
  }

  /** Returns what a reader has missed, this tick included. */
  #missed({ nodes, flows, lastEvent, requests }: MissedChanges): Changes {
    return {
      nodes: nodes.of(this.#nodes),
      flows: flows.of(this.#flows),
      // Those that nobody has got yet come to all with the next tick.
      events: this.#sources.events
        .list({ since: lastEvent, limit: FIRST_EVENTS })
        .filter(({ id }) => id <= this.#lastEvent),
      requests,
    };
  }

  #begin(): void {
    this.#nodes.take(this.#nodeRows(), Infinity);
    this.#flows.take(this.#flowRows(), Infinity);
    this.#lastEvent = this.#sources.events.last;
    this.#numClosed = this.#sources.requests.numClosed;
  }

  #forget(): void {
    this.#nodes.clear();
    this.#flows.clear();
    this.#phases.clear();
    this.#owed = [];
  }

  #whole(): Parts {
    const { events, requests } = this.#sources;
    const { nowMs } = this.#sources.moment();
    const first = requests.all().slice(0, FIRST_REQUESTS);
    // One that other readers have not got yet is sent to all with the next tick.
    for (const { id, totalMs } of first)
      if (totalMs === undefined && !this.#phases.has(id) && this.#phases.size < MAX_SHOWN) this.#phases.set(id, '');
    return partsOf({
      nodes: { changed: this.#nodes.all, gone: [] },
      flows: { changed: this.#flows.all },
      events: events.list({ limit: FIRST_EVENTS }),
      requests: first.map(({ record }) => rowOf(record, nowMs)),
    });
  }

  #head(): string {
    const { moment, router, health, now } = this.#sources;
    const head = { as_of: moment().wallMs, router, health: health(), now: now() };
    return JSON.stringify(head).slice(0, -1);
  }

  #nodeRows(): LazyRow[] {
    const { instances, moment, routerNode } = this.#sources;
    const now = moment();
    const members = instances().map((instance) => ({
      key: instance.member.name,
      urgency: `${instance.member.epoch} ${nodeState(instance, now.nowMs)} ${instance.unreachable ?? ''}`,
      make: () => shownNode(nodeView(instance, now, this.#sources.losses().get(instance.id) ?? null)),
    }));
    return [...members, { key: 'the router', urgency: '', make: () => shownNode(routerNode()) }];
  }

  #flowRows(): LazyRow[] {
    return this.#sources.flows().map((flow) => ({
      key: `${flow.from} ${flow.to} ${flow.way}`,
      urgency: String(flow.failures),
      make: () => shownDigits(flow) as Row,
    }));
  }

  /** Returns the next events, newest first: of many at once those that came first, and the others with the next ticks. */
  #newEvents(): ClusterEvent[] {
    const { events } = this.#sources;
    const added = events.list({ since: this.#lastEvent, limit: FIRST_EVENTS }).slice(-MAX_EVENTS);
    this.#lastEvent = added[0]?.id ?? events.last;
    return added;
  }

  /** Returns requests that have ended, those that failed and those that were shown in flight first, and those in flight whose phase changed. */
  #changedRequests(): RequestRow[] {
    const { requests } = this.#sources;
    const numNew = requests.numClosed - this.#numClosed;
    this.#numClosed = requests.numClosed;
    const last = requests.lastClosed(Math.min(numNew, MAX_ENDED));
    const ended = last.slice(0, MAX_ACTIVE);
    this.#owed.push(...last.filter(({ id }) => this.#phases.has(id)));
    const begun = requests.active.slice(0, MAX_ACTIVE).filter(({ id, phase }) => this.#phases.get(id) !== phase);
    const failed = ended.filter(({ phase }) => phase === 'failed');
    const shown: RequestRow[] = [];
    let numBytes = 0;
    const { nowMs } = this.#sources.moment();
    for (const request of new Set([...failed, ...this.#owed, ...ended, ...begun])) {
      if (numBytes >= REQUEST_BYTES) break;
      const row = rowOf(request.record, nowMs);
      numBytes += JSON.stringify(row).length;
      shown.push(row);
      this.#note(request);
    }
    this.#owed = this.#owed.filter(({ id }) => this.#phases.has(id));
    return shown;
  }

  /** Notes that a request is sent as it is now. */
  #note({ id, phase, totalMs }: LoggedRequest): void {
    if (totalMs !== undefined) this.#phases.delete(id);
    else if (this.#phases.has(id) || this.#phases.size < MAX_SHOWN) this.#phases.set(id, phase);
  }
}

/** Changes that a tick tells of. */
interface Changes {
  readonly nodes: Pick<RowChanges, 'changed' | 'gone'>;
  readonly flows: Pick<RowChanges, 'changed'>;
  readonly events: readonly ClusterEvent[];
  readonly requests: readonly RequestRow[];
}

function partsOf({ nodes, flows, events, requests }: Changes): Parts {
  return {
    nodes: `"nodes":${JSON.stringify(nodes.changed)},"gone":${JSON.stringify(nodes.gone)}`,
    flows: `"flows":${JSON.stringify(flows.changed)}`,
    events: `"events":${JSON.stringify(events)}`,
    requests: `"requests":${JSON.stringify(requests)}`,
  };
}

/** Parts of a tick as JSON, each with its keys. */
type Parts = Readonly<Record<StreamPart, string>>;

const nothing: Parts = {
  nodes: '"nodes":[],"gone":[]',
  flows: '"flows":[]',
  events: '"events":[]',
  requests: '"requests":[]',
};

function eventText(head: string, parts: Parts, wanted: ReadonlySet<StreamPart>): string {
  const texts = STREAM_PARTS.map((part) => (wanted.has(part) ? parts : nothing)[part]);
  return `event: tick\ndata: ${head},${texts.join(',')}}\n\n`;
}

/** Fields of a node that are no quantities: rounding would change their meaning. */
const EXACT = ['joined_at', 'pid'];

function shownNode(node: NodeView): Row {
  return Object.fromEntries(
    Object.entries(node).map(([name, value]) => [name, EXACT.includes(name) ? value : shownDigits(value)]),
  );
}
