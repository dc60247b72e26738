/**
 * Limits over several routers on one bus, under a simulated clock: together they give the limit once in any minute, whoever joins, leaves,
 * dies or is cut off. Budget: 20 s.
 */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Presence } from '../../../services/router/cluster/presence.ts';
import { LimitShare } from '../../../services/router/conductor/limit_share.ts';
import { TenantLimits } from '../../../services/router/conductor/tenant_limits.ts';
import { silentLog } from '../../../shared/base/log.ts';
import { Random } from '../../../shared/base/random.ts';
import { EmbeddedHub } from '../../../shared/bus/embedded_hub.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';

const MINUTE_MS = 60_000;
const limits = {
  requestsPerMinute: 100,
  tokensPerMinute: 6_000,
  maxRequests: undefined,
  maxSamples: undefined,
  allowsPriority: true,
};
const tenant = 'research';

/** One router, as far as it concerns limits. */
class Router {
  readonly share: LimitShare;
  readonly tenants: TenantLimits;
  readonly presence: Presence;
  readonly #end = new AbortController();
  isCut = false;

  constructor({ hub, clock }: World, name: string) {
    const { signal } = this.#end;
    const isHeard = (): boolean => !this.isCut && !signal.aborted;
    const router = this as Pick<Router, 'isCut'>;
    const bus = {
      name: 'wire',
      get isConnected() {
        return !router.isCut;
      },
      publish: (subject: string, payload: Buffer) => {
        if (isHeard()) hub.publish(subject, payload);
      },
      subscribe: (subject: string, handler: (payload: Buffer) => void) =>
        hub.subscribe(subject, (payload) => {
          if (isHeard()) handler(payload);
        }),
      request: () => Promise.reject(new Error('unused')),
      serve: () => () => undefined,
      close: () => undefined,
    };
    const identity = { name, epoch: `epoch of ${name}` };
    const announce = (): void => {
      this.presence.notice();
    };
    this.share = new LimitShare({ bus, identity, clock, signal, announce });
    this.tenants = new TenantLimits(clock, this.share);
    const own = {
      notice: () => this.tenants.notice(),
      leave: () => {
        this.share.leave();
      },
    };
    this.presence = new Presence({
      bus,
      identity,
      clock,
      signal,
      version: () => 0,
      policy: () => undefined,
      limits: own,
    });
    this.presence.notice();
  }

  /** Sends a request of so many tokens. @returns whether it is let through */
  ask(tokens: number, own = limits): boolean {
    try {
      const allowance = this.tenants.begin({ tenant, limits: own });
      allowance?.end();
      allowance?.reserve(tokens);
      return true;
    } catch {
      return false;
    }
  }

  leave(): void {
    this.presence.leave();
    this.#end.abort();
  }

  die(): void {
    this.#end.abort();
  }
}

class World {
  readonly clock = new SimulatedClock();
  readonly hub = new EmbeddedHub(silentLog);
  readonly routers: Router[] = [];
  readonly served: { readonly atMs: number; readonly tokens: number }[] = [];
  #numRouters = 0;

  add(): Router {
    const router = new Router(this, `r${++this.#numRouters}`);
    this.routers.push(router);
    return router;
  }

  remove(router: Router, how: 'leave' | 'die'): void {
    router[how]();
    this.routers.splice(this.routers.indexOf(router), 1);
  }

  async run(ms: number): Promise<void> {
    await this.clock.run(this.clock.nowMs() + ms);
  }

  /** Floods a router with requests of so many tokens, until it refuses one. */
  flood(router: Router, tokens: number): void {
    while (router.ask(tokens)) this.served.push({ atMs: this.clock.nowMs(), tokens });
  }

  /** Returns the most requests and tokens that were let through in any minute. */
  most(): { requests: number; tokens: number } {
    const found = { requests: 0, tokens: 0 };
    let [first, tokens] = [0, 0];
    for (const [i, one] of this.served.entries()) {
      tokens += one.tokens;
      for (
        let oldest = this.served[first];
        oldest && oldest.atMs <= one.atMs - MINUTE_MS;
        oldest = this.served[first]
      ) {
        tokens -= oldest.tokens;
        first++;
      }
      found.requests = Math.max(found.requests, i + 1 - first);
      found.tokens = Math.max(found.tokens, tokens);
    }
    return found;
  }
}

