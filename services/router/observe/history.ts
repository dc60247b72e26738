/**
 * How the cluster did over time: the whole, each role and each model at 1 s for 15 minutes and at 1 min for a day, and each node at 5 s for
 * 15 minutes, in rings of a stated size. Nothing is kept per request.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import type { Instance } from '../../../shared/placement/instance.ts';
import type { RequestEvent } from '../record/request_events.ts';
import type { RequestListener } from '../record/request_listener.ts';
import type { RequestRecord } from '../record/request_record.ts';
import type { HistoryBody } from '../../../shared/protocol/router_api.ts';
import { addLoad, CounterRates, LOAD_SERIES, NODE_SERIES, nodeValues } from './load_series.ts';
import { REQUEST_SERIES, RequestRates, isCounted } from './request_rates.ts';
import { SeriesRing } from './series_ring.ts';

const SECOND = { stepMs: 1_000, numSlots: 900 };
const MINUTE = { stepMs: 60_000, numSlots: 1_440 };
const NODE = { stepMs: 5_000, numSlots: 180 };
const NODE_BYTES = SeriesRing.bytes(NODE_SERIES.length, NODE.numSlots);
/** Roles and models that are followed (P1). */
const MAX_SCOPES = 64;
/** Beginning of the names of scopes of models. */
const MODEL = 'model:';
/** Values of a series in one answer. */
const MAX_POINTS = 2_000;

/** Rings of the cluster, a role or a model. */
interface Scope {
  readonly names: readonly string[];
  readonly rings: readonly [seconds: SeriesRing, minutes: SeriesRing];
  /** Undefined for a role, which has no requests of its own. */
  readonly requests: RequestRates | undefined;
  readonly loads: Float64Array;
}

/** Series and times that are asked for; times in milliseconds since 1970. */
export interface HistoryQuestion {
  readonly scope: string;
  /** Names of series; undefined: all of the scope. */
  readonly series?: readonly string[] | undefined;
  readonly from?: number | undefined;
  readonly to?: number | undefined;
  /** Least distance of two values in milliseconds. */
  readonly step?: number | undefined;
}

/** Dependencies of a {@link History}. */
export interface HistoryOptions {
  readonly clock: Pick<Clock, 'nowMs' | 'wallMs'>;
  /** Bytes that all rings may take; those of the cluster are there with less, too. */
  readonly maxBytes: number;
  /** Called once, when a node, role or model has no place any more; the argument is its scope. */
  readonly onFull: (scope: string) => void;
}

/** Values of the cluster over time. */
export class History implements RequestListener {
  readonly #options: HistoryOptions;
  readonly #scopes = new Map<string, Scope>();
  /** Rates of each model that is followed, by its name: those of a scope, without the name that a token would have to make. */
  readonly #byModel = new Map<string, RequestRates>();
  readonly #nodes = new Map<string, SeriesRing>();
  readonly #rates = { second: new CounterRates(), node: new CounterRates() };
  #numBytes = 0;
  #lastMs: number;
  #lastNodeMs: number;
  #isFull = false;

  constructor(options: HistoryOptions) {
    this.#options = options;
    this.#lastMs = options.clock.nowMs();
    this.#lastNodeMs = this.#lastMs;
    this.#scope('cluster');
  }

  /** Bytes of all rings. */
  get numBytes(): number {
    return this.#numBytes;
  }

  /** Whether a node, role or model found no room. */
  get isFull(): boolean {
    return this.#isFull;
  }

