/** Events of members, alarms and health, by a clock that the test sets. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Instance } from '../../../shared/placement/instance.ts';
import { Alarms } from '../../../services/router/observe/alarms.ts';
import { EventLog } from '../../../services/router/observe/event_log.ts';
import { healthOf } from '../../../services/router/observe/health.ts';
import { LostNodes } from '../../../services/router/observe/lost_nodes.ts';
import { eventOf, MemberWatch, type Watched } from '../../../services/router/observe/member_watch.ts';
import type { InstanceLoad } from '../../../shared/protocol/membership.ts';

const tier = { blocks: 0, bytes: 0, capacityBytes: 9, hits: 0, misses: 0, evictions: 0, dedupFactor: 1 };

class World {
  nowMs = 1_000;
  readonly instances: Instance[] = [];
  readonly bus = { name: 'hub', isConnected: true };
  readonly policy = { state: { name: 'auto', placesBy: 'priced', version: 0, sinceMs: 0, setBy: '' } };
  isIndexAlarmed = false;
  readonly events: EventLog;
  readonly alarms: Alarms;
  readonly watch: MemberWatch;

  constructor() {
    const clock = { nowMs: () => this.nowMs, wallMs: () => 1e12 + this.nowMs };
    this.events = new EventLog(clock);
    this.alarms = new Alarms(this.events);
    this.watch = new MemberWatch(clock, this.events, this.alarms, {
      view: { all: () => this.instances, generating: () => this.instances },
      policy: this.policy as Watched['policy'],
      bus: this.bus,
      indexAlarms: () => [{ model: 'm', isAlarmed: this.isIndexAlarmed }],
    });
  }

  add(name: string): Instance {
    const member = { name, role: 'decode', address: `${name}:1`, pid: 1, epoch: 'e' } as const;
    const instance = new Instance({ member, protocolVersion: 1 }, this.nowMs, undefined, 'm');
    this.instances.push(instance);
    return instance;
  }

  /** Lets 250 ms pass and looks; the named members send a heartbeat before. */
  step(heard: readonly Instance[], change: Partial<InstanceLoad> = {}): void {
    this.nowMs += 250;
    const load = { running: 0, waiting: 0, preemptions: 0, lastStepMs: 0, isDraining: false, tiers: {}, ...change };
    for (const instance of heard) instance.receiveHeartbeat({ load, blocks: 0, seen: {} }, 'r', this.nowMs);
    this.watch.look();
    this.events.flush();
  }

  get texts(): string[] {
    return this.events
      .list({ limit: 100 })
      .map(({ kind, text }) => `${kind}: ${text}`)
      .reverse();
  }
}

test('a killed member is suspect within 1.5 s of its last heartbeat, without any call, and back when it is heard', () => {
  const world = new World();
  const instance = world.add('d1');
  world.step([instance]);
  const killedMs = world.nowMs;
  while (world.events.last === 0) world.step([]);
  assert.ok(world.nowMs - killedMs <= 1_500);
  assert.deepEqual(world.texts, ['suspect: d1 is suspect: no heartbeat for 1.3 s']);
  const health = healthOf(world.instances, world.alarms, { isDraining: false, nowMs: world.nowMs, lost: [] });
  assert.equal(health.state, 'degraded');
  world.step([instance]);
  assert.equal(world.texts.at(-1), 'reachable: d1 takes requests again');
});

test('a call that fails is an error and makes the member suspect at the next look; three make it unreachable', () => {
  const world = new World();
  const instance = world.add('d1');
  world.step([instance]);
  instance.failed('connection reset');
  world.step([instance]);
  assert.deepEqual(world.texts, [
    'error: A call of d1 failed: connection reset',
    'suspect: d1 is suspect: a call failed, connection reset',
    'alarm: No instance can generate: requests wait until one joins or can be reached',
  ]);
  const health = healthOf(world.instances, world.alarms, { isDraining: false, nowMs: world.nowMs, lost: [] });
  assert.equal(health.state, 'down');
  assert.match(health.problems[0] ?? '', /^No instance can generate/);
  instance.failed('connection reset');
  instance.failed('connection reset');
  world.step([instance]);
  assert.equal(world.texts.at(-1), 'unreachable: d1 cannot be reached: connection reset');
  assert.equal(
    world.texts.filter((text) => text.startsWith('error')).length,
    1,
    'the same error is said once a minute',
  );
  instance.answered(world.nowMs);
  world.step([instance]);
  assert.deepEqual(world.texts.slice(-2), [
    'reachable: d1 takes requests again',
    'alarm_ended: An instance can generate again',
  ]);
});

