/**
 * Whether members can be called at the addresses that they announce: their health service is asked. A member counts once it has answered.
 *
 *   admitted ──answers──► counts ──a call fails──► suspect ──its next heartbeat, and it answers──► counts
 *       │                              └──three calls in a row fail──┐
 *       └──does not answer──────────────────────────────────────────►unreachable ──asked every second, answers──► counts
 *
 * Heartbeats come over the bus, and say nothing about the way to a member.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { asFailure, messageOf } from '../../../shared/base/failure.ts';
import type { Log } from '../../../shared/base/log.ts';
import { linkSignals } from '../../../shared/base/signal.ts';
import type { Bus } from '../../../shared/bus/bus.ts';
import { askOnce, type Network } from '../../../shared/net/network.ts';
import { subjects, toBytes, type Member } from '../../../shared/protocol/membership.ts';
import type { Instance } from '../../../shared/placement/instance.ts';

/** Time limit of one check. A registration waits for the first check, and its sender waits two seconds for the reply. */
const CHECK_TIMEOUT_MS = 1_000;
const AGAIN_MS = 1_000;

/** Dependencies of a Reachability, and its callback. */
export interface ReachabilityOptions {
  readonly network: Network;
  readonly bus: Bus;
  readonly clock: Clock;
  readonly log: Log;
  readonly signal: AbortSignal;
  /** The epoch of this router. */
  readonly router: string;
  /** Called after each check of an instance; the instance may count now, or no longer. */
  readonly onChanged: (instance: Instance) => void;
}

/** Calls members at their addresses, and records which of them answer. */
export class Reachability {
  readonly #options: ReachabilityOptions;
  /** Members under check, each called until it answers. Bounded by the members (P1). */
  readonly #asked = new Set<Instance>();

  constructor(options: ReachabilityOptions) {
    this.#options = options;
  }

  /** Calls the health service of a process at its address. Resolves to undefined when it answers, else to the reason, for people. */
  async check({ address, epoch }: Member, signal: AbortSignal): Promise<string | undefined> {
    const { network } = this.#options;
    try {
      await askOnce(network, address, 'check', { service: epoch }, { signal, timeoutMs: CHECK_TIMEOUT_MS });
      return undefined;
    } catch (error) {
      const { code } = asFailure(error);
      if (code === 'not_found') return `another process answers at ${address}`;
      if (code === 'deadline_exceeded') return `${address} does not answer within ${CHECK_TIMEOUT_MS} ms`;
      return messageOf(error);
    }
  }

  /** Checks a member that has just been admitted. Resolves after the first check, whatever the result. */
  async admitted(instance: Instance): Promise<void> {
    if (instance.isUnchecked) await this.#ask(instance);
  }

  /** Handles a heartbeat: checks a member that is suspect or does not count. */
  heard(instance: Instance): void {
    if (instance.isSuspect || !instance.isCounted) void this.#ask(instance);
  }

  /**
   * Checks a member that is not under check yet. Resolves after the first check; when it fails, checks continue in the background
   * until one succeeds.
   */
  async #ask(instance: Instance): Promise<void> {
    if (this.#asked.has(instance)) return;
    this.#asked.add(instance);
    if (await this.#isReached(instance)) this.#asked.delete(instance);
    else void this.#askAgain(instance);
  }

  async #askAgain(instance: Instance): Promise<void> {
    const { clock, signal } = this.#options;
    const link = linkSignals(signal, instance.lost.signal);
    do await clock.sleep(AGAIN_MS, link.signal);
    while (!link.signal.aborted && !(await this.#isReached(instance)));
    link.release();
    this.#asked.delete(instance);
  }

  /** Checks a member once and records the result. Resolves to true when the member answered, is lost, or the router ends. */
  async #isReached(instance: Instance): Promise<boolean> {
    const { signal, clock } = this.#options;
    const { unreachable: before } = instance;
    const link = linkSignals(signal, instance.lost.signal);
    const cause = await this.check(instance.member, link.signal);
    const isOver = link.signal.aborted;
    link.release();
    if (isOver) return true;
    if (cause === undefined) instance.answered(clock.nowMs());
    else instance.failed(cause);
    if (instance.unreachable !== before) this.#notify(instance);
    this.#options.onChanged(instance);
    return cause === undefined;
  }

  #notify({ member, unreachable }: Instance): void {
    const { bus, log, router } = this.#options;
    const { name, address, epoch } = member;
    if (unreachable === undefined) log.info({ member: name, address }, 'reached');
    else
      log.warn(
        { member: name, address, cause: unreachable },
        'cannot be reached at its address, so nothing is placed there: check --advertise and the network',
      );
    bus.publish(subjects.reach(epoch), toBytes({ router, unreachable: unreachable ?? null }));
  }
}
