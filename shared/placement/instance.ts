/** One incarnation of a member, as this router knows it. */
import { setMaxListeners } from 'node:events';
import {
  holderId,
  type InstanceLoad,
  type Member,
  type HeartbeatStatus,
  type Registration,
  type Role,
} from '../protocol/membership.ts';
import type { InstanceWork } from '../protocol/instance_work.ts';
import { keepFlows, type ReportedFlows } from './reported_flows.ts';
import { OpenPlacements, type PlacedWork, type Placements } from './open_placements.ts';

/** Calls that fail in a row before an instance counts as unreachable: one connection may break by itself. */
const MAX_FAILED = 3;
/** Milliseconds without a heartbeat after which another process may take the name over: two heartbeat intervals and a margin. */
export const SILENT_MS = 1_200;

/** One incarnation of a cluster member: its registration, load, reachability and the calls placed there. */
export class Instance {
  readonly member: Member;
  /** Name of the incarnation as a holder of blocks, by name and epoch. */
  readonly id: string;
  readonly registration: Registration;
  /** Name of the model that the instance serves; undefined for a store. */
  readonly model: string | undefined;
  /** Aborts when no more replies can come from the instance: silent, replaced by a process of the same name, or gone some time ago. */
  readonly lost = new AbortController();
  load: InstanceLoad | undefined;
  /** Router time, in ms, when the instance joined. */
  readonly joinedMs: number;
  /** Flows of blocks into the instance, the latest report of each. */
  readonly flows: ReportedFlows = new Map();
  lastHeardMs: number;
  /** Heartbeats since it joined. */
  readonly heartbeats = { count: 0 };
  /** Whether a call failed to reach the instance, and no health check has succeeded since. */
  isSuspect = false;
  /** Whether a heartbeat has come since a call last failed to reach the instance. */
  isHeardSince = true;
  /** Whether the instance has not yet been called since it was admitted. */
  isUnchecked = false;
  /** Why the instance cannot be called at its address; undefined while no reason is known. */
  unreachable: string | undefined;
  /**
   * Router time, in ms, when the instance last answered a check, or sent a heartbeat while it counted; undefined when it never
   * counted.
   */
  countedMs: number | undefined;
  /** Calls that could not reach the instance since it joined, and why the last one could not; for people. */
  readonly failures: { count: number; last: string } = { count: 0, last: '' };
  /** Number of consecutive calls that could not reach the instance. */
  #numFailed = 0;
  readonly #open: OpenPlacements;

  constructor(registration: Registration, nowMs: number, placements: Placements = { last: 0 }, model?: string) {
    this.model = model;
    this.#open = new OpenPlacements(placements);
    this.registration = registration;
    this.member = registration.member;
    this.id = holderId(this.member);
    this.joinedMs = nowMs;
    this.lastHeardMs = nowMs;
    // Each prefill, embedding and fetch there adds a listener and removes it at its end, so no fixed limit applies.
    setMaxListeners(0, this.lost.signal);
  }

  /** Longest prompt and output together, in tokens, that the model and the instance's device blocks allow; 0 for a store. */
  get maxModelLen(): number {
    return this.registration.engine?.maxModelLen ?? 0;
  }

  /** Tokens of the model's vocabulary; undefined for a store. */
  get vocabSize(): number | undefined {
    return this.registration.engine?.vocabSize;
  }

  get role(): Role {
    return this.member.role;
  }

  /** Numerics class of the engine: those of one class give the same bits (E2). Empty for a store. */
  get numericsClass(): string {
    return this.registration.engine?.numericsClass ?? '';
  }

  /** Whether its name is its own still: a process that was restarted takes the name over as soon as nothing is heard of its predecessor. */
  holdsName(nowMs: number): boolean {
    return (!this.isSuspect || this.isHeardSince) && nowMs - this.lastHeardMs < SILENT_MS;
  }

  get isPlaceable(): boolean {
    return this.isCounted && !this.isSuspect && !this.load?.isDraining;
  }

  /** Whether the instance counts as a part of the cluster that others can use: it has answered at its address and is not unreachable. */
  get isCounted(): boolean {
    return !this.isUnchecked && this.unreachable === undefined;
  }

  /**
   * Records that a call could not reach the instance. An instance that never answered is unreachable at once, others after MAX_FAILED
   * failures in a row.
   */
  failed(cause: string): void {
    this.isSuspect = true;
    this.isHeardSince = false;
    this.failures.count++;
    this.failures.last = cause;
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
    return this.#open.size;
  }

  /**
   * Load that placements compare: the sequences of the last heartbeat plus later placements, or the open placements of this router if
   * they are more.
   */
  get queueLength(): number {
    const { running = 0, waiting = 0 } = this.load ?? {};
    return Math.max(this.#open.size, running + waiting + this.#open.numUnreported);
  }

  /**
   * Work that placements compare: that of the last heartbeat, plus the calls that this router has placed since. The same object until it
   * changes. Undefined when the heartbeats do not carry it.
   */
  get work(): InstanceWork | undefined {
    const reported = this.load?.work;
    return reported && this.#open.addedTo(reported);
  }

  /** Records a call placed at the instance, with its work. Returns the placement number. */
  place(work: PlacedWork): number {
    return this.#open.add(work);
  }

  /** Records that the call with this placement number has ended. */
  end(placement: number): void {
    this.#open.end(placement);
  }

  /**
   * Records a heartbeat: load, time, and the last placement of this router that the instance had seen. `router` is this router's
   * epoch.
   */
  receiveHeartbeat({ load, seen }: HeartbeatStatus, router: string, nowMs: number): void {
    this.load = load;
    keepFlows(this.flows, load.links ?? []);
    this.lastHeardMs = nowMs;
    this.heartbeats.count++;
    this.isHeardSince = true;
    if (this.isCounted) this.countedMs = nowMs;
    this.#open.seen(seen[router] ?? 0);
  }
}
