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
import type { Instance } from './instance.ts';

/** A registration waits for the first answer, and is itself waited for two seconds. */
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
  /** The instance was asked: it may count now, or no longer. */
  readonly onChanged: (instance: Instance) => void;
}

/** Calls members at their addresses, and records which of them answer. */
export class Reachability {
  readonly #options: ReachabilityOptions;
  /** Members that are asked again and again. Bounded by the members (P1). */
  readonly #asked = new Set<Instance>();

  constructor(options: ReachabilityOptions) {
    this.#options = options;
  }

  /** Asks a process at its address; undefined: it answered. @returns what keeps it from being reached, for people */
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

  /** The first call to a member that has just been admitted; resolves when it has answered, or not. */
  async admitted(instance: Instance): Promise<void> {
    if (instance.isUnchecked) await this.#ask(instance);
  }

  /** A heartbeat has come: a member that a call could not reach is asked. */
  heard(instance: Instance): void {
    if (instance.isSuspect || !instance.isCounted) void this.#ask(instance);
  }

  /** Asks a member that is not asked already; again and again until it answers, behind the back of who waits for the first time. */
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

  /** Asks once, and notes the answer. */
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
    else log.warn({ member: name, address, cause: unreachable }, 'cannot be reached, and does not count');
    bus.publish(subjects.reach(epoch), toBytes({ router, unreachable: unreachable ?? null }));
  }
}
