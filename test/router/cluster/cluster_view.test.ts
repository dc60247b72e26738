/** Membership under a simulated clock: silence, pauses, epochs, refusals; and the index feed with gaps. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Failure } from '../../../shared/base/failure.ts';
import { silentLog } from '../../../shared/base/log.ts';
import { EmbeddedHub } from '../../../shared/bus/embedded_hub.ts';
import type { Format } from '../../../shared/kv/format.ts';
import { answeringOnce, type HealthReply, type HealthRequest } from '../../../shared/net/network.ts';
import {
  readReach,
  readRouter,
  readStores,
  readUnknownMember,
  readRegistrationReply,
  subjects,
  toBytes,
  type Inquiry,
  type InstanceLoad,
  type Registration,
  type RegistrationReply,
} from '../../../shared/protocol/membership.ts';
import { PROTOCOL_VERSION } from '../../../shared/protocol/messages.ts';
import { ClusterView } from '../../../services/router/cluster/cluster_view.ts';
import { NO_WORK } from '../../../shared/placement/open_placements.ts';
import { ModelView } from '../../../services/router/cluster/model_view.ts';
import { admitTo } from '../../../services/router/cluster/models.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';
import { playedNetwork } from '../../support/played_network.ts';

const format: Format = {
  model: 'm',
  weightFormat: 'f32',
  kvDtype: 'f16',
  layoutVersion: 1,
  blockSize: 32,
  numerics: 'n',
  kv: 'spec',
};
const load: InstanceLoad = { running: 0, waiting: 0, preemptions: 0, lastStepMs: 0, isDraining: false, tiers: {} };

function registration(name: string, epoch: string, change: Partial<Format> = {}, vocabSize = 100): Registration {
  return {
    member: { name, role: 'decode', address: `${name}:1`, pid: 1, epoch },
    protocolVersion: PROTOCOL_VERSION,
    engine: {
      modelConfig: 'config',
      format: { ...format, ...change },
      numericsClass: 'n',
      maxModelLen: 512,
      vocabSize,
      device: 'd',
    },
  };
}

class World {
  readonly clock = new SimulatedClock();
  readonly hub = new EmbeddedHub(silentLog);
  readonly events: string[] = [];
  readonly view: ClusterView;
  usesAnyRole = false;
  /** How members answer when they are called at their addresses. */
  check: (request: HealthRequest) => HealthReply = () => ({ status: 1 });

  constructor() {
    this.view = new ClusterView({
      bus: this.hub,
      network: playedNetwork({ check: answeringOnce<'check'>((request) => this.check(request)) }),
      identity: { name: 'r', epoch: 'r1' },
      clock: this.clock,
      log: silentLog,
      silenceMs: 3_000,
      admit: (registration) => admitTo({ name: 'm', vocabSize: 100, modelConfig: 'config' }, registration),
      signal: new AbortController().signal,
      policy: () => undefined,
      usesAnyRole: () => this.usesAnyRole,
      onJoined: ({ id }) => this.events.push(`joined ${id}`),
      onHeard: ({ id }, blocks) => this.events.push(`heard ${id}: ${blocks}`),
      onLost: ({ id }) => this.events.push(`lost ${id}`),
    });
  }

  async register(message: Registration): Promise<RegistrationReply> {
    return readRegistrationReply(await this.hub.request(subjects.register('r1'), toBytes(message)));
  }

  heartbeat(name: string, epoch: string, change: Partial<InstanceLoad> = {}): void {
    this.hub.publish(subjects.heartbeat, toBytes({ name, epoch, load: { ...load, ...change }, blocks: 0, seen: {} }));
  }

  get names(): string[] {
    return this.view.all().map(({ id }) => id);
  }
}