test('a fault of a tier, diverging blocks and many preemptions are alarms, which end', () => {
  const world = new World();
  const instance = world.add('d1');
  world.step([instance], { tiers: { disk: { ...tier, fault: 'still being opened' } }, divergent: 3 });
  assert.equal(world.events.last, 0, 'a disk has ten seconds to open');
  world.nowMs += 10_000;
  world.step([instance], { tiers: { disk: { ...tier, fault: 'disk full' } }, divergent: 3 });
  assert.deepEqual(world.texts, ['alarm: Tier disk of d1 cannot be used: disk full']);
  world.step([instance], { tiers: { disk: tier }, divergent: 4, preemptions: 20 });
  assert.deepEqual(
    world.texts.slice(1).map((text) => text.slice(0, 30)),
    ['alarm_ended: Tier disk of d1 c', 'alarm: d1 was offered blocks w', 'alarm: d1 preempted 20 sequenc'],
  );
  for (let i = 0; i < 4 * 70; i++) world.step([instance], { tiers: { disk: tier }, divergent: 4, preemptions: 20 });
  assert.equal(world.alarms.lasting.length, 0);
});

test('alarms of a member end with it', () => {
  const world = new World();
  const instance = world.add('d1');
  world.nowMs += 10_000;
  world.step([instance], { tiers: { disk: { ...tier, fault: 'disk full' } } });
  world.instances.length = 0;
  world.step([]);
  assert.deepEqual(
    world.alarms.lasting.map(({ isFatal }) => isFatal),
    [true],
    'only that none can generate',
  );
});

test('the bus, the policy and the index are watched', () => {
  const world = new World();
  const instance = world.add('d1');
  world.step([instance]);
  world.bus.isConnected = false;
  world.isIndexAlarmed = true;
  world.policy.state = { ...world.policy.state, version: 1, name: 'mooncake', placesBy: 'mooncake', setBy: 'r2' };
  world.step([instance]);
  assert.deepEqual(world.texts, [
    'policy: Requests are placed by mooncake (mooncake), set at r2',
    'alarm: The router has lost the bus hub: it hears of no changes',
    'alarm: The prefix index promises blocks of m that no instance has',
  ]);
});

test('a router says that nobody can generate only after its instances had time to join', () => {
  const world = new World();
  world.step([]);
  assert.deepEqual(world.texts, []);
  world.nowMs += 10_000;
  world.step([]);
  assert.equal(world.texts.length, 1);
});

test('10,000 events are kept, chosen by number, kind and node; a refusal that repeats is kept once a minute', () => {
  let nowMs = 0;
  const log = new EventLog({ nowMs: () => nowMs, wallMs: () => nowMs });
  const member = { name: 'p1', role: 'prefill', address: 'p1:1', pid: 1, epoch: 'e' } as const;
  const refused = eventOf({ kind: 'refused', member, model: undefined, why: 'another model' });
  for (; nowMs < 61_000; nowMs += 1_000) log.addRepeated('p1', refused);
  assert.deepEqual(
    log.list({ limit: 9 }).map(({ text }) => text),
    ['p1 at p1:1 was refused: another model (59 times more since then)', 'p1 at p1:1 was refused: another model'],
  );
  for (let i = 0; i < 10_000; i++, nowMs += 3_000)
    log.add({ kind: i % 2 ? 'left' : 'joined', node: `n${i % 10}`, text: `${i}` });
  assert.equal(log.last, 10_002);
  assert.equal(log.list({ limit: 1e9 }).length, 10_000);
  assert.deepEqual(
    log.list({ since: 10_000, limit: 9 }).map(({ id }) => id),
    [10_002, 10_001],
  );
  assert.deepEqual(
    log.list({ kinds: ['left'], node: 'n3', limit: 2 }).map(({ text }) => text),
    ['9993', '9983'],
  );
});

test('300 nodes that are lost together are a few events, each of which a node finds; one that is lost a minute later is told of at once', () => {
  const world = new World();
  const { events } = world;
  const lose = (name: string): void => {
    events.add({ kind: 'lost', node: name, role: 'decode', model: 'm', text: `${name} is lost: silence` });
  };
  for (let i = 0; i < 300; i++) lose(`d${i}`);
  events.add({ kind: 'policy', text: 'Requests are placed by auto' });
  assert.equal(world.texts.length, 9);
  for (let i = 0; i < 4; i++) world.step([]);
  assert.deepEqual(world.texts.slice(7), [
    'lost: d7 is lost: silence',
    'policy: Requests are placed by auto',
    'lost: 292 nodes are lost: d8, d9, d10 and 289 others. The first one: d8 is lost: silence',
  ]);
  const [together] = events.list({ limit: 1 });
  assert.deepEqual([together?.node, together?.role, together?.model], [null, 'decode', 'm']);
  const of = (node: string): string[] => events.list({ node, limit: 9 }).map(({ text }) => text.slice(0, 12));
  assert.deepEqual([of('d3'), of('d299'), of('d300')], [['d3 is lost: '], ['292 nodes ar'], []]);
  world.nowMs += 60_000;
  lose('d300');
  assert.deepEqual(of('d300'), ['d300 is lost']);
});

