/**
 * The stream of the dashboard: a tick each second with what has changed, for up to 64 readers. Nothing is computed while there is none. A
 * reader that does not take its tick is left out, and has everything anew when it reads again.
 */
import { Failure } from '../../../shared/base/failure.ts';
import type { Instance } from '../cluster/instance.ts';
import type { RequestTrace } from '../relay/request_log.ts';
import type { ClusterEvent, Health, LinkView, LossCost, RequestRow } from './api_types.ts';
import type { EventLog } from './event_log.ts';
import { nodeState } from './node_state.ts';
import { nodeView, type Moment, type PoolNode } from './node_view.ts';
import { rowOf } from './request_row.ts';
import { RowDeltas, type LazyRow, type Row } from './row_deltas.ts';
import { shownDigits } from './shown_digits.ts';

/** Upper bound of the readers (P1). */
const MAX_READERS = 64;
/** Bytes of a tick for changed nodes, links and requests: under 20 KB in all, whatever the size of the cluster. */
const NODE_BYTES = 8_000;
const FLOW_BYTES = 3_000;
const REQUEST_BYTES = 5_000;
/** Events of a tick, and of the first one. */
const MAX_EVENTS = 10;
const FIRST_EVENTS = 200;
const FIRST_REQUESTS = 100;
/** Requests in flight that a tick looks at. */
const MAX_ACTIVE = 64;

/** Parts of a tick that a reader can leave out. */
export const STREAM_PARTS = ['nodes', 'flows', 'events', 'requests'] as const;
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
  readonly routerNode: () => PoolNode;
  /** Cost of the loss of each member, by its id as a holder. */
  readonly losses: () => ReadonlyMap<string, LossCost>;
  readonly now: () => Readonly<Record<string, number | null>>;
  readonly flows: () => readonly LinkView[];
  readonly events: Pick<EventLog, 'list' | 'last'>;
  readonly requests: {
    readonly all: () => readonly RequestTrace[];
    readonly active: readonly RequestTrace[];
    readonly numClosed: number;
    readonly lastClosed: (count: number) => readonly RequestTrace[];
  };
}

/** Sends ticks to its readers. */
export class LiveStream {
  readonly #sources: StreamSources;
  /** Readers, and whether their next tick must have all. */
  readonly #readers = new Map<StreamReader, { isFirst: boolean }>();
  readonly #nodes = new RowDeltas({ key: ['name'], companions: ['heard_ms', 'joined_at'] });
  readonly #flows = new RowDeltas({ key: ['from', 'to', 'way'], companions: [] });
  /** Phase of each request in flight as it was sent last. */
  #phases = new Map<string, string>();
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
    this.#readers.set(reader, { isFirst: true });
    this.#send(this.#head(), undefined);
    return () => {
      this.#readers.delete(reader);
      if (this.#readers.size === 0) this.#forget();
    };
  }

  /** Sends each reader what has changed since the last tick; called once a second. */
  tick(): void {
    if (this.#readers.size === 0) return;
    const nodes = this.#nodes.take(this.#nodeRows(), NODE_BYTES);
    const flows = this.#flows.take(this.#flowRows(), FLOW_BYTES);
    const changes: Parts = {
      nodes: `"nodes":${JSON.stringify(nodes.changed)},"gone":${JSON.stringify(nodes.gone)}`,
      flows: `"flows":${JSON.stringify(flows.changed)}`,
      events: `"events":${JSON.stringify(this.#newEvents())}`,
      requests: `"requests":${JSON.stringify(this.#changedRequests())}`,
    };
    this.#send(this.#head(), changes);
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
  }

  /** Sends the first tick to readers that need it, and `changes`, when there are any, to the others. */
  #send(head: string, changes: Parts | undefined): void {
    let whole: Parts | undefined;
    for (const [reader, state] of this.#readers) {
      if (!state.isFirst && !changes) continue;
      if (reader.isBehind()) {
        state.isFirst = true;
        continue;
      }
      const parts = state.isFirst ? (whole ??= this.#whole()) : changes;
      if (parts) reader.write(eventText(head, parts, reader.parts));
      state.isFirst = false;
    }
  }

  #whole(): Parts {
    const { events, requests } = this.#sources;
    return {
      nodes: `"nodes":${JSON.stringify(this.#nodes.all)},"gone":[]`,
      flows: `"flows":${JSON.stringify(this.#flows.all)}`,
      events: `"events":${JSON.stringify(events.list({ limit: FIRST_EVENTS }))}`,
      requests: `"requests":${JSON.stringify(requests.all().slice(0, FIRST_REQUESTS).map(rowOf))}`,
    };
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

  #newEvents(): ClusterEvent[] {
    const { events } = this.#sources;
    const added = events.list({ since: this.#lastEvent, limit: MAX_EVENTS });
    this.#lastEvent = events.last;
    return added;
  }

  /** Returns requests that have ended, those that failed first, and those of the newest in flight whose phase has changed. */
  #changedRequests(): RequestRow[] {
    const { requests } = this.#sources;
    const numNew = requests.numClosed - this.#numClosed;
    this.#numClosed = requests.numClosed;
    const ended = requests.lastClosed(Math.min(numNew, MAX_ACTIVE));
    const failed = ended.filter(({ phase }) => phase === 'failed');
    const active = requests.active.slice(0, MAX_ACTIVE);
    const begun = active.filter(({ id, phase }) => this.#phases.get(id) !== phase);
    this.#phases = new Map(active.map(({ id }) => [id, this.#phases.get(id) ?? '']));
    const shown: RequestRow[] = [];
    let numBytes = 0;
    for (const trace of [...failed, ...ended.filter((one) => !failed.includes(one)), ...begun]) {
      if (numBytes >= REQUEST_BYTES) break;
      const row = rowOf(trace);
      numBytes += JSON.stringify(row).length;
      shown.push(row);
      if (this.#phases.has(row.id)) this.#phases.set(row.id, row.phase);
    }
    return shown;
  }
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

function shownNode(node: PoolNode): Row {
  return Object.fromEntries(
    Object.entries(node).map(([name, value]) => [name, EXACT.includes(name) ? value : shownDigits(value)]),
  );
}
