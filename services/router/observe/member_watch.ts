/** Watches the members and the router itself for changes that no message reports, and puts them into the event log. */
import type { Clock } from '../../../shared/base/clock.ts';
import type { ClusterView } from '../cluster/cluster_view.ts';
import type { Instance } from '../../../shared/placement/instance.ts';
import type { MemberEvent } from '../cluster/member_changes.ts';
import type { PolicyInForce } from '../conductor/policy_in_force.ts';
import type { Alarms } from './alarms.ts';
import type { EventLog, NewEvent } from './event_log.ts';
import { isSilent, nodeState, type NodeState } from './node_state.ts';
import { RecentGrowth } from './recent_growth.ts';

/** Milliseconds without a growing count after which an alarm about the count ends. */
const CALM_MS = 60_000;
/** Preemptions of one instance within CALM_MS that are an alarm: its device has too few blocks for what runs. */
const MANY_PREEMPTIONS = 20;
/** Milliseconds after the start in which instances may still be on their way, and from the joining of one in which its disk may still be opened. */
const GRACE_MS = 10_000;

/** Parts of the router that a MemberWatch looks at. */
export interface Watched {
  readonly view: Pick<ClusterView, 'all' | 'generating'>;
  readonly policy: Pick<PolicyInForce, 'state'>;
  readonly bus: { readonly name: string; readonly isConnected: boolean };
  /** Returns the name of each model, and whether its prefix index promises blocks that nobody has. */
  readonly indexAlarms: () => readonly { readonly model: string; readonly isAlarmed: boolean }[];
}

/** Values of a member at the last look. */
interface Seen {
  state: NodeState;
  numFailures: number;
  readonly tiers: Set<string>;
  readonly divergent: RecentGrowth;
  readonly preemptions: RecentGrowth;
}

/** Compares the cluster with what it was at the last look, a few times a second. The state is bounded by the members. */
export class MemberWatch {
  readonly #clock: Pick<Clock, 'nowMs'>;
  readonly #events: EventLog;
  readonly #alarms: Alarms;
  readonly #watched: Watched;
  readonly #startMs: number;
  #seen = new Map<Instance, Seen>();
  #policyVersion: number;
  #hasGenerated = false;

  constructor(clock: Pick<Clock, 'nowMs'>, events: EventLog, alarms: Alarms, watched: Watched) {
    this.#clock = clock;
    this.#events = events;
    this.#alarms = alarms;
    this.#watched = watched;
    this.#startMs = clock.nowMs();
    this.#policyVersion = watched.policy.state.version;
  }

