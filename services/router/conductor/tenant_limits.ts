/**
 * Limits of tenants: requests a minute, tokens a minute, requests in flight. Each holds for all keys of a tenant together, at all routers
 * together (limit_share.ts).
 *
 *   headers ──begin──► in flight, a request is used ──prompt read──reserve──► its tokens are used ──settle──► what it really used ──end
 *
 * Counts go on when the file of keys changes: a request keeps the limits that it began with, the next one has the new ones.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import type { LimitsNotice } from '../../../shared/protocol/membership.ts';
import type { Caller, CallerLimits } from '../access/caller.ts';
import type { LimitShare } from './limit_share.ts';
import { RateWindow } from './rate_window.ts';
import { RejectedFailure } from './rejected_failure.ts';

const MINUTE_MS = 60_000;
/** Milliseconds after which a client asks again a router that still listens for others. */
const LISTENING_MS = 2_000;
/** Tenants over their share in a notice, the first ones (P1): a notice has to fit into a message of any bus. */
const MAX_TOLD = 1_000;

/** A limit by the minute, as headers show it: of the tenant, and of this router's part of it what is left. */
export interface RateView {
  readonly limit: number;
  readonly remaining: number;
  /** Milliseconds until nothing of it is used. */
  readonly resetMs: number;
}

/** The limits by the minute of a tenant; undefined where there is none. */
export interface LimitsView {
  readonly requests: RateView | undefined;
  readonly tokens: RateView | undefined;
}

/** One request that its tenant's limits have let in. */
export interface Allowance {
  /** Whether tokens are limited, so that somebody has to say how many it will use. */
  readonly countsTokens: boolean;
  /** Reserves tokens, once. @throws RejectedFailure `rate_limit_exceeded` when there is no room for them */
  reserve(tokens: number): void;
  /** Puts what was used in the place of what was reserved. */
  settle(tokens: number): void;
  /** Ends the request. A second call does nothing. */
  end(): void;
}

/** Counts of a tenant that has used something in the last minute. */
class Counts {
  readonly requests = new RateWindow();
  readonly tokens = new RateWindow();
  numInFlight = 0;
  /** Limits of its last request. */
  limits: CallerLimits;
  #least: { readonly tokens: number; readonly atMs: number } | undefined;

  constructor(limits: CallerLimits) {
    this.limits = limits;
  }

  /** Remembers the tokens that a request needs. */
  asked(tokens: number, nowMs: number): void {
    if (!this.#least || nowMs - this.#least.atMs > MINUTE_MS || tokens <= this.#least.tokens)
      this.#least = { tokens, atMs: nowMs };
  }

  /** Returns the tokens of the smallest request of the last minute; 1 when there was none. */
  least(nowMs: number): number {
    return this.#least && nowMs - this.#least.atMs <= MINUTE_MS ? this.#least.tokens : 1;
  }

  isIdle(nowMs: number): boolean {
    return this.numInFlight === 0 && this.requests.used(nowMs) === 0 && this.tokens.used(nowMs) === 0;
  }
}

/** A limit by the minute, and its window. */
interface Rate {
  readonly window: RateWindow;
  readonly limit: number;
  /** Part of the limit that this router gives now. */
  readonly own: number;
  readonly unit: 'requests' | 'tokens';
}

/** Parts of a {@link LimitShare} that say how much this router gives. */
type ShareOfLimits = Pick<LimitShare, 'share' | 'gives' | 'numRouters' | 'over' | 'heard'>;

/** Judges requests by the limits of their tenants, and counts what they use. */
export class TenantLimits {
  readonly #clock: Clock;
  readonly #share: ShareOfLimits;
  /** Tenants with limits that have used something in the last minute: as many as the file of keys has, at most (P1). */
  readonly #tenants = new Map<string, Counts>();

  constructor(clock: Clock, share: ShareOfLimits) {
    this.#clock = clock;
    this.#share = share;
  }

  /** Tenants that are counted now. */
  get size(): number {
    return this.#tenants.size;
  }

  /**
   * Judges a request by its headers, and counts it; undefined for a caller without limits. The caller ends what is returned. @throws
   * RejectedFailure `rate_limit_exceeded`, for which nothing is counted
   */
  begin({ tenant, limits }: Pick<Caller, 'tenant' | 'limits'>): Allowance | undefined {
    const { requestsPerMinute, tokensPerMinute, maxRequests } = limits;
    if (requestsPerMinute === undefined && tokensPerMinute === undefined && maxRequests === undefined) return undefined;
    const nowMs = this.#clock.nowMs();
    const counts = this.#of(tenant, limits);
    this.#checkFlight(tenant, counts.numInFlight, maxRequests);
    const { requests, tokens } = this.#rates(tenant, counts, limits);
    if (requests || tokens) this.#checkListening();
    if (requests) this.#check(tenant, requests, 1, nowMs);
    // Where there is no room for the smallest of its requests, none is read: a flood reaches no thread.
    if (tokens) this.#check(tenant, tokens, counts.least(nowMs), nowMs);
    counts.requests.use(1, nowMs);
    counts.numInFlight++;
    return this.#allowance(tenant, limits, counts);
  }

  /** Returns the limits by the minute of a caller, and what is left of them here; undefined for one that has none. */
  view({ tenant, limits }: Pick<Caller, 'tenant' | 'limits'>): LimitsView | undefined {
    if (limits.requestsPerMinute === undefined && limits.tokensPerMinute === undefined) return undefined;
    const nowMs = this.#clock.nowMs();
    const { requests, tokens } = this.#rates(tenant, this.#of(tenant, limits), limits);
    const of = (rate: Rate | undefined): RateView | undefined =>
      rate && {
        limit: rate.limit,
        remaining: Math.max(0, Math.floor(rate.own - rate.window.used(nowMs))),
        resetMs: rate.window.untilMs(0, nowMs),
      };
    return { requests: of(requests), tokens: of(tokens) };
  }

