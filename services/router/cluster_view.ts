/**
 * Who is in the cluster, as the router sees it: registered, heard of lately, how loaded.
 *
 *   (register) ──► alive ──silence──► lost ──heartbeat of the same epoch──► alive
 *                    └──goodbye──► gone
 *
 * No verdict on liveness depends on an engine's progress: heartbeats come from control threads.
 */
import { setMaxListeners } from 'node:events';
import type { Clock } from '../../shared/base/clock.ts';
import { every } from '../../shared/base/clock.ts';
import type { Log } from '../../shared/base/log.ts';
import type { Bus } from '../../shared/bus/bus.ts';
import { namespaceDigest, namespaceDifference, type Namespace } from '../../shared/kv/namespace.ts';
import type { Digest } from '../../shared/kv/block_key.ts';
import { PROTOCOL_VERSION } from '../../shared/protocol/messages.ts';
import {
  holderId,
  readGoodbye,
  readHeartbeat,
  readRegistration,
  subjects,
  toBytes,
  type Load,
  type Member,
  type Registration,
  type RegistrationReply,
  type Role,
} from '../../shared/protocol/membership.ts';

const CHECK_MS = 100;
/** A check that comes this late means that the router itself was stopped. */
const MAX_LATE_MS = 500;
const MEMBERS_MS = 1_000;
/** Members (P1); a larger cluster has more than one router. */
const MAX_MEMBERS = 1_024;

export class Instance {
  readonly member: Member;
  readonly registration: Registration;
  /** Aborts when the instance is lost or gone. */
  readonly lost = new AbortController();
  load: Load | undefined;
  lastHeardMs: number;
  /** Requests this router has placed there and not heard the end of. */
  numPlaced = 0;
  /** A call could not reach it; cleared by its next heartbeat. */
  isSuspect = false;

  constructor(registration: Registration, nowMs: number) {
    this.registration = registration;
    this.member = registration.member;
    this.lastHeardMs = nowMs;
    // One listener per request that runs there, taken away when it ends.
    setMaxListeners(0, this.lost.signal);
  }

  get id(): string {
    return holderId(this.member);
  }

  get isPlaceable(): boolean {
    return !this.isSuspect && !this.load?.isDraining;
  }

  /** What a placement compares: sequences there, by its own word or by this router's, whichever is more. */
  get queueLength(): number {
    return Math.max(this.numPlaced, (this.load?.running ?? 0) + (this.load?.waiting ?? 0));
  }
}

/** What every engine of the cluster agrees on. */
export interface ClusterModel {
  readonly namespace: Namespace;
  readonly digest: Digest;
}

export interface ClusterViewOptions {
  readonly bus: Bus;
  readonly clock: Clock;
  readonly log: Log;
  readonly silenceMs: number;
  /** Of the model folder the router tokenises for. */
  readonly vocabSize: number;
  readonly modelConfig: string;
  readonly signal: AbortSignal;
  readonly onJoined: (instance: Instance) => void;
  /** The same incarnation, after its connection was lost. */
  readonly onRejoined: (instance: Instance) => void;
  readonly onLost: (instance: Instance) => void;
}

export class ClusterView {
  readonly #options: ClusterViewOptions;
  readonly #instances = new Map<string, Instance>();
  /** Silent ones, by holder id, in case they were only paused. Bounded by MAX_MEMBERS. */
  readonly #silent = new Map<string, Registration>();
  #model: ClusterModel | undefined;
  #lastCheckMs: number;

