/**
 * A process's membership of its cluster: registers with every router that it hears, and sends a heartbeat every HEARTBEAT_MS.
 *
 *   connected ──hello──► a router's notice ──inquire──► nothing keeps this process out ──(loaded) register──► accepted
 *                                                           ├── wait: another live process has this name
 *                                                           └── refused: the end, once every router that is heard has refused it
 *
 * An accepted process sends heartbeats; it has joined once a router has called it at its address. Heartbeats come from the control
 * thread and carry the engine's last step time, so a slow engine does not look dead. Without routers, or without the bus, the
 * process continues with the stores that it knows.
 */
import { every, type Clock } from '../base/clock.ts';
import { Failure, messageOf } from '../base/failure.ts';
import type { Log } from '../base/log.ts';
import { DONE } from '../base/signal.ts';
import type { Bus, BusListener } from '../bus/bus.ts';
import {
  readGoodbye,
  readReach,
  readRegistrationReply,
  readRouter,
  readStores,
  readUnknownMember,
  subjects,
  toBytes,
  type Inquiry,
  type Member,
  type HeartbeatStatus,
  type Registration,
  type RouterNotice,
} from '../protocol/membership.ts';
import { KnownRouters, type KnownRouter } from './known_routers.ts';
import { ReachNotice } from './reach_notice.ts';

const HEARTBEAT_MS = 500;
/**
 * Least milliseconds between two heartbeats that changes of the load trigger: with several routers, which do not know of each other's
 * placements, and with a single one.
 */
const MIN_HEARTBEAT_MS = 50;
const MIN_SINGLE_HEARTBEAT_MS = 100;
const REGISTER_TIMEOUT_MS = 2_000;
const REGISTER_PAUSE_MS = 500;
/** Milliseconds between registrations while the router replies `wait`: another live process has the same name. */
const WAIT_PAUSE_MS = 200;
const MAX_WAIT_MS = 10_000;
/**
 * Milliseconds from the connection to the bus before refusals end a process: by then every router has sent its notice, which it does each
 * second. A member that is accepted by one router does not end because others refuse it.
 */
const LISTEN_MS = 1_500;
/** The same for a process that a router has had as a member: that router may be starting again. */
const REJOIN_MS = 20_000;
/** Milliseconds before a router that refused this process is asked again; applies when another router has accepted it. */
const REFUSED_PAUSE_MS = 5_000;
/** Milliseconds between warnings about a bus that does not answer, or on which no router is heard. */
const REPORT_MS = 5_000;
/**
 * Milliseconds to wait for a router with this process's cluster token after a router with another token was heard; then the process
 * ends as refused.
 */
const OTHER_TOKEN_MS = 2_000;

/** Dependencies and callbacks of a {@link ClusterMember}. */
export interface ClusterMemberOptions {
  /** Opens the bus. `onUnverified` is called with the subject of each message that cannot be opened: of another cluster token, or version. */
  readonly openBus: (listener: BusListener, onUnverified: (subject: string) => void) => Bus;
  /** Member entry and, for an engine, planned configuration: known before the model is loaded. */
  readonly inquiry: Inquiry;
  readonly clock: Clock;
  readonly log: Log;
  /** Called when the cluster refuses this process; the failure's message has the reason. */
  readonly onRefused: (failure: Failure) => void;
}

/** Registration of a loaded process, with its heartbeat status and join callback. */
export interface Joining {
  readonly registration: Registration;
  readonly heartbeatStatus: () => HeartbeatStatus;
  /** Called once, when a router has accepted this process and called it at its address. */
  readonly onJoined: () => void;
}

/** A process's membership of its cluster: registers with every router it hears, sends heartbeats and says goodbye. */
export class ClusterMember {
  readonly bus: Bus;
  readonly #options: ClusterMemberOptions;
  readonly #left = new AbortController();
  readonly #routers: KnownRouters;
  #joining: Joining | undefined;
  /** A router has accepted this process. */
  #hasJoined = false;
  /** A router has called it at its address. */
  #isReached = false;
  readonly #notice: ReachNotice;
  /** Time since which this process hears the routers of the bus, or has no router that has accepted it; undefined before it is connected. */
  #listensSinceMs: number | undefined;
  /** Resolves when a router has answered the inquiry favourably. */
  readonly #answered = new AbortController();
  #heartbeatMs = -Infinity;
  #isHeartbeatDue = false;
  #isSuspecting = false;
  /** Whether all routers have refused this process, which ends by it. */
  #isRefused = false;