test('nodes that come and go for minutes fill the log slowly', () => {
  const world = new World();
  for (let i = 0; i < 600; i++) {
    for (let node = 0; node < 20; node++)
      world.events.add({ kind: i % 2 ? 'reachable' : 'suspect', node: `d${node}`, text: `d${node} changes` });
    world.step([]);
  }
  assert(world.events.last < 60, `${world.events.last} events of 12,000 changes`);
  assert.match(world.texts.at(-1) ?? '', /^(suspect|reachable): 20 nodes .*, \d+ times in all: d0, d1, d2 and 17/);
});

test('counts of a member from before this router knew it are no alarm', () => {
  const world = new World();
  const instance = world.add('d1');
  // It has joined, and its first heartbeat is still to come.
  world.step([]);
  world.step([instance], { preemptions: 1_000, divergent: 3 });
  world.step([instance], { preemptions: 1_001, divergent: 3 });
  assert.equal(world.events.last, 0, world.texts.join('; '));
  world.step([instance], { preemptions: 1_021, divergent: 3 });
  assert.match(world.texts.at(-1) ?? '', /^alarm: d1 preempted 21 sequences/);
});

test('of many lost and many sick members the health names some, counts the others, and still has the alarms', () => {
  const world = new World();
  const instances = Array.from({ length: 30 }, (_, i) => world.add(`d${i}`));
  world.step(instances);
  for (const instance of instances) instance.failed('connection reset');
  world.step([]);
  const lost = Array.from({ length: 300 }, (_, i) => `s${i} was lost`);
  const { problems } = healthOf(world.instances, world.alarms, { isDraining: false, nowMs: world.nowMs, lost });
  assert.match(problems[0] ?? '', /^No instance can generate/);
  assert.ok(problems.includes('24 more members that are suspect or cannot be reached'), problems.join('\n'));
  assert.ok(problems.includes('294 more members that were lost and have not come back'));
  assert.ok(problems.length <= 20);
});

test('the health names a lost member until one joins or leaves under its name, a quarter of an hour at most', () => {
  const world = new World();
  const lost = new LostNodes({ nowMs: () => world.nowMs });
  const tell = (kind: 'joined' | 'left' | 'lost' | 'refused', name: string): void => {
    const member = { name, role: 'store', address: `${name}:1`, pid: 1, epoch: 'e' } as const;
    lost.note({ kind, member, model: undefined, why: kind === 'lost' ? 'no heartbeat for 3000 ms' : '' });
  };
  const problems = (): readonly string[] =>
    healthOf([], world.alarms, { isDraining: false, nowMs: world.nowMs, lost: lost.sentences }).problems;
  for (const name of ['s1', 's2', 's3', 's4']) tell('joined', name);
  assert.deepEqual(problems(), []);
  for (const name of ['s1', 's2', 's3']) tell('lost', name);
  tell('left', 's4');
  tell('refused', 's1');
  const sentence = (name: string, ago: string): string =>
    `${name} (store) was lost ${ago} and has not come back: no heartbeat for 3000 ms`;
  const { state } = healthOf([], world.alarms, { isDraining: false, nowMs: world.nowMs, lost: lost.sentences });
  assert.equal(state, 'degraded');
  assert.deepEqual(
    problems(),
    ['s3', 's2', 's1'].map((name) => sentence(name, 'less than a minute ago')),
  );
  tell('joined', 's3');
  world.nowMs += 60_000;
  assert.deepEqual(
    problems(),
    ['s2', 's1'].map((name) => sentence(name, 'a minute ago')),
  );
  tell('left', 's2');
  world.nowMs += 839_000;
  assert.deepEqual(problems(), [sentence('s1', '14 minutes ago')]);
  world.nowMs += 1_000;
  assert.deepEqual(problems(), []);
});

test('of many members that were lost the newest 256 are named', () => {
  const lost = new LostNodes({ nowMs: () => 0 });
  for (let i = 0; i < 1_000; i++) {
    const member = { name: `d${i}`, role: 'decode', address: 'x:1', pid: 1, epoch: 'e' } as const;
    lost.note({ kind: 'lost', member, model: 'm', why: 'it is gone' });
  }
  assert.equal(lost.sentences.length, 256);
  assert.match(lost.sentences[0] ?? '', /^d999 /);
});
