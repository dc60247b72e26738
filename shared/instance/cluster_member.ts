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
import {
  readMembers,
  readRegistrationReply,
  subjects,
  toBytes,
  type Load,
  type Member,
  type Registration,
} from '../protocol/membership.ts';
import type { Peers } from '../protocol/rpc.ts';

const HEARTBEAT_MS = 500;
const REGISTER_TIMEOUT_MS = 5_000;
const REGISTER_PAUSE_MS = 500;

export interface ClusterMemberOptions {
  readonly join: string;
  readonly registration: Registration;
  readonly load: () => Load;
  readonly peers: Peers;
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
  #isConnected = false;

  constructor(options: ClusterMemberOptions) {
    this.#options = options;
    const { join, peers, clock, log, onRefused } = options;
    this.bus = new HubClient({
      address: join,
      ...{ peers, clock, log },
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

  async #register(): Promise<void> {
    const { registration, log, clock, onJoined, onRefused } = this.#options;
    try {
      const reply = readRegistrationReply(
        await this.bus.request(subjects.register, toBytes(registration), REGISTER_TIMEOUT_MS),
      );
      if (reply.kind === 'refused') {
        onRefused(new Failure('cluster_mismatch', reply.reason));
        return;
      }
      this.#members = reply.members;
      this.#isRegistered = true;
      this.heartbeat();
      if (!this.#hasJoined) onJoined();
      this.#hasJoined = true;
    } catch (error) {
      log.warn({ error: messageOf(error) }, 'registration failed, trying again');
      await clock.sleep(REGISTER_PAUSE_MS, this.#left.signal);
      // Without a connection the next one registers.
      if (this.#isConnected && !this.#left.signal.aborted) void this.#register();
    }
  }

  /** Says goodbye and stops. */
  leave(): void {
    const { name, epoch } = this.#options.registration.member;
    this.bus.publish(subjects.goodbye, toBytes({ name, epoch }));
    this.#left.abort();
    this.bus.close();
  }
}