  constructor(options: ClusterMemberOptions) {
    this.#options = options;
    this.#routers = new KnownRouters(options.clock);
    const { openBus, inquiry, clock, log, onRefused } = options;
    const { epoch, address } = inquiry.member;
    this.#notice = new ReachNotice(log, address);
    this.bus = openBus(
      {
        onConnected: () => {
          this.#listensSinceMs = clock.nowMs();
          this.bus.publish(subjects.hello, Buffer.alloc(0));
          this.heartbeat();
        },
        onDisconnected: (reason) => {
          log.warn({ bus: this.bus.name, reason }, 'lost the bus, trying again');
        },
        onRefused,
      },
      (subject) => void this.#suspectToken(subject),
    );
    this.bus.subscribe(subjects.router, (bytes) => {
      this.#hear(readRouter(bytes));
    });
    this.bus.subscribe(subjects.stores, (bytes) => {
      const { router, ...change } = readStores(bytes);
      this.#routers.change(router, change);
    });
    this.bus.subscribe(subjects.routerGone, (bytes) => {
      this.#routers.left(readGoodbye(bytes).epoch);
    });
    this.bus.subscribe(subjects.unknownMember(epoch), (bytes) => {
      this.#beUnknown(readUnknownMember(bytes).router);
    });
    this.bus.subscribe(subjects.reach(epoch), (bytes) => {
      const { router, unreachable } = readReach(bytes);
      if (this.#routers.get(router)?.isJoined) this.#reached(unreachable ?? undefined);
    });
    every(clock, REPORT_MS, this.#left.signal, () => {
      const { name, isConnected } = this.bus;
      if (!isConnected)
        log.warn({ bus: name }, 'the bus does not answer; is the router, or the NATS server, running there?');
      else if (!this.#routers.isHeard)
        log.warn(
          { bus: name },
          'no notices of a router arrive on the bus; is one running there, with the same --cluster name?',
        );
    });
    every(clock, HEARTBEAT_MS, this.#left.signal, () => {
      this.heartbeat();
    });
  }