  constructor(options: ClusterViewOptions) {
    this.#options = options;
    const { bus, clock, signal } = options;
    this.#lastCheckMs = clock.nowMs();
    bus.serve(subjects.register, (bytes) => toBytes(this.#register(readRegistration(bytes))));
    bus.subscribe(subjects.heartbeat, (bytes) => {
      this.#hear(bytes);
    });
    bus.subscribe(subjects.goodbye, (bytes) => {
      const { name, epoch } = readGoodbye(bytes);
      const instance = this.#instances.get(name);
      if (instance?.member.epoch === epoch) this.#drop(instance, 'left');
    });
    every(clock, CHECK_MS, signal, () => {
      this.#dropSilent();
    });
    every(clock, MEMBERS_MS, signal, () => {
      this.#publishMembers();
    });
  }

  /** Undefined until the first engine has registered. */
  get model(): ClusterModel | undefined {
    return this.#model;
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

  /** The longest context that every decode instance serves. */
  get maxModelLen(): number | undefined {
    const lengths = this.of('decode').flatMap(({ registration }) => registration.engine?.maxModelLen ?? []);
    return lengths.length > 0 ? Math.min(...lengths) : undefined;
  }

  #register(registration: Registration): RegistrationReply {
    const { member } = registration;
    const reason = this.#refusal(registration);
    if (reason !== undefined) {
      this.#options.log.warn({ member: member.name, address: member.address, reason }, 'refused a registration');
      return { kind: 'refused', reason };
    }
    const known = this.#instances.get(member.name);
    if (known?.member.epoch === member.epoch) {
      known.lastHeardMs = this.#options.clock.nowMs();
      // It was disconnected: events may be lost.
      this.#options.onRejoined(known);
    } else {
      if (known) this.#drop(known, 'restarted');
      this.#admit(registration);
    }
    return { kind: 'accepted', members: this.all().map((instance) => instance.member) };
  }

  #refusal({ member, protocolVersion, engine }: Registration): string | undefined {
    if (protocolVersion !== PROTOCOL_VERSION) {
      return `${member.name} speaks protocol ${protocolVersion}, this router ${PROTOCOL_VERSION}: run the same version everywhere`;
    }
    if (this.#instances.size >= MAX_MEMBERS && !this.#instances.has(member.name)) {
      return `this router serves at most ${MAX_MEMBERS} processes`;
    }
    const namesake = this.#instances.get(member.name);
    if (namesake && namesake.member.role !== member.role) {
      return `the name ${member.name} belongs to a ${namesake.member.role}: give one of them another --name`;
    }
    if (!engine) return undefined;
    if (engine.vocabSize !== this.#options.vocabSize) {
      return `${member.name} serves another model: vocabulary ${engine.vocabSize}, the router's model has ${this.#options.vocabSize}`;
    }
    if (engine.modelConfig !== this.#options.modelConfig) {
      return `${member.name} serves another model: its config.json says something else than that of the router's --model`;
    }
    const difference = this.#model && namespaceDifference(engine.namespace, this.#model.namespace);
    return difference && `${member.name} serves another model or layout: ${difference}`;
  }

  #admit(registration: Registration): void {
    const { clock, log, onJoined } = this.#options;
    const { member, engine } = registration;
    if (engine) this.#model ??= { namespace: engine.namespace, digest: namespaceDigest(engine.namespace) };
    const instance = new Instance(registration, clock.nowMs());
    this.#instances.set(member.name, instance);
    this.#silent.delete(instance.id);
    log.info({ member: member.name, role: member.role, address: member.address }, 'joined');
    onJoined(instance);
    this.#publishMembers();
  }

  #hear(bytes: Buffer): void {
    const { name, epoch, load } = readHeartbeat(bytes);
    const paused = this.#silent.get(holderId({ name, epoch }));
    if (paused && !this.#instances.has(name)) this.#admit(paused);
    const instance = this.#instances.get(name);
    if (instance?.member.epoch !== epoch) return;
    instance.load = load;
    instance.isSuspect = false;
    instance.lastHeardMs = this.#options.clock.nowMs();
  }

  #dropSilent(): void {
    const nowMs = this.#options.clock.nowMs();
    const lateMs = nowMs - this.#lastCheckMs - CHECK_MS;
    this.#lastCheckMs = nowMs;
    if (lateMs > MAX_LATE_MS) {
      // This process slept, not they: what they said meanwhile is still to be read.
      for (const instance of this.all()) instance.lastHeardMs += lateMs;
      return;
    }
    const limitMs = nowMs - this.#options.silenceMs;
    for (const instance of this.all()) {
      if (instance.lastHeardMs >= limitMs) continue;
      this.#silent.set(instance.id, instance.registration);
      const [oldest] = this.#silent.keys();
      if (this.#silent.size > MAX_MEMBERS && oldest !== undefined) this.#silent.delete(oldest);
      this.#drop(instance, 'silent');
    }
  }

  #drop(instance: Instance, why: 'silent' | 'left' | 'restarted'): void {
    const { log, onLost } = this.#options;
    this.#instances.delete(instance.member.name);
    log.warn({ member: instance.member.name, why }, 'lost');
    instance.lost.abort();
    onLost(instance);
    if (!this.all().some(({ registration }) => registration.engine)) this.#model = undefined;
    this.#publishMembers();
  }

  #publishMembers(): void {
    this.#options.bus.publish(subjects.members, toBytes({ members: this.all().map(({ member }) => member) }));
  }
}
