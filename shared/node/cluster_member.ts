/**
 * A process as a member of its cluster: registers with the hub, says every HEARTBEAT_MS that it lives, hears who else does.
 *
 * Heartbeats come from the control thread and carry the engine's last step time: slow is not dead.
 */
import { every, type Clock } from '../base/clock.ts';
import { Failure, messageOf } from '../base/failure.ts';
import type { Log } from '../base/log.ts';
import { HubClient } from '../bus/hub_client.ts';
import type { Bus } from '../bus/bus.ts';
import type { Network } from '../net/network.ts';
import {
  readMembers,
  readRegistrationReply,
  subjects,
  toBytes,
  type Load,
  type Member,
  type Registration,
} from '../protocol/membership.ts';

const HEARTBEAT_MS = 500;
const REGISTER_TIMEOUT_MS = 5_000;
const REGISTER_PAUSE_MS = 500;
/** While another process of the same name is heard. */
const WAIT_PAUSE_MS = 200;
const MAX_WAIT_MS = 10_000;
/** A hub that does not answer is reported this often. */
const SILENT_HUB_MS = 5_000;

export interface ClusterMemberOptions {
  readonly join: string;
  readonly registration: Registration;
  readonly load: () => Load;
  readonly network: Network;
  readonly clock: Clock;
  readonly log: Log;
  /** Once, when the hub has accepted this process for the first time. */
  readonly onJoined: () => void;
  /** The cluster does not want this process; the message says why. */
  readonly onRefused: (failure: Failure) => void;
}

export class ClusterMember {
  readonly bus: Bus;
  readonly #options: ClusterMemberOptions;
  readonly #left = new AbortController();
  #members: readonly Member[] = [];
  #hasJoined = false;
  #isRegistered = false;
  #isRegistering = false;
  /** When the hub first said that another process of this name is heard. */
  #waitsSinceMs: number | undefined;
  #isConnected = false;

  constructor(options: ClusterMemberOptions) {
    this.#options = options;
    const { join, network, clock, log, onRefused } = options;
    this.bus = new HubClient({
      address: join,
      ...{ network, clock, log },
      onConnected: () => {
        this.#isConnected = true;
        void this.#register();
      },
      onDisconnected: (reason) => {
        this.#isRegistered = false;
        this.#isConnected = false;
        log.warn({ hub: join, reason }, 'lost the hub, trying again');
      },
      onRefused,
    });
    this.bus.subscribe(subjects.members, (bytes) => {
      this.#members = readMembers(bytes).members;
      this.#checkMembership();
    });
    every(clock, SILENT_HUB_MS, this.#left.signal, () => {
      if (!this.#isConnected) log.warn({ hub: join }, 'the hub does not answer; is the router running there?');
    });
    every(clock, HEARTBEAT_MS, this.#left.signal, () => {
      this.heartbeat();
    });
  }

  /** Who was in the cluster when the hub last said so; kept while the hub is away. */
  membersOf(role: Member['role']): readonly Member[] {
    return this.#members.filter((member) => member.role === role);
  }

  heartbeat(): void {
    if (!this.#isRegistered) return;
    const { name, epoch } = this.#options.registration.member;
    this.bus.publish(subjects.heartbeat, toBytes({ name, epoch, load: this.#options.load() }));
  }

  /** This process was dropped while it could not speak, or another took its name: it asks again, with every check. */
  #checkMembership(): void {
    const { name, epoch } = this.#options.registration.member;
    if (!this.#isRegistered || this.#members.some((member) => member.name === name && member.epoch === epoch)) return;
    this.#isRegistered = false;
    this.#options.log.warn({ hub: this.#options.join }, 'the cluster has dropped this process, registering again');
    void this.#register();
  }

  /** Until it has an answer, the connection is lost or this process leaves. */
  async #register(): Promise<void> {
    if (this.#isRegistering) return;
    this.#isRegistering = true;
    const { clock, log } = this.#options;
    try {
      // Without a connection the next one registers.
      while (this.#isConnected && !this.#left.signal.aborted) {
        const pauseMs = await this.#registerOnce().catch((error: unknown) => {
          log.warn({ error: messageOf(error) }, 'registration failed, trying again');
          return REGISTER_PAUSE_MS;
        });
        if (pauseMs === 0) return;
        await clock.sleep(pauseMs, this.#left.signal);
      }
    } finally {
      this.#isRegistering = false;
    }
  }

  /** @returns how long to wait before the next try; 0: the answer is final. */
  async #registerOnce(): Promise<number> {
    const { registration, clock, onJoined, onRefused } = this.#options;
    const reply = readRegistrationReply(
      await this.bus.request(subjects.register, toBytes(registration), REGISTER_TIMEOUT_MS),
    );
    this.#waitsSinceMs = reply.kind === 'wait' ? (this.#waitsSinceMs ?? clock.nowMs()) : undefined;
    if (this.#waitsSinceMs !== undefined && clock.nowMs() - this.#waitsSinceMs < MAX_WAIT_MS) return WAIT_PAUSE_MS;
    if (reply.kind !== 'accepted') {
      onRefused(new Failure('cluster_mismatch', reply.reason));
      return 0;
    }
    this.#members = reply.members;
    this.#isRegistered = true;
    this.heartbeat();
    if (!this.#hasJoined) onJoined();
    this.#hasJoined = true;
    return 0;
  }

  /** Says goodbye and stops. */
  leave(): void {
    const { name, epoch } = this.#options.registration.member;
    this.bus.publish(subjects.goodbye, toBytes({ name, epoch }));
    this.#left.abort();
    this.bus.close();
  }
}