  /**
   * Resolves when a router has answered that nothing keeps this process out, or after `timeoutMs` without an answer: processes start
   * in any order.
   */
  async inquired(timeoutMs: number): Promise<void> {
    const over = AbortSignal.any([this.#answered.signal, this.#left.signal]);
    await this.#options.clock.sleep(timeoutMs, over);
    // A router with another cluster token was heard: wait until #suspectToken has decided.
    if (this.#isSuspecting) await this.#options.clock.sleep(OTHER_TOKEN_MS, over);
    // A router has refused this process: wait until the others have been heard.
    if (this.#routers.refusals.some) await this.#options.clock.sleep(LISTEN_MS + REGISTER_PAUSE_MS, over);
  }

  /** Registers with every router that is heard from now on. */
  join(joining: Joining): void {
    this.#joining = joining;
    for (const [router, known] of this.#routers.all()) void this.#register(router, known);
  }

  /** Returns the stores of every router that is heard, one per name; when none is heard, those of the last one. */
  stores(): readonly Member[] {
    return this.#routers.stores();
  }

  heartbeat(): void {
    if (!this.#routers.isJoined) return;
    const { clock, inquiry } = this.#options;
    if (!this.#joining) return;
    this.#listensSinceMs = clock.nowMs();
    this.#heartbeatMs = clock.nowMs();
    const { name, epoch } = inquiry.member;
    this.bus.publish(subjects.heartbeat, toBytes({ name, epoch, ...this.#joining.heartbeatStatus() }));
  }

  /**
   * Sends a heartbeat soon after a placement, and after the end of a prompt or sequence: routers place by the work that is left, and do
   * not know of each other's placements.
   */
  async loadChanged(): Promise<void> {
    if (this.#isHeartbeatDue) return;
    this.#isHeartbeatDue = true;
    const { clock } = this.#options;
    const leastMs = this.#routers.size < 2 ? MIN_SINGLE_HEARTBEAT_MS : MIN_HEARTBEAT_MS;
    await clock.sleep(Math.max(0, this.#heartbeatMs + leastMs - clock.nowMs()), this.#left.signal);
    this.#isHeartbeatDue = false;
    if (!this.#left.signal.aborted) this.heartbeat();
  }

  #hear({ router, version }: RouterNotice): void {
    const known = this.#routers.hear(router);
    if (!known) {
      this.#options.log.warn({ router }, `a process knows at most ${this.#routers.size} routers`);
      return;
    }
    if (!this.#joining) void this.#inquire(router, known);
    else if (!known.isJoined || known.version !== version) void this.#register(router, known);
  }

  /**
   * Registers again, with every check, when a router no longer knows this process: the router missed its heartbeats, or another
   * process took its name.
   */
  #beUnknown(router: string): void {
    const known = this.#routers.get(router);
    if (!known?.isJoined) return;
    known.isJoined = false;
    this.#options.log.warn({ router }, 'the cluster has dropped this process, registering again');
    void this.#register(router, known);
  }

  async #suspectToken(subject: string): Promise<void> {
    if (subject !== subjects.router || this.#hasJoined || this.#isSuspecting) return;
    this.#isSuspecting = true;
    await this.#options.clock.sleep(OTHER_TOKEN_MS, this.#left.signal);
    this.#isSuspecting = false;
    if (this.#routers.size > 0 || this.#left.signal.aborted) return;
    const { onRefused } = this.#options;
    onRefused(
      new Failure(
        'unauthenticated',
        `wrong --cluster-token: the routers on ${this.bus.name} have another, or are of another version`,
      ),
    );
  }

  /**
   * Asks a router, before the model is loaded, whether it would refuse this process. A router that does not answer is asked again at
   * its next notice, and one that refuses until another one has accepted this process, or all have refused it.
   */
  async #inquire(router: string, known: KnownRouter): Promise<void> {
    if (known.isAsking || known.hasAnswered) return;
    known.isAsking = true;
    const { inquiry, log, clock } = this.#options;
    const over = AbortSignal.any([this.#answered.signal, this.#left.signal]);
    try {
      while (!over.aborted && !this.#joining && this.#routers.isThere(router, known)) {
        const bytes = await this.bus.request(subjects.inquire(router), toBytes(inquiry), REGISTER_TIMEOUT_MS);
        const reply = readRegistrationReply(bytes);
        if (reply.kind !== 'refused') {
          Object.assign(known, { hasAnswered: true, refusal: undefined });
          if (reply.kind === 'accepted') this.#notice.show(reply.unreachable);
          this.#answered.abort(DONE);
          return;
        }
        if (this.#refused(router, known, reply.reason)) return;
        await clock.sleep(REGISTER_PAUSE_MS, over);
      }
    } catch (error) {
      known.refusal = undefined;
      log.debug({ router, error: messageOf(error) }, 'a router did not answer the inquiry');
    } finally {
      known.isAsking = false;
      // When the model has loaded during the inquiry, register at once.
      if (this.#joining) void this.#register(router, known);
    }
  }

  /**
   * Handles a router's refusal. Returns whether this process ends by it: when every router that is heard has refused it, and there was time to hear
   * all of them.
   */
  #refused(router: string, known: KnownRouter, reason: string): boolean {
    const { log, clock, onRefused } = this.#options;
    const isNew = known.refusal !== reason;
    known.refusal = reason;
    const listensMs = clock.nowMs() - (this.#listensSinceMs ?? clock.nowMs());
    const isFavoured = this.#answered.signal.aborted && !this.#joining;
    const enoughMs = this.#hasJoined ? REJOIN_MS : LISTEN_MS;
    if (listensMs >= enoughMs && !isFavoured && !this.#routers.isJoined && this.#routers.refusals.all) {
      if (!this.#isRefused) onRefused(new Failure('cluster_mismatch', reason));
      this.#isRefused = true;
      return true;
    }
    if (isNew) log.warn({ router, reason }, 'one of the routers refuses this process; the others are asked too');
    return false;
  }

  /**
   * Handles the result of a router's call to this process's address: `unreachable` is the cause of a failure, undefined after success.
   * The first success completes the join.
   */
  #reached(unreachable: string | undefined): void {
    this.#notice.show(unreachable);
    if (unreachable !== undefined || this.#isReached) return;
    this.#isReached = true;
    this.#joining?.onJoined();
  }

  /** Registers with a router repeatedly, until the answer is final, the bus or the router is lost, or this process leaves. */
  async #register(router: string, known: KnownRouter): Promise<void> {
    if (known.isAsking || !this.#joining) return;
    known.isAsking = true;
    const { clock, log } = this.#options;
    try {
      while (this.bus.isConnected && this.#routers.isThere(router, known) && !this.#left.signal.aborted) {
        const pauseMs = await this.#registerOnce(router, known).catch((error: unknown) => {
          log.warn({ error: messageOf(error) }, 'registration failed, trying again');
          known.refusal = undefined;
          return REGISTER_PAUSE_MS;
        });
        if (pauseMs === 0) return;
        await clock.sleep(pauseMs, this.#left.signal);
      }
    } finally {
      known.isAsking = false;
    }
  }

  /** @returns how long to wait before the next try; 0: the answer is final. */
  async #registerOnce(router: string, known: KnownRouter): Promise<number> {
    const { clock } = this.#options;
    if (!this.#joining) return 0;
    const { registration } = this.#joining;
    const subject = subjects.register(router);
    const reply = readRegistrationReply(await this.bus.request(subject, toBytes(registration), REGISTER_TIMEOUT_MS));
    known.waitsSinceMs = reply.kind === 'wait' ? (known.waitsSinceMs ?? clock.nowMs()) : undefined;
    const patienceMs = (reply.kind === 'wait' ? reply.patienceMs : undefined) ?? MAX_WAIT_MS;
    if (known.waitsSinceMs !== undefined && clock.nowMs() - known.waitsSinceMs < patienceMs) {
      known.refusal = undefined;
      return WAIT_PAUSE_MS;
    }
    if (reply.kind !== 'accepted') {
      if (this.#refused(router, known, reply.reason)) return 0;
      return this.#routers.isJoined ? REFUSED_PAUSE_MS : REGISTER_PAUSE_MS;
    }
    known.refusal = undefined;
    Object.assign(known, { isJoined: true, version: reply.version, stores: reply.stores });
    this.heartbeat();
    this.#hasJoined = true;
    this.#reached(reply.unreachable);
    return 0;
  }

  /** Publishes a goodbye, stops all timers and closes the bus. */
  leave(): void {
    const { name, epoch } = this.#options.inquiry.member;
    this.bus.publish(subjects.goodbye, toBytes({ name, epoch }));
    this.#left.abort();
    this.bus.close();
  }
}
