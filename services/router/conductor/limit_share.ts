/**
 * The part of every limit that this router gives. Of r routers that hear one another each gives an rth, so that all together give the limit
 * once in any minute, also while routers join and leave.
 *
 *   start ──LISTEN_MS on the bus──► gives its share ──goodbye, or silence──► what it gave counts for a minute more
 *
 * Each says in its notices which share it gives, and what tenants used beyond it (`over`); everybody gives so much less until that is over a
 * minute old.
 *
 * - One that joins gives nothing while it listens. The others divide by it from its first notice on; what they have let through before is
 *   over their new share then. A tenant that stays below its limit notices nothing.
 * - One that leaves says last what was used at it. Of one that falls silent nobody knows: its whole share is withheld for a minute.
 * - Notices tell of other routers too, for one that joins after they have gone.
 * - While this router is cut off the bus, it gives what it gave before. Routers that never hear one another each give the whole limit, and the
 *   only router of a cluster forgets what was used when it ends.
 */
import { inStep, type Clock } from '../../../shared/base/clock.ts';
import type { Bus } from '../../../shared/bus/bus.ts';
import {
  readGoodbye,
  readRouter,
  subjects,
  type GivenLimits,
  type LimitsNotice,
} from '../../../shared/protocol/membership.ts';
import type { RouterIdentity } from '../cluster/presence.ts';

/** Milliseconds on the bus after which a router has heard every other one: they send a notice each second, and answer a new one at once. */
const LISTEN_MS = 1_500;
/** Milliseconds of silence after which a router is taken for gone. */
const SILENCE_MS = 5_000;
/** Milliseconds for which a router counts that has said goodbye: all that was used at it is over a minute old then. */
const LEFT_MS = 61_000;
/** The same for one that is silent: it may have lived until its next notice was due. */
const SILENT_MS = 62_500;
const CHECK_MS = 250;
/** A check that comes this late means that this process was stopped, and has notices to read. */
const LATE_MS = 1_000;
/** Upper bound of the other routers that count (P1). */
const MAX_OTHERS = 64;
/** Tenants of other routers in a notice (P1): it has to fit into a message of any bus. */
const MAX_TOLD = 1_000;

/** Amounts that a tenant used beyond the shares of routers. */
interface Over {
  readonly requests: number;
  readonly tokens: number;
}

const NOTHING: Over = { requests: 0, tokens: 0 };

/** Dependencies of a LimitShare. */
export interface LimitShareOptions {
  readonly bus: Bus;
  readonly identity: RouterIdentity;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  /** Sends a notice of this router now. */
  readonly announce: () => void;
}

interface OtherRouter extends GivenLimits {
  heardMs: number;
  hasLeft: boolean;
}

/** Divides the limits of tenants among the routers that are heard. */
export class LimitShare {
  readonly #options: LimitShareOptions;
  /** The other routers that have keys, by epoch; those that are gone for a minute. */
  readonly #others = new Map<string, OtherRouter>();
  /** Since when this router hears the others; undefined before the bus is connected for the first time. */
  #connectedMs: number | undefined;
  #numRouters = 1;
  #share = 0;
  #hasLeft = false;

  constructor(options: LimitShareOptions) {
    this.#options = options;
    const { bus, identity, clock, signal } = options;
    if (bus.isConnected) this.#connectedMs = clock.nowMs();
    bus.subscribe(subjects.router, (bytes) => {
      const { router, limits } = readRouter(bytes);
      if (router !== identity.epoch && limits) this.#hear(router, limits);
    });
    bus.subscribe(subjects.routerGone, (bytes) => {
      const other = this.#others.get(readGoodbye(bytes).epoch);
      if (other) [other.hasLeft, other.heardMs] = [true, clock.nowMs()];
      this.#divide();
    });
    inStep(clock, CHECK_MS, signal, (lateMs) => {
      this.#check(lateMs);
    });
  }

  /** Routers that give limits now, this one included. */
  get numRouters(): number {
    return this.#numRouters;
  }

  /** Part of each limit by the minute that this router gives, 0 to 1; 0 before it has heard the others. */
  get share(): number {
    return this.#share;
  }