  /** Names of all scopes that have values. */
  get scopes(): string[] {
    return [...this.#scopes.keys(), ...[...this.#nodes.keys()].map((name) => `node:${name}`)];
  }

  on(record: RequestRecord, event: RequestEvent): void {
    if (!isCounted(event)) return;
    this.#scopes.get('cluster')?.requests?.on(record, event);
    this.#byModel.get(record.facts.model ?? '')?.on(record, event);
  }

  /** Writes the values of the second that has begun last, once; to be called several times a second. */
  tick(instances: readonly Instance[]): void {
    const nowMs = this.#options.clock.nowMs();
    if (Math.floor(nowMs / SECOND.stepMs) <= Math.floor(this.#lastMs / SECOND.stepMs)) return;
    const sinceMs = nowMs - this.#lastMs;
    for (const { loads } of this.#scopes.values()) loads.fill(0);
    for (const instance of instances) this.#addLoads(instance, this.#rates.second.of(instance, sinceMs));
    const slot = Math.floor(nowMs / SECOND.stepMs);
    // The minute of the last tick, which may be long ago when this process was stopped.
    const minute = Math.floor(this.#lastMs / MINUTE.stepMs);
    const isOver = minute < Math.floor(nowMs / MINUTE.stepMs);
    for (const scope of this.#scopes.values()) {
      if (isOver) endMinute(scope, minute);
      scope.rings[0].write(slot, [...(scope.requests?.take(sinceMs) ?? []), ...scope.loads]);
    }
    this.#lastMs = nowMs;
    const nodeSlot = Math.floor(nowMs / NODE.stepMs);
    if (nodeSlot > Math.floor(this.#lastNodeMs / NODE.stepMs)) this.#tickNodes(instances, nodeSlot, nowMs);
  }

  #addLoads(instance: Instance, rates: readonly number[]): void {
    const { role, model } = instance;
    for (const name of ['cluster', `role:${role}`, ...(model === undefined ? [] : [MODEL + model])]) {
      const scope = this.#scope(name);
      if (scope) addLoad(scope.loads, instance, rates);
    }
  }

  #tickNodes(instances: readonly Instance[], slot: number, nowMs: number): void {
    const sinceMs = nowMs - this.#lastNodeMs;
    this.#lastNodeMs = nowMs;
    for (const [name, { range, numSlots }] of this.#nodes) if (range[1] <= slot - numSlots) this.#forget(name);
    for (const instance of instances) {
      const rates = this.#rates.node.of(instance, sinceMs);
      this.#node(instance.member.name, slot)?.write(slot, nodeValues(instance, rates));
    }
  }

  /** Returns the ring of a node. Without room it takes the place of the node that has been gone for longest. */
  #node(name: string, slot: number): SeriesRing | undefined {
    const known = this.#nodes.get(name);
    if (known) return known;
    if (this.#numBytes + NODE_BYTES > this.#options.maxBytes) {
      const gone = [...this.#nodes].filter(([, { range }]) => range[1] < slot - 1);
      const [oldest] = gone.sort(([, a], [, b]) => a.range[1] - b.range[1]);
      if (oldest) this.#forget(oldest[0]);
    }
    if (!this.#reserve(NODE_BYTES, `node:${name}`)) return undefined;
    const ring = new SeriesRing(NODE_SERIES.length, NODE.stepMs, NODE.numSlots);
    this.#nodes.set(name, ring);
    return ring;
  }

  #forget(name: string): void {
    if (this.#nodes.delete(name)) this.#numBytes -= NODE_BYTES;
  }

  #scope(name: string): Scope | undefined {
    const known = this.#scopes.get(name);
    if (known) return known;
    const hasRequests = !name.startsWith('role:');
    const names = [...(hasRequests ? REQUEST_SERIES : []), ...LOAD_SERIES];
    const numBytes = SeriesRing.bytes(names.length, SECOND.numSlots + MINUTE.numSlots);
    if (this.#scopes.size >= MAX_SCOPES || !this.#reserve(numBytes, name)) return undefined;
    const ring = ({ stepMs, numSlots }: typeof SECOND): SeriesRing => new SeriesRing(names.length, stepMs, numSlots);
    const scope: Scope = {
      names,
      rings: [ring(SECOND), ring(MINUTE)],
      loads: new Float64Array(LOAD_SERIES.length),
      requests: hasRequests ? new RequestRates() : undefined,
    };
    this.#scopes.set(name, scope);
    if (scope.requests && name.startsWith(MODEL)) this.#byModel.set(name.slice(MODEL.length), scope.requests);
    return scope;
  }

  /** Takes bytes for a scope. The cluster's are taken always: the large numbers of the dashboard and `penstock top` are from there. */
  #reserve(numBytes: number, scope: string): boolean {
    if (scope !== 'cluster' && this.#numBytes + numBytes > this.#options.maxBytes) {
      if (!this.#isFull) this.#options.onFull(scope);
      this.#isFull = true;
      return false;
    }
    this.#numBytes += numBytes;
    return true;
  }

  /** Newest value of each series of the cluster. */
  get now(): Record<string, number | null> {
    const cluster = this.#scopes.get('cluster');
    if (!cluster) return {};
    const [ring] = cluster.rings;
    return Object.fromEntries(cluster.names.map((name, i) => [name, shown(ring.get(ring.range[1], i))]));
  }

  /** Returns the names of the series of a scope; undefined for a scope without values. */
  seriesOf(scope: string): readonly string[] | undefined {
    if (scope.startsWith('node:')) return this.#nodes.has(scope.slice(5)) ? NODE_SERIES : undefined;
    return this.#scopes.get(scope)?.names;
  }

  /** Returns the values that are asked for; undefined for a scope without values. Series that the scope does not have are left out. */
  read({ scope, series, from = -Infinity, to = Infinity, step = 0 }: HistoryQuestion): HistoryBody | undefined {
    const names = this.seriesOf(scope);
    if (!names) return undefined;
    const node = scope.startsWith('node:') ? this.#nodes.get(scope.slice(5)) : undefined;
    const rings = node ? [node] : (this.#scopes.get(scope)?.rings ?? []);
    const { clock } = this.#options;
    const [nowMs, wallMs] = [clock.nowMs(), clock.wallMs()];
    const fromMs = from - wallMs + nowMs;
    const ring = fitting(rings, fromMs, step);
    if (!ring) return undefined;
    const [first, last] = ring.range;
    const start = Math.max(first, Math.ceil(fromMs / ring.stepMs));
    const end = Math.min(last + 1, Math.floor((to - wallMs + nowMs) / ring.stepMs) + 1);
    const least = Math.max(step / ring.stepMs, (end - start) / MAX_POINTS, 1);
    const width = Math.ceil(least);
    // Begin at a multiple of the step, so that the same moments come again in the next answer; at an earlier one rather than with no value.
    const next = Math.ceil(start / width) * width;
    const aligned = Math.max(0, next < end ? next : Math.floor(start / width) * width);
    const chosen = names.flatMap((name, i) => (!series || series.includes(name) ? [[name, i] as const] : []));
    const values = (i: number): (number | null)[] => {
      const found: (number | null)[] = [];
      for (let slot = aligned; slot < end; slot += width)
        found.push(shown(ring.mean(slot, Math.min(end, slot + width), i)));
      return found;
    };
    return {
      as_of: wallMs,
      scope,
      start_at: Math.round(aligned * ring.stepMs - nowMs + wallMs),
      step_ms: width * ring.stepMs,
      series: Object.fromEntries(chosen.map(([name, i]) => [name, values(i)])),
    };
  }
}

/** Returns the finest ring that reaches back to `fromMs` and is not much finer than `step`; the first of them where none reaches further. */
function fitting(rings: readonly SeriesRing[], fromMs: number, step: number): SeriesRing | undefined {
  const [fine, coarse] = rings;
  if (!fine || !coarse || coarse.range[1] < 0) return fine;
  const startMs = fine.range[0] * fine.stepMs;
  const isEnough = fromMs === -Infinity || startMs <= fromMs || coarse.range[0] * coarse.stepMs >= startMs;
  return step < coarse.stepMs && isEnough ? fine : coarse;
}

/** Writes the means of the seconds of a minute, and the quantiles of its times. */
function endMinute({ names, rings: [seconds, minutes], requests }: Scope, minute: number): void {
  const perMinute = MINUTE.stepMs / SECOND.stepMs;
  const means = names.map((_, i) => seconds.mean(minute * perMinute, (minute + 1) * perMinute, i));
  if (requests) {
    const quantiles = requests.takeMinute();
    means.splice(REQUEST_SERIES.length - quantiles.length, quantiles.length, ...quantiles);
  }
  minutes.write(minute, means);
}

/** Returns a value with four digits for JSON; null where there is none. */
function shown(value: number): number | null {
  return Number.isNaN(value) ? null : Number(value.toPrecision(4));
}
