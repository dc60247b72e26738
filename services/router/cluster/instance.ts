/** One incarnation of a member, as this router knows it. */
import { setMaxListeners } from 'node:events';
import {
  holderId,
  type InstanceLoad,
  type Member,
  type HeartbeatStatus,
  type Registration,
} from '../../../shared/protocol/membership.ts';
import { OpenPlacements, type Placements } from './open_placements.ts';

/** Calls that fail in a row before an instance counts as unreachable: one connection may break by itself. */
const MAX_FAILED = 3;
/** A name is its holder's until nothing was heard of it for this long: two heartbeats and a bit. */
const NAME_HELD_MS = 1_200;

/** One incarnation of a cluster member: its registration, load, reachability and the calls placed there. */
export class Instance {
  readonly member: Member;
  readonly registration: Registration;
  /** Name of the model that the instance serves; undefined for a store. */
  readonly model: string | undefined;
  /** Aborts when nothing more can come from it: it is silent, another took its name, or it left some time ago. */
  readonly lost = new AbortController();
  load: InstanceLoad | undefined;
  lastHeardMs: number;
  /** A call could not reach it, and none has since. */
  isSuspect = false;
  /** Whether a heartbeat has come since a call last failed to reach the instance. */
  isHeardSince = true;
  /** Whether the instance has not yet been called since it was admitted. */
  isUnchecked = false;
  /** Why it cannot be called at its address; undefined: it can, as far as is known. */
  unreachable: string | undefined;
  /** When it was last heard as a part of the cluster; undefined: it never was one. */
  countedMs: number | undefined;
  /** Calls in a row that could not reach it. */
  #numFailed = 0;
  readonly #placed: OpenPlacements;

  constructor(registration: Registration, nowMs: number, placements: Placements = { last: 0 }, model?: string) {
    this.model = model;
    this.#placed = new OpenPlacements(placements);
    this.registration = registration;
    this.member = registration.member;
    this.lastHeardMs = nowMs;
    // One listener per request that runs there, taken away when it ends.
    setMaxListeners(0, this.lost.signal);
  }

  get id(): string {
    return holderId(this.member);
  }

  /** The longest prompt and output together that its model, and its device blocks, allow. */
  get maxModelLen(): number {
    return this.registration.engine?.maxModelLen ?? 0;
  }

  /** Whether its name is its own still: a process that was restarted takes the name over as soon as nothing is heard of its predecessor. */
  holdsName(nowMs: number): boolean {
    return (!this.isSuspect || this.isHeardSince) && nowMs - this.lastHeardMs < NAME_HELD_MS;
  }

  get isPlaceable(): boolean {
    return this.isCounted && !this.isSuspect && !this.load?.isDraining;
  }

  /** Whether it is a part of the cluster that others can use: it has answered at its address. */
  get isCounted(): boolean {
    return !this.isUnchecked && this.unreachable === undefined;
  }

  /** A call could not reach it. One that never answered is unreachable at once; others when it is so for the third time in a row. */
  failed(cause: string): void {
    this.isSuspect = true;
    this.isHeardSince = false;
    this.#numFailed++;
    if (this.isUnchecked || this.#numFailed >= MAX_FAILED) this.unreachable = cause;
    this.isUnchecked = false;
  }

  /** Records that the instance answered a call at its address, so that it counts. */
  answered(nowMs: number): void {
    this.isSuspect = false;
    this.isUnchecked = false;
    this.unreachable = undefined;
    this.#numFailed = 0;
    this.countedMs = nowMs;
  }

  get numPlaced(): number {
    return this.#placed.size;
  }

  /**
   * Load that placements compare: the sequences of the last heartbeat plus later placements, or the open placements of this router if
   * they are more.
   */
  get queueLength(): number {
    const { running = 0, waiting = 0 } = this.load ?? {};
    return Math.max(this.#placed.size, running + waiting + this.#placed.numUnreported);
  }

  /** A call goes there. @returns its number. */
  place(): number {
    return this.#placed.add();
  }

  /** Records that the call with this placement number has ended. */
  end(placement: number): void {
    this.#placed.end(placement);
  }

  /**
   * Records a heartbeat: load, time, and the last placement of this router that the instance had seen. `router` is this router's
   * epoch.
   */
  hear({ load, seen }: HeartbeatStatus, router: string, nowMs: number): void {
    this.load = load;
    this.lastHeardMs = nowMs;
    this.isHeardSince = true;
    if (this.isCounted) this.countedMs = nowMs;
    this.#placed.seen(seen[router] ?? 0);
  }
}
