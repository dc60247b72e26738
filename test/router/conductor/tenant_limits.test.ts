/** Limits of tenants at one router, under a clock that the test moves: what is let in, reserved, settled and refused, and for how long. Budget: 2 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import type { CallerLimits } from '../../../services/router/access/caller.ts';
import { RejectedFailure } from '../../../services/router/conductor/rejected_failure.ts';
import { TenantLimits, type Allowance } from '../../../services/router/conductor/tenant_limits.ts';
import type { Clock } from '../../../shared/base/clock.ts';

const none: CallerLimits = { maxRequests: undefined, maxSamples: undefined, allowsPriority: true };

class World {
  nowMs = 10_000;
  readonly share = { share: 1, gives: true, numRouters: 1, over: () => this.over, heard: () => ({}) };
  over = { requests: 0, tokens: 0 };
  readonly limits = new TenantLimits({ nowMs: () => this.nowMs } as Clock, this.share);

  begin(limits: Partial<CallerLimits>, tenant = 'research'): Allowance | undefined {
    return this.limits.begin({ tenant, limits: { ...none, ...limits } });
  }

  /** Begins requests until one is refused. */
  flood(limits: Partial<CallerLimits>): number {
    for (let count = 0; ; count++) {
      try {
        this.begin(limits)?.end();
      } catch (error) {
        assert(error instanceof RejectedFailure);
        return count;
      }
    }
  }
}

/** Returns the failure of a call that is refused. */
function refusalOf(call: () => unknown): RejectedFailure {
  try {
    call();
  } catch (error) {
    assert(error instanceof RejectedFailure);
    assert.deepEqual([error.code, error.status, error.reason], ['rate_limit_exceeded', 429, 'rate_limit']);
    return error;
  }
  return assert.fail('it was let in');
}

test('a tenant without limits is not counted', () => {
  const world = new World();
  assert.equal(world.begin({}), undefined);
  assert.equal(world.limits.view({ tenant: 'research', limits: none }), undefined);
});

test('requests a minute: all at once, then none until a minute has gone, and the failure says how long that is', () => {
  const world = new World();
  const limits = { requestsPerMinute: 60 };
  assert.equal(world.flood(limits), 60);
  world.nowMs += 20_500;
  const { message, retryAfterMs } = refusalOf(() => world.begin(limits));
  assert.equal(retryAfterMs, 71_000 - world.nowMs);
  assert.match(message, /the tenant research may use 60 requests a minute; 60 are used, .* try again in 41 s/);
  assert.equal(world.flood(limits), 0, 'a refused request moves nothing');
  world.nowMs += retryAfterMs;
  assert.equal(world.flood(limits), 60);
});

test('a tenant that asks twenty times as often gets its limit in any minute, and nearly all of it', () => {
  const world = new World();
  const times: number[] = [];
  for (let i = 0; i < 60_000; i++) {
    world.nowMs += 10;
    try {
      world.begin({ requestsPerMinute: 300 })?.end();
      times.push(world.nowMs);
    } catch {
      // Refused.
    }
  }
  const most = times.reduce(
    (found, atMs, i) => Math.max(found, (times[i + 300] ?? Infinity) < atMs + 60_000 ? 301 : 0),
    0,
  );
  assert.equal(most, 0, 'no 301 are within a minute');
  assert(times.length >= 10 * 300 * 0.97, `${times.length} in ten minutes`);
});

test('all keys of a tenant are counted together, tenants are not', () => {
  const world = new World();
  const limits = { requestsPerMinute: 1 };
  world.begin(limits)?.end();
  refusalOf(() => world.begin(limits));
  world.begin(limits, 'sales')?.end();
});

test('requests in flight end once, whoever ends them, and a refused one is not counted', () => {
  const world = new World();
  const limits = { maxRequests: 2 };
  const [first, second] = [world.begin(limits), world.begin(limits)];
  const { message, retryAfterMs } = refusalOf(() => world.begin(limits));
  assert.match(message, /may have 2 requests in flight, and has/);
  assert.equal(retryAfterMs, undefined);
  first?.end();
  first?.end();
  const third = world.begin(limits);
  refusalOf(() => world.begin(limits));
  second?.end();
  third?.end();
  assert(world.begin(limits) && world.begin(limits));
});

test('tokens are reserved, and what was really used takes their place, more or less', () => {
  const world = new World();
  const limits = { tokensPerMinute: 1_000 };
  const left = (): number | undefined =>
    world.limits.view({ tenant: 'research', limits: { ...none, ...limits } })?.tokens?.remaining;
  const [short, long] = [world.begin(limits), world.begin(limits)];
  assert(short && long);
  short.reserve(300);
  long.reserve(400);
  assert.equal(left(), 300);
  const { message } = refusalOf(() => world.begin(limits)?.reserve(301));
  assert.match(message, /1000 tokens a minute; 700 are used, and 301 more needed: try again in \d+ s/);
  world.nowMs += 30_000;
  short.settle(50);
  assert.equal(left(), 550);
  long.settle(600);
  long.settle(0);
  assert.equal(left(), 350, 'only the first settlement counts');
  world.nowMs = 71_000;
  assert.equal(left(), 800, 'what was used beyond the reservation is used when it is known');
});