test('silence is loss; a paused instance that speaks again is told, and comes back through registration alone', async () => {
  const world = new World();
  await world.register(registration('d1', 'a'));
  for (let ms = 500; ms <= 10_000; ms += 500) {
    await world.clock.run(ms);
    world.heartbeat('d1', 'a');
  }
  assert.deepEqual(world.names, ['d1/a']);
  await world.clock.run(12_900);
  assert.deepEqual(world.names, ['d1/a']);
  await world.clock.run(13_200);
  assert.deepEqual(world.names, []);
  const notified: string[] = [];
  world.hub.subscribe(subjects.unknownMember('a'), (bytes) => notified.push(readUnknownMember(bytes).router));
  world.heartbeat('d1', 'a');
  assert.deepEqual(world.names, [], 'a heartbeat is no registration');
  assert.deepEqual(notified, ['r1'], 'it is told who does not know it');
  await world.register(registration('d1', 'a'));
  assert.deepEqual(world.names, ['d1/a']);
  const changes = world.events.filter((event) => !event.startsWith('heard'));
  assert.deepEqual(changes, ['joined d1/a', 'lost d1/a', 'joined d1/a']);
});

test('a paused instance of another model is not taken back when the cluster has changed meanwhile', async () => {
  const world = new World();
  await world.register(registration('d1', 'a'));
  await world.clock.run(3_500);
  assert.deepEqual(world.names, []);
  await world.register(registration('d2', 'a', { model: 'other' }));
  world.heartbeat('d1', 'a');
  const reply = await world.register(registration('d1', 'a'));
  assert.equal(reply.kind, 'refused');
  assert.deepEqual(world.names, ['d2/a']);
});

test('of two processes with one name the first keeps it while it is heard; the second waits', async () => {
  const world = new World();
  await world.register(registration('d1', 'a'));
  for (let ms = 500; ms <= 3_000; ms += 500) {
    await world.clock.run(ms);
    world.heartbeat('d1', 'a');
    const reply = await world.register(registration('d1', 'b'));
    assert(reply.kind === 'wait');
    assert.match(reply.reason, /belongs to process 1 at d1:1, which lives/);
  }
  assert.deepEqual(world.names, ['d1/a']);
  // A call could not reach it: its successor need not wait.
  for (const instance of world.view.all()) instance.failed('no answer');
  assert.equal((await world.register(registration('d1', 'b'))).kind, 'accepted');
  assert.deepEqual(world.names, ['d1/b']);
  // Neither can be reached, and both speak: they do not take turns.
  for (const instance of world.view.all()) instance.failed('no answer');
  world.heartbeat('d1', 'b');
  assert.equal((await world.register(registration('d1', 'c'))).kind, 'wait');
});

test('engines of other numerics are refused, unless they are told to mix', async () => {
  const world = new World();
  await world.register(registration('d1', 'a'));
  const reply = await world.register(registration('d2', 'a', { numerics: 'm' }));
  assert(reply.kind === 'refused');
  assert.match(reply.reason, /numerics is m, the cluster has n: .*--mix-numerics/);
});

test('a new epoch replaces the old one, whose late words count for nothing', async () => {
  const world = new World();
  await world.register(registration('d1', 'a'));
  await world.clock.run(1_300);
  await world.register(registration('d1', 'b'));
  assert.deepEqual(world.events, ['joined d1/a', 'lost d1/a', 'joined d1/b']);
  world.heartbeat('d1', 'a', { running: 9 });
  assert.equal(world.view.all()[0]?.load, undefined);
  world.hub.publish(subjects.goodbye, toBytes({ name: 'd1', epoch: 'a' }));
  assert.deepEqual(world.names, ['d1/b']);
  world.hub.publish(subjects.goodbye, toBytes({ name: 'd1', epoch: 'b' }));
  assert.deepEqual(world.names, []);
});

test('who says goodbye is gone at once, and its calls have time to end: its last words may still be on their way', async () => {
  const world = new World();
  for (const name of ['d1', 'd2']) await world.register(registration(name, 'a'));
  const [left, silent] = world.view.all();
  assert(left && silent);
  world.hub.publish(subjects.goodbye, toBytes({ name: 'd1', epoch: 'a' }));
  assert.deepEqual(world.names, ['d2/a']);
  assert.equal(left.lost.signal.aborted, false);
  await world.clock.run(2_900);
  assert.equal(left.lost.signal.aborted, false);
  await world.clock.run(3_500);
  assert.equal(left.lost.signal.aborted, true);
  assert.equal(silent.lost.signal.aborted, true, 'nothing comes from who is silent');
});

