/** Values of the page as signals: what the stream said last. Views read them; only the stream changes them. */
import { batch, signal } from '@preact/signals';
import type {
  ClusterEvent,
  Health,
  LinkView,
  NodeView,
  RequestRow,
  StreamTick,
} from '../../shared/protocol/router_api.ts';
import { KeyedRows } from './keyed_rows.ts';

/** Rows that the page keeps at most. */
const MAX = { nodes: 10_000, flows: 20_000, requests: 10_000, events: 1_000 };

/** Whether the values are current. */
export type Liveness = 'connecting' | 'live' | 'stale';

/** Id of a link: its ends and its way. */
export function linkId({ from, to, way }: Pick<LinkView, 'from' | 'to' | 'way'>): string {
  return `${from}\n${to}\n${way}`;
}

/** Values that the stream brings. */
export class Store {
  readonly liveness = signal<Liveness>('connecting');
  /** Why the router refuses the page, in its own words; null while it does not. */
  readonly refusal = signal<string | null>(null);
  /** When the last tick came, on the browser's clock; null before the first one. */
  readonly heardAt = signal<number | null>(null);
  /** Connections that were opened so far: bodies that were asked for before the last one may lack what happened between. */
  readonly connections = signal(0);
  /** Time of the last tick on the router's clock. */
  readonly asOf = signal<number | null>(null);
  readonly router = signal<{ readonly name: string; readonly epoch: string } | null>(null);
  /** Times that another router answered than before, the first one not counted: what was asked for before is of a router that is gone. */
  readonly otherRouters = signal(0);
  readonly health = signal<Health | null>(null);
  /** Newest value of each series of the cluster. */
  readonly now = signal<Readonly<Record<string, number | null>>>({});
  readonly nodes = new KeyedRows<NodeView>(({ name }) => name, MAX.nodes);
  readonly flows = new KeyedRows<LinkView>(linkId, MAX.flows);
  /** Newest first. */
  readonly requests = new KeyedRows<RequestRow>(({ id }) => id, MAX.requests);
  /** Newest first. */
  readonly events = signal<readonly ClusterEvent[]>([]);

  /**
   * Takes over a tick.
   *
   * @param isFirst whether it is the first one of a connection, which has all nodes and links.
   */
  apply(tick: StreamTick, isFirst: boolean): void {
    batch(() => {
      const isOtherRouter = this.router.peek()?.epoch !== tick.router.epoch;
      if (isOtherRouter) {
        if (this.router.peek() !== null) this.otherRouters.value++;
        // Ids of requests and events are a router's own.
        this.requests.replace([]);
        this.events.value = [];
        this.router.value = tick.router;
      }
      this.asOf.value = tick.as_of;
      this.health.value = tick.health;
      this.now.value = tick.now;
      const nodes = tick.nodes.map((node) => completed(this.nodes.row(node.name)?.peek(), node));
      const flows = tick.flows.map((flow) => completed(this.flows.row(linkId(flow))?.peek(), flow));
      if (isFirst) {
        this.connections.value++;
        this.nodes.replace(nodes);
        this.flows.replace(flows);
      } else {
        this.nodes.put(nodes, 'last');
        this.nodes.remove(tick.gone);
        this.flows.put(flows, 'last');
      }
      this.requests.put(newestFirst(tick.requests), 'first');
      this.#addEvents(tick.events);
    });
  }

  #addEvents(events: readonly ClusterEvent[]): void {
    const newest = this.events.peek()[0]?.id ?? 0;
    const added = events.filter(({ id }) => id > newest).sort((a, b) => b.id - a.id);
    if (added.length > 0) this.events.value = [...added, ...this.events.peek()].slice(0, MAX.events);
  }
}

/** Returns a row with its changed fields; a row that was not known before has all of them. */
function completed<Row>(before: Row | undefined, changed: Partial<Row>): Row {
  return { ...before, ...changed } as Row;
}

function newestFirst(requests: readonly RequestRow[]): readonly RequestRow[] {
  return [...requests].sort((a, b) => b.started_at - a.started_at);
}
