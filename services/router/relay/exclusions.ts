/**
 * Instances that one request avoids, and until when.
 *
 *   failed     until its next heartbeat, and a pause of at least PAUSE_MS / 2, so that many requests do not return at once; another
 *              epoch is another instance
 *   busy       for the same pause: busy is not broken
 *   unhelpful  a holder that should have delivered blocks and did not: for the attempt that asked it
 *
 * Bounded (P1) by the attempts and prefills of the request.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import type { Random } from '../../../shared/base/random.ts';
import type { Instance } from '../../../shared/placement/instance.ts';

/**
 * Longest pause in milliseconds before an excluded instance is used again; the actual pause is random between half of PAUSE_MS and all
 * of it.
 */
const PAUSE_MS = 200;

interface Entry {
  readonly sinceMs: number;
  readonly untilMs: number;
  readonly isFailed: boolean;
}

/** Instances that one request avoids, and until when. */
export class Exclusions {
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #entries = new Map<string, Entry>();
  readonly #unhelpful = new Set<string>();

  constructor(clock: Clock, random: Random) {
    this.#clock = clock;
    this.#random = random;
  }

  failed(instance: Instance): void {
    this.#add(instance, true);
  }

  busy(instance: Instance): void {
    this.#add(instance, false);
  }

  unhelpful(instance: Instance): void {
    this.#unhelpful.add(instance.id);
  }

  /** Clears the unhelpful holders, because a new attempt may ask every holder again. */
  beginAttempt(): void {
    this.#unhelpful.clear();
  }

  #add({ id }: Instance, isFailed: boolean): void {
    const sinceMs = this.#clock.nowMs();
    const pauseMs = PAUSE_MS / 2 + this.#random.below(PAUSE_MS / 2);
    this.#entries.set(id, { sinceMs, untilMs: sinceMs + pauseMs, isFailed });
  }

  has({ id, lastHeardMs }: Instance): boolean {
    const entry = this.#entries.get(id);
    if (!entry) return false;
    const isHeard = !entry.isFailed || lastHeardMs > entry.sinceMs;
    if (isHeard && this.#clock.nowMs() >= entry.untilMs) this.#entries.delete(id);
    return this.#entries.has(id);
  }

  /** Whether the instance may be asked for blocks: neither unhelpful nor avoided. */
  isHolder(instance: Instance): boolean {
    return !this.#unhelpful.has(instance.id) && !this.has(instance);
  }
}