test('another model, layout or protocol is refused by name; the next cluster may have another model', async () => {
  const world = new World();
  await world.register(registration('d1', 'a'));
  const refused = async (message: Registration, pattern: RegExp): Promise<void> => {
    const reply = await world.register(message);
    assert(reply.kind === 'refused');
    assert.match(reply.reason, pattern);
  };
  await refused(registration('d2', 'a', { blockSize: 16 }), /blockSize is 16, the cluster has 32/);
  await refused(registration('d2', 'a', { model: 'other' }), /another model or layout: model/);
  await refused(registration('d2', 'a', {}, 7), /vocabulary 7/);
  const other = registration('d2', 'a');
  await refused({ ...other, engine: { ...other.engine!, modelConfig: 'x' } }, /config\.json says something else/);
  await refused({ ...registration('d2', 'a'), protocolVersion: 99 }, /speaks protocol 99, .*: upgrade this router/);
  await refused({ ...registration('d2', 'a'), protocolVersion: 16 }, /speaks protocol 16, .*: upgrade d2/);
  await refused(
    { ...registration('d1', 'z'), member: { ...registration('d1', 'z').member, role: 'store' } },
    /belongs to a decode/,
  );
  assert.deepEqual(world.names, ['d1/a']);
  world.hub.publish(subjects.goodbye, toBytes({ name: 'd1', epoch: 'a' }));
  assert.equal((await world.register(registration('d2', 'a', { model: 'other' }))).kind, 'accepted');
});

test('a draining instance is not placeable; the longest context of the decode instances is the cluster’s', async () => {
  const world = new World();
  await world.register(registration('d1', 'a'));
  const long = registration('d2', 'a');
  await world.register({ ...long, engine: { ...long.engine!, maxModelLen: 4_096 } });
  assert.equal(new ModelView(world.view, 'm').maxModelLen, 4_096);
  world.heartbeat('d1', 'a', { isDraining: true });
  assert.deepEqual(
    world.view
      .of('decode')
      .filter(({ isPlaceable }) => isPlaceable)
      .map(({ member }) => member.name),
    ['d2'],
  );
});

test('1,024 processes are members, the next is refused (P1); who waits for a change is woken by it', async () => {
  const world = new World();
  let numWoken = 0;
  const waiting = world.view.changed(60_000, new AbortController().signal).then(() => numWoken++);
  for (let i = 0; i < 1_024; i++) await world.register(registration(`d${i}`, 'a'));
  await waiting;
  assert.equal(numWoken, 1);
  const reply = await world.register(registration('one-more', 'a'));
  assert(reply.kind === 'refused');
  assert.match(reply.reason, /at most 1024 processes/);
  assert.equal((await world.register(registration('d7', 'a'))).kind, 'accepted');
});

test('a decode instance is expected for what it could take, also after it left', async () => {
  const world = new World();
  const large = registration('large', 'a');
  await world.register({ ...large, engine: { ...large.engine!, maxModelLen: 4_096 } });
  await world.register(registration('small', 'a'));
  await world.clock.run(1_000);
  world.hub.publish(subjects.goodbye, toBytes({ name: 'large', epoch: 'a' }));
  world.heartbeat('small', 'a');
  await world.clock.run(2_000);
  assert.equal(world.view.decodeSeenMs(3_000), 1_000, 'only the large one could');
  assert.equal(world.view.decodeSeenMs(300), 2_000, 'the small one is there');
  assert.equal(world.view.decodeSeenMs(9_000), undefined);
});

test('where the policy uses any role, prefill instances may generate, and are expected back', async () => {
  const world = new World();
  const large = registration('p', 'a');
  await world.register({ ...large, member: { ...large.member, role: 'prefill' } });
  const own = new ModelView(world.view, 'm');
  const seen = (): unknown[] => [
    own.generating().map(({ member }) => member.name),
    own.maxModelLen,
    own.decodeSeenMs(300),
  ];
  assert.deepEqual(seen(), [[], undefined, undefined]);
  world.usesAnyRole = true;
  assert.deepEqual(seen(), [['p'], 512, 0]);
  await world.clock.run(1_000);
  world.hub.publish(subjects.goodbye, toBytes({ name: 'p', epoch: 'a' }));
  await world.clock.run(2_000);
  assert.deepEqual(seen(), [[], undefined, 1_000]);
  world.usesAnyRole = false;
  assert.deepEqual(seen(), [[], undefined, undefined]);
});