test('one that failed before anything was computed for it gives all back', () => {
  const world = new World();
  const limits = { tokensPerMinute: 100 };
  const one = world.begin(limits);
  one?.reserve(100);
  refusalOf(() => world.begin(limits));
  one?.settle(0);
  one?.end();
  world.begin(limits)?.reserve(100);
});

test('a request over the whole limit is refused for good, and hinders no other', () => {
  const world = new World();
  const limits = { tokensPerMinute: 1_000 };
  const { message, isFinal, retryAfterMs } = refusalOf(() => world.begin(limits)?.reserve(1_001));
  assert.deepEqual([isFinal, retryAfterMs], [true, undefined]);
  assert.match(message, /may use 1000 tokens a minute; this request alone needs 1001.*: shorten the prompt/);
  world.begin(limits)?.reserve(999);
});

test('where there is no room for its smallest request, none of a tenant is let in to be read', () => {
  const world = new World();
  const limits = { tokensPerMinute: 1_000 };
  for (let i = 0; i < 3; i++) world.begin(limits)?.reserve(300);
  refusalOf(() => world.begin(limits));
  // After a minute without any that was so small, one may be smaller.
  world.nowMs += 60_001;
  assert(world.begin(limits));
});

test('limits that change hold from the next request on, and counts go on', () => {
  const world = new World();
  assert.equal(world.flood({ requestsPerMinute: 10 }), 10);
  assert.equal(world.flood({ requestsPerMinute: 25 }), 15);
  const { retryAfterMs = 0 } = refusalOf(() => world.begin({ requestsPerMinute: 5 }));
  world.nowMs += retryAfterMs;
  assert.equal(world.flood({ requestsPerMinute: 5 }), 5);
});

test('each of several routers gives its part, at least one, and less while others have let through more than theirs', () => {
  const world = new World();
  [world.share.numRouters, world.share.share] = [3, 1 / 3];
  assert.equal(world.flood({ requestsPerMinute: 100 }), 33);
  const { message } = refusalOf(() => world.begin({ requestsPerMinute: 100 }));
  assert.match(message, /\(33 of them at this router, since others serve too\)/);
  assert.equal(world.flood({ requestsPerMinute: 34 + 99 }), 44 - 33);
  world.nowMs += 61_000;
  world.over = { requests: 10, tokens: 10 };
  assert.equal(world.flood({ requestsPerMinute: 60 }), 10);
  world.over = { requests: 40, tokens: 0 };
  assert.equal(refusalOf(() => world.begin({ requestsPerMinute: 60 })).retryAfterMs, 60_000);
  assert.match(refusalOf(() => world.begin({ requestsPerMinute: 60 })).message, /try again in 60 s/);
  world.nowMs += 61_000;
  world.over = { requests: 0, tokens: 0 };
  assert.equal(world.flood({ requestsPerMinute: 1 }), 1, 'a tenant is served at each router');
  const [one] = [world.begin({ maxRequests: 2 })];
  refusalOf(() => world.begin({ maxRequests: 2 }));
  one?.end();
  const { isFinal, message: large } = refusalOf(() => world.begin({ tokensPerMinute: 900 })?.reserve(400));
  assert(isFinal);
  assert.match(large, /\(300 of them at this router, since others serve too\)/);
});

test('a router that listens for others lets nothing through that is limited by the minute', () => {
  const world = new World();
  world.share.gives = false;
  const { message, retryAfterMs } = refusalOf(() => world.begin({ requestsPerMinute: 100 }));
  assert.match(message, /has just started/);
  assert.equal(retryAfterMs, 2_000);
  assert(world.begin({ maxRequests: 1 }), 'what is in flight is known here');
});

test('notices say what a tenant used beyond the share, and tenants that use nothing are forgotten (P1)', () => {
  const world = new World();
  for (let i = 0; i < 1_500; i++) {
    const one = world.begin({ requestsPerMinute: 9, tokensPerMinute: 90 }, `t${i}`);
    one?.reserve(80);
    one?.end();
  }
  assert.deepEqual(world.limits.notice(), { share: 1, over: {}, others: {} });
  world.share.share = 1 / 2;
  const { over } = world.limits.notice();
  assert.equal(Object.keys(over).length, 1_000, 'a notice is bounded');
  assert.deepEqual(over['t0'], { requests: 0, tokens: 80 - 45 });
  world.nowMs += 61_000;
  assert.deepEqual(world.limits.notice().over, {});
  // One that leaves gives nothing any more, so that all is beyond its share, of the limits that there are.
  world.begin({ requestsPerMinute: 9 })?.end();
  world.share.share = 0;
  assert.deepEqual(world.limits.notice().over, { research: { requests: 1, tokens: 0 } });
  world.nowMs += 61_000;
  world.limits.notice();
  assert.equal(world.limits.size, 0);
});
