/**
 * The order of requests while instances refuse work because their queues are full: fairly among tenants, and within a tenant by priority,
 * lower first, then by age. A request that waits rises by one priority of its tenant's every AGE_MS, so that none waits for ever.
 *
 *   refused by full instances ──enter──► waiting ──placed, or ended──► left
 *   any request ──turn──► at once while nobody before it waits, else after a pause
 *
 * Tenants have virtual counters (fair_shares.ts), which are charged for every request that an instance begins while others wait, by the
 * milliseconds that it is predicted to take. The tenant with the least counter comes first, unless another one's request has a higher
 * precedence; of equal ones that with fewer requests.
 *
 * The order decides who asks first when an instance has room again. It is kept by pauses, each at most MAX_TURN_MS: a request that waits
 * for something else than the others cannot hold them up.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { FairShares } from '../../../shared/base/fair_shares.ts';
import type { Origin } from './generation.ts';

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
  /** The one whose share it takes: its tenant, or where there is none its client; '' by default. */
  readonly sharer?: string;
  /** Weight of the share; 1 by default. */
  readonly weight?: number;
  /** Levels by which it goes before other tenants' requests; 0 by default. */
  readonly precedence?: number;
}

/** The request that comes first, and the highest precedence of its tenant's requests that wait. */
interface First {
  one: Ranked;
  precedence: number;
}

/** Returns a request as it is ranked. */
export function rankedOf({ tenant, client = '', priority, weight = 1, precedence = 0 }: Origin, nowMs: number): Ranked {
  return { priority, sinceMs: nowMs, sharer: tenant || client, weight, precedence };
}

/** Requests of one model that full instances have refused; bounded by the requests in flight (P1). */
export class BusyOrder {
  readonly #clock: Clock;
  readonly #waiting = new Set<Ranked>();
  readonly #shares = new FairShares();
  #first: First | undefined;
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
    this.#firstMs = -Infinity;
    if (this.#waiting.has(one)) return;
    this.#waiting.add(one);
    this.#shares.wait(nameOf(one), one.weight);
  }

  /** Removes a request that has ended; one that is not in the order is left alone. */
  leave(one: Ranked): void {
    if (!this.#waiting.delete(one)) return;
    this.#firstMs = -Infinity;
    this.#shares.end(nameOf(one), true);
  }

  /** Removes a request that an instance has begun, and charges its tenant for `ms()` of engines; nothing while nobody waits. */
  placed(one: Ranked, ms: () => number): void {
    if (this.#waiting.size === 0) return;
    const name = nameOf(one);
    if (this.#waiting.delete(one)) this.#shares.serve(name);
    else this.#shares.begin(name, one.weight);
    this.#shares.charge(name, ms());
    this.#shares.end(name, false);
    this.#firstMs = -Infinity;
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
      this.#first = this.#find(nowMs);
    }
    const first = this.#first;
    if (first === undefined || first.one === one) return false;
    const isOwn = nameOf(first.one) === nameOf(one);
    return isOwn ? isBefore(first.one, one, nowMs) : this.#isAhead(first, { one, precedence: one.precedence ?? 0 });
  }

  /** Returns the first of the waiting requests: the first one of each tenant, and of these the first. */
  #find(nowMs: number): First | undefined {
    const heads = new Map<string, First>();
    for (const one of this.#waiting) {
      const { precedence = 0 } = one;
      const head = heads.get(nameOf(one));
      if (!head) heads.set(nameOf(one), { one, precedence });
      else {
        head.precedence = Math.max(head.precedence, precedence);
        if (isBefore(one, head.one, nowMs)) head.one = one;
      }
    }
    let first: First | undefined;
    for (const head of heads.values()) if (!first || this.#isAhead(head, first)) first = head;
    return first;
  }

  /** Whether a request comes before that of another tenant. */
  #isAhead(a: First, b: First): boolean {
    const [own, other] = [nameOf(a.one), nameOf(b.one)];
    const shares = this.#shares;
    const difference =
      b.precedence - a.precedence ||
      shares.virtualMs(own) - shares.virtualMs(other) ||
      shares.numWaiting(own) - shares.numWaiting(other) ||
      a.one.sinceMs - b.one.sinceMs;
    return difference < 0;
  }
}

function nameOf({ sharer = '' }: Ranked): string {
  return sharer;
}

/** Whether a request comes before another one of its tenant. */
function isBefore(one: Ranked, other: Ranked, nowMs: number): boolean {
  const difference = levelOf(one, nowMs) - levelOf(other, nowMs);
  return difference === 0 ? one.sinceMs < other.sinceMs : difference < 0;
}

/** Priority less the steps by which waiting has raised it. */
function levelOf({ priority, sinceMs }: Ranked, nowMs: number): number {
  return priority - Math.floor((nowMs - sinceMs) / AGE_MS);
}