test('a prefill instance generates in the numerics class of decode instances only, until those have been away for a minute', async () => {
  const world = new World();
  world.usesAnyRole = true;
  const join = async (name: string, role: 'prefill' | 'decode', numericsClass: string): Promise<void> => {
    const one = registration(name, 'a');
    await world.register({ ...one, member: { ...one.member, role }, engine: { ...one.engine!, numericsClass } });
  };
  const own = new ModelView(world.view, 'm');
  const seen = (): unknown[] => [own.generating().map(({ member }) => member.name), own.decodeSeenMs(300)];
  let nowMs = 0;
  const run = async (seconds: number, ...names: string[]): Promise<void> => {
    for (let second = 0; second < seconds; second++) {
      for (const name of names) world.heartbeat(name, 'a');
      await world.clock.run((nowMs += 1_000));
    }
  };
  await join('p-gpu', 'prefill', 'gpu');
  await join('p-cpu', 'prefill', 'cpu');
  assert.deepEqual(seen()[0], ['p-gpu', 'p-cpu'], 'without a decode instance any may');
  await join('d', 'decode', 'cpu');
  assert.deepEqual(seen()[0], ['p-cpu', 'd']);
  await run(10, 'p-gpu', 'p-cpu', 'd');
  for (const name of ['d', 'p-cpu']) world.hub.publish(subjects.goodbye, toBytes({ name, epoch: 'a' }));
  await run(59, 'p-gpu');
  assert.deepEqual(seen(), [[], 10_000], 'it is expected back');
  await run(2, 'p-gpu');
  assert.deepEqual(seen(), [['p-gpu'], 71_000], 'an answer of another class is better than none');
});

test('routers say that they are there, when they are asked too, and what stores there are when that changes', async () => {
  const world = new World();
  const notices: number[] = [];
  const stores: string[] = [];
  world.hub.subscribe(subjects.router, (bytes) => notices.push(readRouter(bytes).version));
  world.hub.subscribe(subjects.stores, (bytes) => {
    const { version, came, gone } = readStores(bytes);
    stores.push(`${version}: +${came.map(({ name }) => name).join()} -${gone.map(({ name }) => name).join()}`);
  });
  for (let i = 0; i < 50; i++) world.hub.publish(subjects.hello, Buffer.alloc(0));
  await world.clock.run(100);
  assert.deepEqual(notices, [0], 'many who ask at once hear one answer');
  const store = registration('s1', 'a').member;
  await world.register({ member: { ...store, role: 'store' }, protocolVersion: PROTOCOL_VERSION });
  await world.register(registration('d1', 'a'));
  await world.clock.run(1_200);
  assert.deepEqual(notices, [0, 1]);
  world.hub.publish(subjects.goodbye, toBytes({ name: 's1', epoch: 'a' }));
  assert.deepEqual(stores, ['1: +s1 -', '2: + -s1']);
});

test('other routers are those that were heard lately', async () => {
  const world = new World();
  world.hub.publish(subjects.router, toBytes({ router: 'r2', name: 'second', version: 0 }));
  await world.clock.run(2_000);
  world.hub.publish(subjects.router, toBytes({ router: 'r3', name: 'third', version: 0 }));
  assert.deepEqual(world.view.otherRouters, ['second', 'third']);
  world.hub.publish(subjects.routerGone, toBytes({ name: 'third', epoch: 'r3' }));
  assert.deepEqual(world.view.otherRouters, ['second']);
  await world.clock.run(6_000);
  assert.deepEqual(world.view.otherRouters, []);
});