  /** Whether this router has heard the others. */
  get gives(): boolean {
    const { clock } = this.#options;
    return this.#connectedMs !== undefined && clock.nowMs() >= this.#connectedMs + LISTEN_MS && !this.#hasLeft;
  }

  /** Resolves when this router {@link gives}, or after `timeoutMs`: the bus may not be there. */
  async begun(timeoutMs: number): Promise<void> {
    const { clock, signal } = this.#options;
    const untilMs = clock.nowMs() + timeoutMs;
    while (this.#share === 0 && clock.nowMs() < untilMs && !signal.aborted) await clock.sleep(CHECK_MS, signal);
  }

  /** Tells the others what was used here, before a goodbye; nothing is let through any more. */
  leave(): void {
    this.#hasLeft = true;
    this.#divide();
  }

  /** Returns what a tenant used at other routers beyond their shares. */
  over(tenant: string): Over {
    let sum = NOTHING;
    for (const { over } of this.#others.values()) {
      const own = Object.hasOwn(over, tenant) ? over[tenant] : undefined;
      if (own) sum = { requests: sum.requests + own.requests, tokens: sum.tokens + own.tokens };
    }
    return sum;
  }

  /** Returns the other routers, for the notices of this one. */
  heard(): LimitsNotice['others'] {
    const nowMs = this.#options.clock.nowMs();
    const heard: LimitsNotice['others'] = {};
    let room = MAX_TOLD;
    for (const [router, { heardMs, share, hasLeft, over }] of this.#others) {
      const told = Object.entries(over).slice(0, room);
      room -= told.length;
      heard[router] = { share, hasLeft, agoMs: nowMs - heardMs, over: Object.fromEntries(told) };
    }
    return heard;
  }

  #hear(router: string, { others, ...given }: LimitsNotice): void {
    const { clock, identity, announce } = this.#options;
    const nowMs = clock.nowMs();
    const isKnown = this.#others.has(router);
    this.#count(router, { ...given, heardMs: nowMs, hasLeft: false });
    for (const [other, { agoMs, ...said }] of Object.entries(others))
      if (other !== identity.epoch) this.#count(other, { ...said, heardMs: nowMs - agoMs });
    // It listens for a moment only, and has to know what was let through.
    if (!this.#divide() && !isKnown && this.#others.has(router)) announce();
  }

  /** Takes news of another router, unless newer ones are known. */
  #count(router: string, news: OtherRouter): void {
    const known = this.#others.get(router);
    const isOld = known ? known.hasLeft || known.heardMs > news.heardMs : this.#others.size >= MAX_OTHERS;
    if (!isOld && !isOver(news, this.#options.clock.nowMs())) this.#others.set(router, news);
  }

  #check(lateMs: number): void {
    const { bus, clock } = this.#options;
    const nowMs = clock.nowMs();
    if (bus.isConnected) this.#connectedMs ??= nowMs;
    // Nobody can be heard without the bus, or while this process stands still.
    if (!bus.isConnected || lateMs > LATE_MS)
      for (const other of this.#others.values()) if (!other.hasLeft) other.heardMs = nowMs;
    for (const [router, other] of this.#others) if (isOver(other, nowMs)) this.#others.delete(router);
    this.#divide();
  }

  /**
   * Divides what those that are gone have not given among those that live. The share of one that falls silent stays what it was, so that it
   * does not matter when it is taken for gone. @returns whether the share is another one, which the others are told at once
   */
  #divide(): boolean {
    const { clock, announce } = this.#options;
    const aliveMs = clock.nowMs() - SILENCE_MS;
    let [numAlive, withheld] = [1, 0];
    for (const { share, hasLeft, heardMs } of this.#others.values())
      if (!hasLeft && heardMs > aliveMs) numAlive++;
      else if (!hasLeft) withheld += share;
    const share = this.gives ? Math.max(0, 1 - withheld) / numAlive : 0;
    this.#numRouters = numAlive;
    if (share === this.#share) return false;
    this.#share = share;
    announce();
    return true;
  }
}

/** Whether nothing of a router counts any more: it is gone, and what it let through is over a minute old. */
function isOver({ heardMs, hasLeft }: OtherRouter, nowMs: number): boolean {
  return nowMs - heardMs >= (hasLeft ? LEFT_MS : SILENT_MS);
}