test('whoever joins, leaves or dies, no minute has over 1.1 times the limit, and floods get most of it', async () => {
  for (let seed = 1; seed <= 12; seed++) {
    const random = new Random(seed);
    const world = new World();
    world.add();
    const [durationMs, stepMs] = [900_000, 200];
    // Requests that are small are bounded by their number, large ones by their tokens.
    const tokens = seed % 2 === 0 ? 1 : 150;
    for (let atMs = 0; atMs < durationMs; atMs += stepMs) {
      await world.run(stepMs);
      if (random.below(250) === 0) {
        if (world.routers.length < 5 && random.below(2) === 0) world.add();
        const victim = world.routers[random.below(world.routers.length)];
        if (victim && world.routers.length > 1 && random.below(2) === 0)
          world.remove(victim, random.below(2) === 0 ? 'leave' : 'die');
      }
      // Now all at once, now nothing: a router that joins finds others that have given all, or nothing yet.
      if (Math.floor(atMs / 40_000) % 3 === 2) continue;
      for (const router of world.routers) if (random.below(4) === 0) world.flood(router, tokens);
    }
    const { requests, tokens: used } = world.most();
    assert(requests <= 1.1 * limits.requestsPerMinute, `seed ${seed}: ${requests} requests in a minute`);
    assert(used <= 1.1 * limits.tokensPerMinute, `seed ${seed}: ${used} tokens in a minute`);
    const whole = tokens === 1 ? limits.requestsPerMinute : limits.tokensPerMinute / 150;
    const share = world.served.length / ((whole * durationMs) / MINUTE_MS);
    assert(share > 0.3, `seed ${seed}: ${share.toFixed(2)} of the limit is given`);
  }
});

test('a router that has just started lets nothing through, then what the others leave', async () => {
  const world = new World();
  const first = world.add();
  await world.run(2_000);
  world.flood(first, 1);
  assert.equal(world.served.length, 100);
  const second = world.add();
  assert.equal(second.ask(1), false);
  await world.run(2_000);
  assert(second.share.share > 0);
  assert.equal(second.ask(1), false, 'the whole limit of this minute is used');
  await world.run(61_000);
  for (const router of [first, second]) world.flood(router, 1);
  assert.equal(world.served.length, 200);
  assert.deepEqual(world.most(), { requests: 100, tokens: 100 });
});

test('a tenant below its limit notices neither a router that joins nor one that leaves', async () => {
  const world = new World();
  for (let i = 0; i < 3; i++) world.add();
  await world.run(2_000);
  const ask = async (forMs: number): Promise<void> => {
    for (let i = 0; i < forMs / 1_500; i++) {
      await world.run(1_500);
      const able = world.routers.filter(({ share }) => share.share > 0);
      assert(able[i % able.length]?.ask(10), `request ${i} of 40 a minute`);
    }
  };
  await ask(90_000);
  world.add();
  await ask(90_000);
  for (const how of ['leave', 'die'] as const) {
    const [router] = world.routers;
    assert(router);
    world.remove(router, how);
    await ask(90_000);
  }
  assert.deepEqual(
    world.routers.map(({ share }) => share.numRouters),
    [2, 2],
  );
});

test('what a router has let through counts for a minute after it: what was used if it said so, else its whole share', async () => {
  const world = new World();
  const [stays, leaves] = [world.add(), world.add()];
  await world.run(2_000);
  for (let i = 0; i < 20; i++) assert(leaves.ask(1));
  world.remove(leaves, 'leave');
  assert.deepEqual([stays.share.share, stays.share.over(tenant)], [1, { requests: 20, tokens: 20 }]);
  world.flood(stays, 1);
  assert.equal(world.served.length, 80);
  await world.run(62_000);
  world.flood(stays, 1);
  assert.equal(world.served.length, 180);
  const dies = world.add();
  await world.run(2_000);
  world.remove(dies, 'die');
  await world.run(60_000);
  assert.deepEqual([stays.share.numRouters, stays.share.share], [1, 0.5]);
  // It is told to one that joins after it.
  const late = world.add();
  await world.run(2_000);
  assert.deepEqual([stays.share.share, late.share.share], [0.25, 0.25]);
  await world.run(2_000);
  assert.deepEqual([stays.share.share, late.share.share], [0.5, 0.5]);
});

test('routers that fail before they let anything through take the limit from nobody for long', async () => {
  const world = new World();
  const stays = world.add();
  await world.run(2_000);
  for (let i = 0; i < 20; i++) {
    world.remove(world.add(), 'die');
    await world.run(1_000);
    assert(stays.share.share >= 1 / 7);
  }
  await world.run(6_000);
  assert.equal(stays.share.share, 1);
});

test('routers that are cut off the bus go on giving what they gave', async () => {
  const world = new World();
  const [one, other] = [world.add(), world.add()];
  await world.run(2_000);
  for (const router of [one, other]) router.isCut = true;
  await world.run(300_000);
  assert.deepEqual([one.share.numRouters, other.share.numRouters], [2, 2]);
  for (const router of [one, other]) router.isCut = false;
  await world.run(2_000);
  assert.deepEqual([one.share.numRouters, other.share.numRouters], [2, 2]);
});

test('a router without the bus lets nothing through, and its start does not wait for ever', async () => {
  const world = new World();
  const router = world.add();
  router.isCut = true;
  let hasBegun = false as boolean;
  const cut = world.add();
  void cut.share.begun(5_000).then(() => (hasBegun = true));
  await world.run(1_400);
  assert.equal(hasBegun, false);
  await world.run(600);
  assert.equal(hasBegun, true);
  assert(cut.share.share > 0);
});

test('of other routers so many are counted at most (P1), and notices of none change nothing', async () => {
  const world = new World();
  const router = world.add();
  for (let i = 0; i < 80; i++) world.add();
  await world.run(10);
  assert.equal(router.share.numRouters, 65);
});