test('while the bus is away nobody is silent; when it is back they have as long as ever to speak', async () => {
  const world = new World();
  await world.register(registration('d1', 'a'));
  Object.assign(world.hub, { isConnected: false });
  await world.clock.run(60_000);
  assert.deepEqual(world.names, ['d1/a']);
  Object.assign(world.hub, { isConnected: true });
  await world.clock.run(62_900);
  assert.deepEqual(world.names, ['d1/a']);
  await world.clock.run(63_300);
  assert.deepEqual(world.names, []);
});

test('a queue is what an instance says, and what this router has placed there that it had not seen', async () => {
  const world = new World();
  await world.register(registration('d1', 'a'));
  const [instance] = world.view.all();
  assert(instance);
  const placements = Array.from({ length: 5 }, () => instance.place(NO_WORK));
  assert.equal(instance.queueLength, 5);
  // The instance has seen three of this router's placements and runs two requests of another router.
  const hear = (running: number, seen: number): void => {
    world.hub.publish(
      subjects.heartbeat,
      toBytes({ name: 'd1', epoch: 'a', load: { ...load, running }, blocks: 0, seen: { r1: seen, r2: 9 } }),
    );
  };
  hear(5, 3);
  assert.equal(instance.queueLength, 7);
  for (const placement of placements.slice(2)) instance.end(placement);
  assert.equal(instance.queueLength, 5, 'what ended unseen counts no more');
  hear(2, 5);
  assert.equal(instance.queueLength, 2);
  hear(9, 2);
  instance.place(NO_WORK);
  assert.equal(instance.queueLength, 10, 'late words do not make seen ones unseen');
});

const countedOf = (world: World): string[] =>
  world.view
    .all()
    .filter(({ isCounted }) => isCounted)
    .map(({ id }) => id);
const lostAt = (why: string) => (): never => {
  throw new Failure('instance_lost', why);
};

test('a member counts once it has answered at its address; one that does not is told why, and asked every second', async () => {
  const world = new World();
  const asked: string[] = [];
  world.check = ({ service }) => {
    asked.push(service);
    throw new Failure('instance_lost', 'd1:1: connect ECONNREFUSED');
  };
  const notified: (string | null)[] = [];
  world.hub.subscribe(subjects.reach('a'), (bytes) => notified.push(readReach(bytes).unreachable));
  const reply = await world.register(registration('d1', 'a'));
  assert(reply.kind === 'accepted');
  assert.equal(reply.unreachable, 'd1:1: connect ECONNREFUSED');
  const [instance] = world.view.all();
  assert(instance);
  assert.deepEqual([instance.isPlaceable, countedOf(world)], [false, []]);
  assert.equal(world.view.decodeSeenMs(10, 'm'), undefined, 'nobody waits for it');
  for (let ms = 500; ms <= 3_200; ms += 500) {
    await world.clock.run(ms);
    world.heartbeat('d1', 'a');
  }
  await world.clock.run(3_200);
  assert.deepEqual(asked, ['a', 'a', 'a', 'a'], 'at its registration, and each second');
  assert.equal(instance.isPlaceable, false, 'heartbeats come by another way');
  world.check = () => ({ status: 1 });
  await world.clock.run(4_200);
  assert.deepEqual([instance.isPlaceable, countedOf(world)], [true, ['d1/a']]);
  assert.deepEqual(notified, ['d1:1: connect ECONNREFUSED', null]);
});

test('at its address another process answers', async () => {
  const world = new World();
  world.check = () => {
    throw new Failure('not_found', 'unknown service');
  };
  const reply = await world.register(registration('d1', 'a'));
  assert(reply.kind === 'accepted');
  assert.equal(reply.unreachable, 'another process answers at d1:1');
});

