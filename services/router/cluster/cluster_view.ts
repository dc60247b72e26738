/**
 * Members of the cluster, as the router sees them: registered, heard of lately, how loaded.
 *
 *   (register) ──called at its address──► alive ──silence──► gone ──heartbeat──► sent "unknown member", registers again
 *       │            └──goodbye──► gone
 *       └── the name is held by another process that is heard: wait, and be refused when that lasts
 *
 * No verdict on liveness depends on an engine's progress: heartbeats come from control threads.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { Condition } from '../../../shared/base/condition.ts';
import { Failure } from '../../../shared/base/failure.ts';
import type { Log } from '../../../shared/base/log.ts';
import type { Bus } from '../../../shared/bus/bus.ts';
import type { Network } from '../../../shared/net/network.ts';
import { formatDigest, formatDifference } from '../../../shared/kv/format.ts';
import {
  readGoodbye,
  readHeartbeat,
  readInquiry,
  readRegistration,
  subjects,
  toBytes,
  type Inquiry,
  type Member,
  type Registration,
  type RegistrationReply,
  type Role,
} from '../../../shared/protocol/membership.ts';
import type { Admitted } from './models.ts';
import { CountedStores } from './counted_stores.ts';
import { DecodeSightings } from '../../../shared/placement/decode_sightings.ts';
import { Instance } from '../../../shared/placement/instance.ts';
import { refusalOf, type MemberEvent } from './member_changes.ts';
import type { AllMembers, ClusterModel } from '../../../shared/placement/members_view.ts';
import type { Placements } from '../../../shared/placement/open_placements.ts';
import { Presence, type PresenceOptions, type RouterIdentity } from './presence.ts';
import { Reachability } from './reachability.ts';
import { watchSilence } from './silence_watch.ts';

/** Dependencies of a ClusterView, and its callbacks for members that join, send a heartbeat or are lost. */
export interface ClusterViewOptions extends Pick<PresenceOptions, 'policy' | 'limits'> {
  readonly bus: Bus;
  readonly network: Network;
  /** Name and epoch of this router. */
  readonly identity: RouterIdentity;
  readonly clock: Clock;
  readonly log: Log;
  readonly silenceMs: number;
  /** Returns the model that an engine joins, or why the engine is refused or must wait. */
  readonly admit: (registration: Registration) => Admitted;
  readonly signal: AbortSignal;
  /** Whether the placement policy lets prefill instances generate too; undefined: never. */
  readonly usesAnyRole?: (() => boolean) | undefined;
  readonly onJoined: (instance: Instance) => void;
  /** Called for each heartbeat of a member; `blocks` is the number of block event batches that the member has sent. */
  readonly onHeard: (instance: Instance, blocks: number) => void;
  readonly onLost: (instance: Instance) => void;
  /** Called for each change of the members, refusals included, which come again while a process retries. */
  readonly onEvent?: ((event: MemberEvent) => void) | undefined;
}

/** The router's list of members: answers registrations, follows heartbeats, and drops members that are silent, leave or restart. */
export class ClusterView implements AllMembers {
  readonly #options: ClusterViewOptions;
  readonly #instances = new Map<string, Instance>();
  /** Models that have engines, by name. */
  readonly #models = new Map<string, ClusterModel>();
  readonly #presence: Presence;
  readonly #reachability: Reachability;
  readonly #placements: Placements = { last: 0 };
  readonly #stores: CountedStores;
  /** Notified when an instance joins, leaves or is placeable again. Waiters are bounded by the requests in flight. */
  readonly #changed = new Condition();
  readonly #sightings: DecodeSightings;

