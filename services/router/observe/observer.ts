/** Everything that a router records of its cluster for people: events, alarms, health and history. Nothing that serves a request reads it. */
import { inStep, type Clock } from '../../../shared/base/clock.ts';
import type { MemberEvent } from '../cluster/member_changes.ts';
import type { Instance } from '../../../shared/placement/instance.ts';
import { Alarms } from './alarms.ts';
import type { Health } from '../../../shared/protocol/router_api.ts';
import { EventLog } from './event_log.ts';
import { healthOf } from './health.ts';
import { History } from './history.ts';
import { LinkViews } from './link_views.ts';
import { LostNodes } from './lost_nodes.ts';
import { eventOf, MemberWatch, type Watched } from './member_watch.ts';
import type { Moment, RouterProcess } from './node_view.ts';
import { ReuseCurves } from './reuse_view.ts';

/** Milliseconds between two looks at the members. */
const LOOK_MS = 250;
const LOOKS_PER_SECOND = 1_000 / LOOK_MS;
/** Looks whose largest delay is remembered: ten seconds. */
const MAX_DELAYS = 40;

/** Dependencies of an {@link Observer}. */
export interface ObserverOptions {
  readonly clock: Clock;
  readonly name: string;
  readonly identity: { readonly pid: number; readonly epoch: string };
  /** Bytes that the history may take. */
  readonly historyBytes: number;
}

/** Records of a router about its cluster, and the process that keeps them. */
export class Observer {
  readonly events: EventLog;
  readonly alarms: Alarms;
  readonly history: History;
  readonly links = new LinkViews();
  readonly reuse = new ReuseCurves();
  readonly #lost: LostNodes;
  readonly #options: ObserverOptions;
  readonly #startedMs: number;
  readonly #ticks: ((isEarly: boolean) => void)[] = [];
  readonly #delays = new Float64Array(MAX_DELAYS);

  constructor(options: ObserverOptions) {
    this.#options = options;
    this.#startedMs = options.clock.nowMs();
    this.events = new EventLog(options.clock);
    this.alarms = new Alarms(this.events);
    this.#lost = new LostNodes(options.clock);
    this.history = new History({
      clock: options.clock,
      maxBytes: options.historyBytes,
      onFull: (scope) => {
        const text = `The history has no room for ${scope}: raise --history-bytes to see it over time`;
        this.events.add({ kind: 'error', node: options.name, role: 'router', text });
      },
    });
  }

  /**
   * Calls `tick` once a second while the router runs, and, with `isEarly`, within a quarter of a second after the state of a member has
   * changed.
   */
  everySecond(tick: (isEarly: boolean) => void): void {
    this.#ticks.push(tick);
  }

  /** Records a change of the members. */
  readonly onEvent = (event: MemberEvent): void => {
    const { member, kind, why } = event;
    this.#lost.note(event);
    if (kind === 'refused') this.events.addRepeated(`${member.name} ${member.address} ${why}`, eventOf(event));
    else this.events.add(eventOf(event));
  };

  /** Records the router's start, and watches until `signal` aborts. `where` says in words where the router serves. */
  begin(watched: Watched, where: string, signal: AbortSignal): void {
    const { clock, name } = this.#options;
    this.events.add({ kind: 'router_started', node: name, role: 'router', text: `Router ${name} started: ${where}` });
    const watch = new MemberWatch(clock, this.events, this.alarms, watched);
    let numLooks = 0;
    inStep(clock, LOOK_MS, signal, (lateMs) => {
      this.#delays[numLooks++ % MAX_DELAYS] = lateMs;
      this.history.tick(watched.view.all());
      // After a stop of this process the heartbeats of that time are still to be read.
      const lastEvent = this.events.last;
      if (lateMs < LOOK_MS) watch.look();
      this.events.flush();
      const isNews = this.events.last > lastEvent;
      const isSecond = numLooks % LOOKS_PER_SECOND === 0;
      if (isSecond) this.links.measure(watched.view.all(), clock.nowMs());
      if (!isSecond && !isNews) return;
      for (const tick of this.#ticks) tick(!isSecond);
    });
  }

  get now(): Moment {
    const { clock } = this.#options;
    return { nowMs: clock.nowMs(), wallMs: clock.wallMs() };
  }

  /** Returns the router's process as a node shows it, which others reach at `address`. */
  process(address: string): RouterProcess {
    const { name, identity } = this.#options;
    const loopDelayMs = this.#delays.reduce((most, delay) => Math.max(most, delay), 0);
    return { name, ...identity, address, startedMs: this.#startedMs, loopDelayMs };
  }

  /** Returns name, epoch and start of the router, for the head of bodies. */
  get router(): { readonly name: string; readonly epoch: string; readonly started_at: number } {
    const { name, identity } = this.#options;
    const { nowMs, wallMs } = this.now;
    return { name, epoch: identity.epoch, started_at: Math.round(wallMs - (nowMs - this.#startedMs)) };
  }

  health(instances: readonly Instance[], isDraining: boolean): Health {
    return healthOf(instances, this.alarms, { isDraining, nowMs: this.now.nowMs, lost: this.#lost.sentences });
  }
}