test('one that a call could not reach is suspect until it answers: its heartbeat alone does not clear it; the third call in a row is its last', async () => {
  const world = new World();
  await world.register(registration('d1', 'a'));
  const [instance] = world.view.all();
  assert(instance?.isPlaceable);
  world.check = lostAt('no way there');
  instance.failed('the call broke');
  world.heartbeat('d1', 'a');
  await world.clock.run(10);
  assert.deepEqual([instance.isSuspect, instance.unreachable], [true, undefined], 'the second');
  await world.clock.run(1_100);
  assert.equal(instance.unreachable, 'no way there', 'the third');
  assert.deepEqual(countedOf(world), []);
  assert.notEqual(world.view.decodeSeenMs(10, 'm'), undefined, 'it was there a moment ago');
  world.check = () => ({ status: 1 });
  await world.clock.run(2_200);
  assert.deepEqual([instance.isPlaceable, instance.unreachable], [true, undefined]);
  // A connection that breaks once costs a call.
  instance.failed('the call broke');
  assert.equal(instance.isPlaceable, false);
  await world.clock.run(2_300);
  assert.equal(instance.isPlaceable, false);
  world.heartbeat('d1', 'a');
  await world.clock.run(2_310);
  assert.equal(instance.isPlaceable, true);
});

test('one whose calls all broke, and that says goodbye then, is expected back like any other', async () => {
  const world = new World();
  await world.register(registration('d1', 'a'));
  const [instance] = world.view.all();
  await world.clock.run(400);
  world.heartbeat('d1', 'a');
  for (let i = 0; i < 3; i++) instance?.failed('it is closed');
  assert.equal(world.view.decodeSeenMs(10, 'm'), 400);
  world.hub.publish(subjects.goodbye, toBytes({ name: 'd1', epoch: 'a' }));
  assert.deepEqual([world.names, world.view.decodeSeenMs(10, 'm')], [[], 400]);
});

test('members know the stores that can be reached, and hear of changes', async () => {
  const world = new World();
  const changes: string[] = [];
  world.hub.subscribe(subjects.stores, (bytes) => {
    const { came, gone } = readStores(bytes);
    changes.push([...came.map(({ name }) => `+${name}`), ...gone.map(({ name }) => `-${name}`)].join());
  });
  const member = { ...registration('s1', 'a').member, role: 'store' as const };
  const store: Registration = { member, protocolVersion: PROTOCOL_VERSION };
  world.check = lostAt('no way there');
  const first = await world.register(store);
  assert(first.kind === 'accepted');
  assert.deepEqual([first.stores, changes], [[], []]);
  world.check = () => ({ status: 1 });
  await world.clock.run(1_100);
  assert.deepEqual(changes, ['+s1']);
  const second = await world.register(store);
  assert(second.kind === 'accepted');
  assert.deepEqual([second.stores, second.version], [[member], 1]);
  const [instance] = world.view.all();
  for (let i = 0; i < 3; i++) instance?.failed('broken');
  world.check = lostAt('no way there');
  world.heartbeat('s1', 'a');
  world.hub.publish(subjects.goodbye, toBytes({ name: 's1', epoch: 'a' }));
  assert.deepEqual(changes, ['+s1', '-s1'], 'once');
});

test('a process hears what keeps it out before it has loaded: protocol, name, block size, and an address where it is not', async () => {
  const world = new World();
  const inquire = async (inquiry: Inquiry): Promise<RegistrationReply> =>
    readRegistrationReply(await world.hub.request(subjects.inquire('r1'), toBytes(inquiry)));
  const { member, protocolVersion } = registration('d2', 'a');
  const asked: Inquiry = { member, protocolVersion, engine: { blockSize: 16 } };
  assert.equal((await inquire(asked)).kind, 'accepted', 'the cluster has no block size yet');
  await world.register(registration('d1', 'a'));
  const refused = async (inquiry: Inquiry, pattern: RegExp): Promise<void> => {
    const reply = await inquire(inquiry);
    assert(reply.kind === 'refused');
    assert.match(reply.reason, pattern);
  };
  await refused(asked, /d2 has --block-size 16, the cluster 32/);
  await refused({ ...asked, protocolVersion: 1 }, /speaks protocol 1/);
  await refused({ member: { ...member, name: 'd1', role: 'store' }, protocolVersion }, /belongs to a decode/);
  world.check = lostAt('certificate for another host');
  const reply = await inquire({ ...asked, engine: { blockSize: 32 } });
  assert(reply.kind === 'accepted');
  assert.equal(reply.unreachable, 'certificate for another host');
  assert.deepEqual(world.names, ['d1/a'], 'an inquiry makes no member');
});
