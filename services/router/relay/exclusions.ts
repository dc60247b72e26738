/**
 * Instances that one request keeps away from, and until when.
 *
 *   failed     until it is heard of again, and a moment longer, so that many requests do not come back at once; another epoch is
 *              another instance
 *   busy       for a moment: busy is not broken
 *   unhelpful  a holder that was to give blocks and did not: for the attempt that asked it
 *
 * Bounded (P1) by the attempts and prefills of the request.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import type { Random } from '../../../shared/base/random.ts';
import type { Instance } from '../cluster/instance.ts';

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

  /** A new attempt asks every holder again. */
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

  /** Whether it is asked for blocks. */
  isHolder(instance: Instance): boolean {
    return !this.#unhelpful.has(instance.id) && !this.has(instance);
  }
}
