/** Which policy routers place by, over one bus under a simulated clock. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { PolicyInForce } from '../../../services/router/conductor/policy_in_force.ts';
import type { PolicyName } from '../../../shared/placement/policy_registry.ts';
import { Presence } from '../../../services/router/cluster/presence.ts';
import { silentLog } from '../../../shared/base/log.ts';
import type { Bus } from '../../../shared/bus/bus.ts';
import { EmbeddedHub } from '../../../shared/bus/embedded_hub.ts';
import { subjects, toBytes } from '../../../shared/protocol/membership.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';
import { cluster, question } from '../../placement/snapshots.ts';

/** A hub of which single ends can be cut off: messages that they publish then are lost, and so are those that they would get. */
class Wire {
  readonly hub = new EmbeddedHub(silentLog);
  readonly cut = new Set<string>();

  end(router: string): Bus {
    const isCut = (): boolean => this.cut.has(router);
    return {
      name: 'wire',
      isConnected: true,
      publish: (subject, payload) => {
        if (!isCut()) this.hub.publish(subject, payload);
      },
      subscribe: (subject, handler) =>
        this.hub.subscribe(subject, (payload) => {
          if (!isCut()) handler(payload);
        }),
      request: (subject, payload) => this.hub.request(subject, payload),
      serve: (subject, handler) => this.hub.serve(subject, handler),
      close: () => undefined,
    };
  }
}

class World {
  readonly clock = new SimulatedClock();
  readonly wire = new Wire();
  readonly #signal = new AbortController().signal;

  router(name: string, initial: PolicyName = 'auto'): PolicyInForce {
    const [bus, identity, clock] = [this.wire.end(name), { name, epoch: `${name}-epoch` }, this.clock];
    const policy = new PolicyInForce({
      bus,
      identity,
      clock,
      log: silentLog,
      initial,
      settings: { localPrefillTokens: 8 },
    });
    new Presence({ bus, identity, clock, signal: this.#signal, version: () => 0, policy: () => policy.notice });
    return policy;
  }
}

const namesOf = (...routers: PolicyInForce[]): string[] => routers.map(({ state }) => state.name);
/** Name of the policy that decides at a router. */
const decider = (router: PolicyInForce): string | undefined => {
  const decision = router.decide(question, cluster({}));
  return decision.kind === 'place' ? decision.policy : undefined;
};

test('a policy that is set decides at every router at once, and at one that starts later within a second', async () => {
  const world = new World();
  const [a, b] = [world.router('a'), world.router('b', 'random')];
  assert.deepEqual([decider(a), decider(b)], ['longest_prefix', 'random'], 'each has its own option');
  const { name, version, setBy } = a.set('least_load');
  assert.deepEqual({ name, version, setBy }, { name: 'least_load', version: 1, setBy: 'a' });
  assert.deepEqual([decider(a), decider(b)], ['least_load', 'least_load']);
  assert.equal(b.state.setBy, 'a');
  const late = world.router('late');
  assert.equal(decider(late), 'longest_prefix');
  await world.clock.run(1_000);
  assert.equal(decider(late), 'least_load');
  assert.equal(late.state.version, 1);
});

test('a router that missed a change takes it within a second of its return; of two changes the newer holds', async () => {
  const world = new World();
  const [a, b] = [world.router('a'), world.router('b')];
  world.wire.cut.add('b');
  a.set('random');
  a.set('sglang');
  b.set('dynamo');
  assert.deepEqual(namesOf(a, b), ['sglang', 'dynamo']);
  world.wire.cut.delete('b');
  await world.clock.run(1_000);
  assert.deepEqual(namesOf(a, b), ['sglang', 'sglang'], 'the second change of a is newer than the first of b');
});

test('of two changes at the same time all routers take the same', async () => {
  const world = new World();
  const [a, b, c] = [world.router('a'), world.router('b'), world.router('c')];
  world.wire.cut.add('a').add('b');
  a.set('random');
  b.set('dynamo');
  world.wire.cut.clear();
  await world.clock.run(1_000);
  assert.deepEqual(namesOf(a, b, c), ['dynamo', 'dynamo', 'dynamo'], 'the epoch of b is the higher');
  a.set('llmd');
  assert.deepEqual(namesOf(a, b, c), ['llmd', 'llmd', 'llmd'], 'a later change is newer at all of them');
});

test('an unknown name is refused with the names that there are, and changes nothing', () => {
  const router = new World().router('a');
  assert.throws(
    () => router.set('fastest'),
    /there is no placement policy "fastest": choose one of auto, .*longest_prefix.*mooncake/,
  );
  assert.equal(router.state.version, 0);
  assert.equal(router.notice, undefined);
});

test('a policy of another version is not taken, and does not stand in the way of a later change', () => {
  const world = new World();
  const router = world.router('a', 'random');
  const notice = { policy: 'of tomorrow', version: 7, router: 'z', routerName: 'newer' };
  world.wire.hub.publish(subjects.policy, toBytes(notice));
  assert.deepEqual(namesOf(router), ['random']);
  assert.equal(router.set('auto').version, 8);
});
