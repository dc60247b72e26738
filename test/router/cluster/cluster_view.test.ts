/** Membership under a simulated clock: silence, pauses, epochs, refusals; and the index feed with gaps. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { silentLog } from '../../../shared/base/log.ts';
import { EmbeddedHub } from '../../../shared/bus/embedded_hub.ts';
import type { Format } from '../../../shared/kv/format.ts';
import {
  readMembers,
  readRegistrationReply,
  subjects,
  toBytes,
  type Load,
  type Registration,
  type RegistrationReply,
} from '../../../shared/protocol/membership.ts';
import { PROTOCOL_VERSION } from '../../../shared/protocol/messages.ts';
import { ClusterView } from '../../../services/router/cluster/cluster_view.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';

const format: Format = {
  model: 'm',
  weightFormat: 'f32',
  kvDtype: 'f16',
  layoutVersion: 1,
  blockSize: 32,
  numerics: 'n',
  shard: 'all',
};
const load: Load = { running: 0, waiting: 0, preemptions: 0, lastStepMs: 0, isDraining: false, tiers: {} };

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

  constructor() {
    this.view = new ClusterView({
      bus: this.hub,
      clock: this.clock,
      log: silentLog,
      silenceMs: 3_000,
      vocabSize: 100,
      modelConfig: 'config',
      signal: new AbortController().signal,
      onJoined: ({ id }) => this.events.push(`joined ${id}`),
      onRejoined: ({ id }) => this.events.push(`rejoined ${id}`),
      onLost: ({ id }) => this.events.push(`lost ${id}`),
    });
  }

  async register(message: Registration): Promise<RegistrationReply> {
    return readRegistrationReply(await this.hub.request(subjects.register, toBytes(message)));
  }

  heartbeat(name: string, epoch: string, change: Partial<Load> = {}): void {
    this.hub.publish(subjects.heartbeat, toBytes({ name, epoch, load: { ...load, ...change } }));
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
  const told: number[] = [];
  world.hub.subscribe(subjects.members, (bytes) => told.push(readMembers(bytes).members.length));
  world.heartbeat('d1', 'a');
  assert.deepEqual(world.names, [], 'a heartbeat is no registration');
  assert.deepEqual(told, [0], 'the list of members says that it is none');
  await world.register(registration('d1', 'a'));
  assert.deepEqual(world.names, ['d1/a']);
  assert.deepEqual(world.events, ['joined d1/a', 'lost d1/a', 'joined d1/a']);
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
  for (const instance of world.view.all()) instance.isSuspect = true;
  assert.equal((await world.register(registration('d1', 'b'))).kind, 'accepted');
  assert.deepEqual(world.names, ['d1/b']);
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
  await refused({ ...registration('d2', 'a'), protocolVersion: 99 }, /same version everywhere/);
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
  assert.equal(world.view.maxModelLen, 4_096);
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
