/**
 * The order of requests while instances refuse work because their queues are full: by priority, lower first, then by age. A request that
 * waits rises by one priority every AGE_MS, so that none waits for ever.
 *
 *   refused by full instances ──enter──► waiting ──placed, or ended──► left
 *   any request ──turn──► at once while nobody before it waits, else after a pause
 *
 * The order decides who asks first when an instance has room again. It is kept by pauses, each at most MAX_TURN_MS: a request that waits
 * for something else than the others cannot hold them up.
 */
import type { Clock } from '../../../shared/base/clock.ts';

/** Milliseconds of waiting that count as one priority. */
const AGE_MS = 10_000;
/** Milliseconds between two looks at who is before a request, and for which it waits for them at most. */
const LOOK_MS = 50;
const MAX_TURN_MS = 1_000;

/** A request in the order. */
export interface Ranked {
  readonly priority: number;
  /** When the request arrived, in ms on the router's clock. */
  readonly sinceMs: number;
}

/** Requests of one model that full instances have refused; bounded by the requests in flight (P1). */
export class BusyOrder {
  readonly #clock: Clock;
  readonly #waiting = new Set<Ranked>();
  #first: Ranked | undefined;
  #firstMs = -Infinity;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Number of requests that wait. */
  get size(): number {
    return this.#waiting.size;
  }

  /** Adds a request that full instances have refused. */
  enter(one: Ranked): void {
    this.#waiting.add(one);
    this.#firstMs = -Infinity;
  }

  /** Removes a request that was placed or has ended; one that is not in the order is left alone. */
  leave(one: Ranked): void {
    if (this.#waiting.delete(one)) this.#firstMs = -Infinity;
  }

  /** Resolves when no request before this one waits, after MAX_TURN_MS, or when `signal` aborts. */
  async turn(one: Ranked, signal: AbortSignal): Promise<void> {
    for (let ms = 0; ms < MAX_TURN_MS && this.#isBehind(one) && !signal.aborted; ms += LOOK_MS)
      await this.#clock.sleep(LOOK_MS, signal);
  }

  #isBehind(one: Ranked): boolean {
    if (this.#waiting.size === 0) return false;
    const nowMs = this.#clock.nowMs();
    // One search serves all that look at about the same time.
    if (nowMs - this.#firstMs >= LOOK_MS) {
      this.#firstMs = nowMs;
      this.#first = undefined;
      for (const other of this.#waiting) if (!this.#first || isBefore(other, this.#first, nowMs)) this.#first = other;
    }
    return this.#first !== undefined && this.#first !== one && isBefore(this.#first, one, nowMs);
  }
}

function isBefore(one: Ranked, other: Ranked, nowMs: number): boolean {
  const difference = levelOf(one, nowMs) - levelOf(other, nowMs);
  return difference === 0 ? one.sinceMs < other.sinceMs : difference < 0;
}

/** Priority less the steps by which waiting has raised it. */
function levelOf({ priority, sinceMs }: Ranked, nowMs: number): number {
  return priority - Math.floor((nowMs - sinceMs) / AGE_MS);
}
