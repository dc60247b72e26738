/** Presence of routers on the bus: announces this router, and tracks the others by their notices. */
import { inStep, type Clock } from '../../../shared/base/clock.ts';
import type { Bus } from '../../../shared/bus/bus.ts';
import {
  readGoodbye,
  readRouter,
  subjects,
  toBytes,
  type LimitsNotice,
  type PolicyNotice,
} from '../../../shared/protocol/membership.ts';

const NOTICE_MS = 1_000;
/** Milliseconds between two notices in answer to hellos, at least. */
const HELLO_MS = 50;
/** Milliseconds without a notice after which another router counts as gone. */
const SILENCE_MS = 5_000;
/** Upper bound of the other routers that are tracked (P1). */
const MAX_OTHERS = 64;

/** Name of a router, and the epoch of its process. */
export interface RouterIdentity {
  readonly name: string;
  readonly epoch: string;
}

/** Limits of tenants, as others hear of them. */
export interface AnnouncedLimits {
  /** Returns what each notice says of them. */
  notice(): LimitsNotice;
  /** Called before the goodbye: sends a last notice. */
  leave(): void;
}

/** Dependencies of a Presence. */
export interface PresenceOptions {
  readonly bus: Bus;
  readonly identity: RouterIdentity;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  /** Returns the version of this router's list of stores, which each notice carries. */
  readonly version: () => number;
  /** Returns the last change of the placement policy, which each notice carries; undefined while there was none. */
  readonly policy: () => PolicyNotice | undefined;
  /** Limits of tenants that this router gives; undefined without keys. */
  readonly limits?: AnnouncedLimits | undefined;
}

/** Announces this router on the bus, and keeps the list of the other routers that are heard. */
export class Presence {
  readonly #options: PresenceOptions;
  /** The other routers, by epoch, with the time of their last notice. */
  readonly #others = new Map<string, { readonly name: string; readonly heardMs: number }>();
  #noticeMs = -Infinity;
  #isNoticeDue = false;

  constructor(options: PresenceOptions) {
    this.#options = options;
    const { bus, identity, clock, signal } = options;
    bus.subscribe(subjects.hello, () => void this.#answerHello());
    bus.subscribe(subjects.router, (bytes) => {
      const { router, name } = readRouter(bytes);
      if (router !== identity.epoch && (this.#others.has(router) || this.#others.size < MAX_OTHERS))
        this.#others.set(router, { name, heardMs: clock.nowMs() });
    });
    bus.subscribe(subjects.routerGone, (bytes) => {
      this.#others.delete(readGoodbye(bytes).epoch);
    });
    inStep(clock, NOTICE_MS, signal, () => {
      this.notice();
    });
  }

  /** Returns the names of the other routers that are not silent. */
  others(): string[] {
    const sinceMs = this.#options.clock.nowMs() - SILENCE_MS;
    for (const [epoch, { heardMs }] of this.#others) if (heardMs < sinceMs) this.#others.delete(epoch);
    return [...this.#others.values()].map(({ name }) => name);
  }

  notice(): void {
    const { bus, identity, clock } = this.#options;
    this.#noticeMs = clock.nowMs();
    const [version, policy, limits] = [this.#options.version(), this.#options.policy(), this.#options.limits?.notice()];
    const said = { ...(policy ? { policy } : {}), ...(limits ? { limits } : {}) };
    const notice = { router: identity.epoch, name: identity.name, version, ...said };
    bus.publish(subjects.router, toBytes(notice));
  }

  leave(): void {
    const { bus, identity, limits } = this.#options;
    limits?.leave();
    bus.publish(subjects.routerGone, toBytes(identity));
  }

  async #answerHello(): Promise<void> {
    if (this.#isNoticeDue) return;
    this.#isNoticeDue = true;
    const { clock, signal } = this.#options;
    await clock.sleep(Math.max(0, this.#noticeMs + HELLO_MS - clock.nowMs()), signal);
    this.#isNoticeDue = false;
    if (!signal.aborted) this.notice();
  }
}