  /** Returns what notices of this router say; forgets tenants that have used nothing in the last minute. */
  notice(): LimitsNotice {
    const nowMs = this.#clock.nowMs();
    const { share } = this.#share;
    const over: [string, { requests: number; tokens: number }][] = [];
    for (const [tenant, counts] of this.#tenants) {
      if (counts.isIdle(nowMs)) this.#tenants.delete(tenant);
      else if (over.length < MAX_TOLD) {
        const beyond = (window: RateWindow, limit: number | undefined): number =>
          limit === undefined ? 0 : Math.max(0, window.used(nowMs) - partOf(limit, share));
        const requests = beyond(counts.requests, counts.limits.requestsPerMinute);
        const tokens = beyond(counts.tokens, counts.limits.tokensPerMinute);
        if (requests + tokens > 0) over.push([tenant, { requests, tokens }]);
      }
    }
    return { share, over: Object.fromEntries(over), others: this.#share.heard() };
  }

  #of(tenant: string, limits: CallerLimits): Counts {
    let counts = this.#tenants.get(tenant);
    if (!counts) this.#tenants.set(tenant, (counts = new Counts(limits)));
    counts.limits = limits;
    return counts;
  }

  #rates(
    tenant: string,
    { requests: ofRequests, tokens: ofTokens }: Counts,
    { requestsPerMinute, tokensPerMinute }: CallerLimits,
  ): { readonly requests: Rate | undefined; readonly tokens: Rate | undefined } {
    const { share } = this.#share;
    const over = this.#share.over(tenant);
    const rate = (limit: number | undefined, window: RateWindow, unit: Rate['unit']): Rate | undefined =>
      limit === undefined ? undefined : { window, limit, own: partOf(limit, share) - over[unit], unit };
    return {
      requests: rate(requestsPerMinute, ofRequests, 'requests'),
      tokens: rate(tokensPerMinute, ofTokens, 'tokens'),
    };
  }

  #checkFlight(tenant: string, numInFlight: number, most = Infinity): void {
    const own = Math.max(1, Math.floor(most / this.#share.numRouters));
    if (numInFlight < own) return;
    throw rejected(
      `the tenant ${tenant} may have ${most} requests in flight${ofThis(own, most)}, and has: wait until one has ended`,
    );
  }

  #checkListening(): void {
    if (this.#share.gives) return;
    throw rejected('this router has just started, and listens for what others have let through: try again in 2 s', {
      retryAfterMs: LISTENING_MS,
    });
  }

  /** @throws RejectedFailure when there is no room for what a request needs of a limit */
  #check(tenant: string, { window, limit, own, unit }: Rate, needed: number, nowMs: number): void {
    const used = window.used(nowMs);
    if (used + needed <= own) return;
    const whole = partOf(limit, this.#share.share);
    const of = `the tenant ${tenant} may use ${limit} ${unit} a minute${ofThis(whole, limit)}`;
    if (needed > whole && whole > 0)
      throw rejected(
        `${of}; this request alone needs ${needed}, its prompt and the answer that is expected: shorten the prompt, lower max_tokens, or ask for fewer samples`,
        { isFinal: true },
      );
    // The others' excess is over a minute old then, too.
    const retryAfterMs = own < needed ? MINUTE_MS : window.untilMs(own - needed, nowMs);
    const seconds = Math.ceil(retryAfterMs / 1_000);
    throw rejected(`${of}; ${used} are used, and ${needed} more needed: try again in ${seconds} s`, { retryAfterMs });
  }

  #allowance(tenant: string, limits: CallerLimits, counts: Counts): Allowance {
    const [clock, { tokens: window }] = [this.#clock, counts];
    const countsTokens = limits.tokensPerMinute !== undefined;
    let [reserved, slice, hasSettled, hasEnded] = [0, 0, false, false];
    return {
      countsTokens,
      reserve: (needed) => {
        const { tokens: rate } = this.#rates(tenant, counts, limits);
        if (!rate) return;
        const nowMs = clock.nowMs();
        // One that is never served says nothing of the others.
        if (needed <= partOf(rate.limit, this.#share.share)) counts.asked(needed, nowMs);
        this.#check(tenant, rate, needed, nowMs);
        [reserved, slice] = [needed, window.use(needed, nowMs)];
      },
      settle: (used) => {
        if (!countsTokens || hasSettled) return;
        hasSettled = true;
        const nowMs = clock.nowMs();
        if (used < reserved) window.release(reserved - used, slice, nowMs);
        else if (used > reserved) window.use(used - reserved, nowMs);
      },
      end: () => {
        if (!hasEnded) counts.numInFlight--;
        hasEnded = true;
      },
    };
  }
}

/** Returns a part of a limit, at least 1 of any: a tenant is served wherever it asks. */
function partOf(limit: number, share: number): number {
  // A little more, since three thirds are less than one.
  return share === 0 ? 0 : Math.max(1, Math.floor(limit * share + 1e-6));
}

function ofThis(own: number, limit: number): string {
  return own >= limit ? '' : ` (${own} of them at this router, since others serve too)`;
}

function rejected(
  message: string,
  facts: { readonly retryAfterMs?: number; readonly isFinal?: boolean } = {},
): RejectedFailure {
  return new RejectedFailure('rate_limit_exceeded', message, { reason: 'rate_limit', ...facts });
}
