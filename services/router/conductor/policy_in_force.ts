/**
 * The placement policy that a router places all its models by, and how the routers of a cluster come to have the same one.
 *
 *   --policy ──► version 0, each router's own
 *   set() at one router ──► version + 1 ──cluster.policy──► every router, at once
 *                              └──notices, once a second──► routers that start later, or missed the message
 *
 * The newest change wins: the higher version, and of equal ones that of the router with the higher epoch. So all routers end with the
 * same policy, in whatever order the messages arrive. The last router to end forgets what was set: the next one begins with its option.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { Failure } from '../../../shared/base/failure.ts';
import type { Log } from '../../../shared/base/log.ts';
import type { Bus } from '../../../shared/bus/bus.ts';
import { readPolicy, readRouter, subjects, toBytes, type PolicyNotice } from '../../../shared/protocol/membership.ts';
import type { RouterIdentity } from '../cluster/presence.ts';
import type { ClusterSnapshot, Decision, Policy, Question } from '../../../shared/placement/policy.ts';
import {
  createPolicy,
  isPolicyName,
  policyNames,
  resolvedName,
  type PolicyName,
  type PolicySettings,
} from '../../../shared/placement/policy_registry.ts';

/** Dependencies of a PolicyInForce. */
export interface PolicyInForceOptions {
  readonly bus: Bus;
  readonly identity: RouterIdentity;
  readonly clock: Clock;
  readonly log: Log;
  readonly settings: PolicySettings;
  /** Policy until one is set. */
  readonly initial: PolicyName;
}

/** The policy in force, as `/api/pool` and the command show it. */
export interface PolicyState {
  /** Name that was chosen, perhaps `auto`. */
  readonly name: PolicyName;
  /** Name of the policy that it stands for. */
  readonly placesBy: string;
  /** Number of changes in this cluster so far; 0: none, the router's own option. */
  readonly version: number;
  /** Milliseconds since 1970 at which this router took the policy, on its own clock. */
  readonly sinceMs: number;
  /** Name of the router at which it was set; empty: the router's own option. */
  readonly setBy: string;
}

/** A router's placement policy, which can be replaced while it serves: by {@link set}, or by what another router was told. */
export class PolicyInForce implements Policy {
  readonly #options: PolicyInForceOptions;
  #policy: Policy;
  #state: PolicyState;
  /** The last change that was taken; undefined while the option holds. */
  #taken: PolicyNotice | undefined;
  /** Highest version heard of, also of policies that this router does not know. */
  #newest = 0;

  constructor(options: PolicyInForceOptions) {
    this.#options = options;
    const { bus, identity, clock, settings, initial } = options;
    this.#policy = createPolicy(initial, settings);
    this.#state = { name: initial, placesBy: resolvedName(initial), version: 0, sinceMs: clock.wallMs(), setBy: '' };
    bus.subscribe(subjects.policy, (bytes) => {
      this.#hear(readPolicy(bytes));
    });
    bus.subscribe(subjects.router, (bytes) => {
      const { router, policy } = readRouter(bytes);
      if (policy && router !== identity.epoch) this.#hear(policy);
    });
  }

  get state(): PolicyState {
    return this.#state;
  }

  /** The change that notices of this router carry to others; undefined while no policy was set in this cluster. */
  get notice(): PolicyNotice | undefined {
    return this.#taken;
  }

  get usesAnyRole(): boolean {
    return this.#policy.usesAnyRole ?? false;
  }

  decide(question: Question, snapshot: ClusterSnapshot): Decision {
    return this.#policy.decide(question, snapshot);
  }

  /** Replaces the policy, here at once and at all other routers. @throws Failure `invalid_request` for an unknown name. */
  set(name: string): PolicyState {
    if (!isPolicyName(name)) {
      const known = policyNames.join(', ');
      throw new Failure(
        'invalid_request',
        `there is no placement policy ${JSON.stringify(name)}: choose one of ${known}`,
      );
    }
    const { bus, identity } = this.#options;
    const notice = { policy: name, version: this.#newest + 1, router: identity.epoch, routerName: identity.name };
    this.#take(notice, name);
    bus.publish(subjects.policy, toBytes(notice));
    return this.#state;
  }

  #hear(notice: PolicyNotice): void {
    const { policy, version, router, routerName } = notice;
    const isKnown = version <= this.#newest && !(version === this.#taken?.version && router > this.#taken.router);
    if (isKnown) return;
    if (isPolicyName(policy)) {
      this.#take(notice, policy);
      return;
    }
    this.#newest = version;
    this.#options.log.warn(
      { policy, by: routerName },
      'another router places by a policy that this one does not know: run the same version everywhere',
    );
  }

  #take(notice: PolicyNotice, name: PolicyName): void {
    const { clock, log, settings } = this.#options;
    const { version, routerName: setBy } = notice;
    this.#taken = notice;
    this.#newest = version;
    this.#policy = createPolicy(name, settings);
    this.#state = { name, placesBy: resolvedName(name), version, sinceMs: clock.wallMs(), setBy };
    log.info({ policy: name, version, by: setBy }, 'placement policy changed');
  }
}