  constructor(options: ClusterViewOptions) {
    this.#options = options;
    const { bus, identity, clock, signal } = options;
    this.#stores = new CountedStores(bus, identity.epoch);
    this.#sightings = new DecodeSightings(clock);
    const { network, log } = options;
    this.#reachability = new Reachability({
      network,
      bus,
      clock,
      log,
      signal,
      router: identity.epoch,
      onChanged: (instance) => {
        this.#reachChanged(instance);
      },
    });
    bus.serve(subjects.register(identity.epoch), async (bytes) =>
      toBytes(await this.#register(readRegistration(bytes))),
    );
    bus.serve(subjects.inquire(identity.epoch), async (bytes) => toBytes(await this.#inquire(readInquiry(bytes))));
    bus.subscribe(subjects.heartbeat, (bytes) => {
      this.#receiveHeartbeat(bytes);
    });
    bus.subscribe(subjects.goodbye, (bytes) => {
      const { name, epoch } = readGoodbye(bytes);
      const instance = this.#instances.get(name);
      if (instance?.member.epoch === epoch) this.#drop(instance, 'left');
    });
    watchSilence({
      ...options,
      members: () => this.#instances.values(),
      onSilent: (instance) => {
        this.#drop(instance, 'silent');
      },
    });
    const version = (): number => this.#stores.version;
    const { policy, limits } = options;
    this.#presence = new Presence({ bus, identity, clock, signal, version, policy, limits });
  }

  /** Announces this router on the bus. */
  notice(): void {
    this.#presence.notice();
  }

  /** Announces on the bus that this router leaves, so that its members need not wait until it is silent. */
  leave(): void {
    this.#presence.leave();
  }

  /** Names of the other routers of this cluster whose notices still arrive. */
  get otherRouters(): string[] {
    return this.#presence.others();
  }

  /** The first model that has engines; undefined when no engine is a member. */
  get model(): ClusterModel | undefined {
    const [first] = this.#models.values();
    return first;
  }

  get models(): ReadonlyMap<string, ClusterModel> {
    return this.#models;
  }

  all(): Instance[] {
    return [...this.#instances.values()];
  }

  of(role: Role): Instance[] {
    return this.all().filter(({ member }) => member.role === role);
  }

  byHolder(id: string): Instance | undefined {
    const instance = this.#instances.get(id.slice(0, id.lastIndexOf('/')));
    return instance?.id === id ? instance : undefined;
  }

  /** Returns the function that says which instances may generate now. */
  #mayGenerate(): (one: Pick<Instance, 'role' | 'model' | 'numericsClass'>) => boolean {
    if (!this.#options.usesAnyRole?.()) return ({ role }) => role === 'decode';
    return this.#sightings.generatingAsDecodes(this.of('decode'));
  }

  generating(): Instance[] {
    return this.all().filter(this.#mayGenerate());
  }

  decodeSeenMs(numTokens: number, model?: string): number | undefined {
    return this.#sightings.lastMs(this.#mayGenerate(), this.all(), numTokens, model);
  }

  /** Resolves when an instance joins, leaves or is placeable again; or after `timeoutMs`, or when `signal` aborts. */
  async changed(timeoutMs: number, signal: AbortSignal): Promise<void> {
    await this.#changed.within(timeoutMs, this.#options.clock, signal);
  }

  /** Answers the inquiry of a process that has not loaded its model yet, so that a refusal comes before the slow load. */
  async #inquire(inquiry: Inquiry): Promise<RegistrationReply> {
    const { member, engine } = inquiry;
    const own = engine && this.model;
    const reason =
      this.#refusal(inquiry) ??
      (own && engine.blockSize !== own.format.blockSize
        ? `${member.name} has --block-size ${engine.blockSize}, the cluster ${own.format.blockSize}`
        : undefined);
    if (reason !== undefined) return this.#refused(member, reason, 'refused a process');
    const unreachable = await this.#reachability.check(member, this.#options.signal);
    return { kind: 'accepted', version: this.#stores.version, stores: [], ...(unreachable ? { unreachable } : {}) };
  }

  async #register(registration: Registration): Promise<RegistrationReply> {
    const { member } = registration;
    const admitted = this.#admission(registration);
    if ('wait' in admitted) return { kind: 'wait', reason: admitted.wait, patienceMs: admitted.patienceMs };
    const reason = 'refused' in admitted ? admitted.refused : undefined;
    if (reason !== undefined) return this.#refused(member, reason, 'refused a registration');
    const known = this.#instances.get(member.name);
    if (known?.member.epoch === member.epoch) {
      known.lastHeardMs = this.#options.clock.nowMs();
    } else {
      if (known?.holdsName(this.#options.clock.nowMs())) {
        const reason = `the name ${member.name} belongs to process ${known.member.pid} at ${known.member.address}, which lives: give one of them another --name`;
        return { kind: 'wait', reason };
      }
      if (known) this.#drop(known, 'restarted');
      this.#admit(registration, 'model' in admitted ? admitted.model : undefined);
    }
    const instance = this.#instances.get(member.name);
    if (instance) await this.#reachability.admitted(instance);
    const unreachable = instance?.unreachable;
    return {
      kind: 'accepted',
      version: this.#stores.version,
      stores: this.#stores.all(),
      ...(unreachable === undefined ? {} : { unreachable }),
    };
  }

  /** Decides on a registration: the model that is joined, a refusal or a wait. A store joins no model. */
  #admission(registration: Registration): Admitted | { readonly model: undefined } {
    const { member, engine } = registration;
    const refused = this.#refusal(registration);
    if (refused !== undefined) return { refused };
    if (!engine) return { model: undefined };
    const admitted = this.#options.admit(registration);
    const own = 'model' in admitted ? this.#models.get(admitted.model) : undefined;
    const difference = own && formatDifference(engine.format, own.format);
    return difference ? { refused: `${member.name} serves another model or layout: ${difference}` } : admitted;
  }

  #refusal(asking: Pick<Registration, 'member' | 'protocolVersion'>): string | undefined {
    return refusalOf(asking, this.#instances);
  }

  /** Logs and reports that a process was refused, and returns the reply that says so. */
  #refused(member: Member, reason: string, message: string): RegistrationReply {
    const { log, onEvent } = this.#options;
    log.warn({ member: member.name, address: member.address, reason }, message);
    onEvent?.({ kind: 'refused', member, model: undefined, why: reason });
    return { kind: 'refused', reason };
  }

  #admit(registration: Registration, model: string | undefined): void {
    const { clock, log, onJoined, onEvent } = this.#options;
    const { member, engine } = registration;
    if (engine && model !== undefined && !this.#models.has(model))
      this.#models.set(model, {
        format: engine.format,
        digest: formatDigest(engine.format),
        stateBytes: engine.stateBytes,
      });
    const instance = new Instance(registration, clock.nowMs(), this.#placements, model);
    instance.isUnchecked = true;
    this.#instances.set(member.name, instance);
    log.info({ member: member.name, role: member.role, address: member.address }, 'joined');
    onJoined(instance);
    onEvent?.({ kind: 'joined', member, model, why: '' });
  }

  /** Updates the counted stores and wakes waiters, after a check of whether the instance can be reached. */
  #reachChanged(instance: Instance): void {
    const { member, isCounted } = instance;
    if (this.#instances.get(member.name) !== instance) return;
    this.#stores.set(instance, isCounted);
    this.#changed.notify();
  }

  #receiveHeartbeat(bytes: Buffer): void {
    const { bus, identity, clock, onHeard } = this.#options;
    const { name, epoch, ...status } = readHeartbeat(bytes);
    const instance = this.#instances.get(name);
    if (instance?.member.epoch !== epoch) {
      // The sender takes itself for a member; this message makes it register again, with every check.
      bus.publish(subjects.unknownMember(epoch), toBytes({ router: identity.epoch }));
      return;
    }
    const { member } = instance;
    const wasUsable = instance.isPlaceable && (instance.work !== undefined || member.role === 'store');
    instance.receiveHeartbeat(status, identity.epoch, clock.nowMs());
    onHeard(instance, status.blocks);
    this.#reachability.heard(instance);
    // Requests wait for an instance that is placeable again, and for one whose first heartbeat says what it can do.
    if (!wasUsable) this.#changed.notify();
  }

  #drop(instance: Instance, why: 'silent' | 'left' | 'restarted'): void {
    const { clock, log, silenceMs, signal, onLost, onEvent } = this.#options;
    this.#sightings.left(instance);
    this.#instances.delete(instance.member.name);
    log.warn({ member: instance.member.name, why }, 'lost');
    const cause = why === 'silent' ? `no heartbeat for ${silenceMs} ms` : why === 'left' ? '' : 'it was restarted';
    onEvent?.({ kind: why === 'left' ? 'left' : 'lost', member: instance.member, model: instance.model, why: cause });
    const told = 'an instance is lost';
    const failure = new Failure('instance_lost', `${instance.member.name} is lost`, { told });
    const end = instance.lost.abort.bind(instance.lost, failure);
    // The goodbye may overtake the last replies on other connections: running calls get time to end by themselves.
    if (why === 'left') void clock.sleep(silenceMs, signal).then(end);
    else end();
    onLost(instance);
    const { model } = instance;
    if (model !== undefined && !this.all().some((one) => one.model === model)) this.#models.delete(model);
    this.#stores.set(instance, false);
    this.#changed.notify();
  }
}