  /** Looks at every member once. */
  look(): void {
    const nowMs = this.#clock.nowMs();
    const before = this.#seen;
    this.#seen = new Map();
    for (const instance of this.#watched.view.all()) {
      const seen = before.get(instance) ?? newcomer();
      this.#seen.set(instance, seen);
      this.#lookAt(instance, seen, nowMs);
    }
    for (const instance of before.keys()) if (!this.#seen.has(instance)) this.#alarms.endAll(`${instance.id}:`);
    this.#lookAtRouter(nowMs);
  }

  #lookAt(instance: Instance, seen: Seen, nowMs: number): void {
    const about = aboutOf(instance);
    const { name } = instance.member;
    const { failures, load } = instance;
    if (failures.count > seen.numFailures) {
      const text = `A call of ${name} failed: ${failures.last}`;
      this.#events.addRepeated(`${instance.id}: ${failures.last}`, { kind: 'error', ...about, text });
    }
    seen.numFailures = failures.count;
    const state = nodeState(instance, nowMs);
    if (state !== seen.state)
      this.#events.add({ kind: kindOf(state), ...about, text: sentence(instance, state, nowMs) });
    seen.state = state;
    for (const [tier, { fault }] of Object.entries(load?.tiers ?? {})) {
      // A disk is still being opened when its process joins.
      if (fault !== undefined && nowMs - instance.joinedMs > GRACE_MS) seen.tiers.add(tier);
      if (!seen.tiers.has(tier)) continue;
      this.#alarms.set(`${instance.id}:fault ${tier}`, fault !== undefined, () => ({
        ...about,
        text: `Tier ${tier} of ${name} cannot be used: ${fault ?? ''}`,
        ended: `Tier ${tier} of ${name} can be used again`,
      }));
    }
    // Before its first heartbeat a member has no counts: those of its first one may be of long ago.
    if (!load) return;
    this.#alarms.set(
      `${instance.id}:divergent`,
      seen.divergent.within(load.divergent ?? 0, CALM_MS, nowMs) > 0,
      () => ({
        ...about,
        text: `${name} was offered blocks whose content differs from what it has under the same key: an instance computes wrong KV`,
        ended: `${name} was offered no more blocks with another content for ${CALM_MS / 1_000} s`,
      }),
    );
    const preemptions = seen.preemptions.within(load.preemptions, CALM_MS, nowMs);
    this.#alarms.set(`${instance.id}:preemptions`, preemptions >= MANY_PREEMPTIONS, () => ({
      ...about,
      text: `${name} preempted ${preemptions} sequences within ${CALM_MS / 1_000} s: it has too few device blocks for what runs there`,
      ended: `${name} preempts few sequences again`,
    }));
  }

  #lookAtRouter(nowMs: number): void {
    const { view, policy, bus, indexAlarms } = this.#watched;
    const { version, name, placesBy, setBy } = policy.state;
    if (version !== this.#policyVersion)
      this.#events.add({ kind: 'policy', text: `Requests are placed by ${name} (${placesBy}), set at ${setBy}` });
    this.#policyVersion = version;
    this.#alarms.set('bus', !bus.isConnected, () => ({
      text: `The router has lost the bus ${bus.name}: it hears of no changes`,
      ended: `The router is connected to the bus ${bus.name} again`,
    }));
    const canGenerate = view.generating().some(({ isPlaceable }) => isPlaceable);
    this.#hasGenerated ||= canGenerate || nowMs - this.#startMs > GRACE_MS;
    this.#alarms.set('generate', this.#hasGenerated && !canGenerate, () => ({
      text: 'No instance can generate: requests wait until one joins or can be reached',
      ended: 'An instance can generate again',
      isFatal: true,
    }));
    for (const { model, isAlarmed } of indexAlarms())
      this.#alarms.set(`index ${model}`, isAlarmed, () => ({
        model,
        text: `The prefix index promises blocks of ${model} that no instance has`,
        ended: `The blocks that the prefix index promises of ${model} are found again`,
      }));
  }
}

/** Returns the event of a change of the members. */
export function eventOf({ kind, member: { name, role, address }, model, why }: MemberEvent): NewEvent {
  const text = {
    joined: `${name} joined as ${role} at ${address}`,
    left: `${name} said goodbye`,
    lost: `${name} is lost: ${why}`,
    refused: `${name} at ${address} was refused: ${why}`,
  }[kind];
  return { kind, node: name, role, model, text };
}

function newcomer(): Seen {
  const [divergent, preemptions] = [new RecentGrowth(), new RecentGrowth()];
  return { state: 'alive', numFailures: 0, tiers: new Set(), divergent, preemptions };
}

function aboutOf({ member, model }: Instance): Pick<NewEvent, 'node' | 'role' | 'model'> {
  return { node: member.name, role: member.role, model };
}

function kindOf(state: NodeState): NewEvent['kind'] {
  return state === 'alive' ? 'reachable' : state;
}

function sentence(instance: Instance, state: NodeState, nowMs: number): string {
  const { name } = instance.member;
  const silence = `no heartbeat for ${((nowMs - instance.lastHeardMs) / 1_000).toFixed(1)} s`;
  return {
    alive: `${name} takes requests again`,
    draining: `${name} drains: it finishes what runs there and takes nothing new`,
    suspect: `${name} is suspect: ${isSilent(instance, nowMs) ? silence : `a call failed, ${instance.failures.last}`}`,
    unreachable: `${name} cannot be reached: ${instance.unreachable ?? ''}`,
  }[state];
}
