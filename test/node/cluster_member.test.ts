/** A member among routers, under a simulated clock: it finds them, is refused, waits, and outlives them. Budget: 2 s. */
import assert from 'node:assert/strict';
import { beforeEach, test } from 'vitest';
import { silentLog } from '../../shared/base/log.ts';
import type { Bus, BusListener } from '../../shared/bus/bus.ts';
import { EmbeddedHub } from '../../shared/bus/embedded_hub.ts';
import { ClusterMember } from '../../shared/node/cluster_member.ts';
import {
  readHeartbeat,
  subjects,
  toBytes,
  type Member,
  type Registration,
  type RegistrationReply,
} from '../../shared/protocol/membership.ts';
import { PROTOCOL_VERSION } from '../../shared/protocol/messages.ts';
import { SimulatedClock } from '../sim/simulated_clock.ts';

const load = { running: 0, waiting: 0, preemptions: 0, lastStepMs: 0, isDraining: false, tiers: {} };
const member: Member = { name: 'd1', role: 'decode', address: 'd1:1', pid: 1, epoch: 'e1' };
const registration: Registration = { member, protocolVersion: PROTOCOL_VERSION };
const store = (name: string): Member => ({ name, role: 'store', address: `${name}:1`, pid: 1, epoch: 'e' });

let clock: SimulatedClock;
let hub: EmbeddedHub;
let events: string[];
let listener: BusListener | undefined;
let suspect: (subject: string) => void;

beforeEach(() => {
  clock = new SimulatedClock();
  hub = new EmbeddedHub(silentLog);
  events = [];
});

async function join(isLoaded = true): Promise<ClusterMember> {
  const cluster = new ClusterMember({
    openBus: (its, onUnverified): Bus => {
      listener = its;
      suspect = onUnverified;
      return hub;
    },
    inquiry: { member, protocolVersion: PROTOCOL_VERSION },
    clock,
    log: silentLog,
    onRefused: ({ message }) => events.push(`refused: ${message}`),
  });
  if (isLoaded) joinLoaded(cluster);
  listener?.onConnected();
  await clock.run(clock.nowMs());
  return cluster;
}

function joinLoaded(cluster: ClusterMember): void {
  cluster.join({
    registration,
    heartbeatStatus: () => ({ load, blocks: 0, seen: {} }),
    onJoined: () => events.push('joined'),
  });
}

/** A router that answers so. @returns how often it was asked, and a way to be heard. */
function router(
  epoch: string,
  answer: () => RegistrationReply,
): { numAsked: () => number; speak: (version?: number) => Promise<void> } {
  let numAsked = 0;
  hub.serve(subjects.register(epoch), () => {
    numAsked++;
    return toBytes(answer());
  });
  return {
    numAsked: () => numAsked,
    speak: async (version = 0) => {
      hub.publish(subjects.router, toBytes({ router: epoch, name: epoch, version }));
      await clock.run(clock.nowMs() + 1);
    },
  };
}

const accepting =
  (...stores: Member[]) =>
  (): RegistrationReply => ({ kind: 'accepted', version: 0, stores });
const names = (cluster: ClusterMember): string =>
  cluster
    .stores()
    .map(({ name }) => name)
    .sort()
    .join();

test('it says hello, and registers once with every router that it hears; their stores are its stores', async () => {
  let numHellos = 0;
  hub.subscribe(subjects.hello, () => numHellos++);
  const cluster = await join();
  assert.equal(numHellos, 1);
  const [one, two] = [router('r1', accepting(store('s1'))), router('r2', accepting(store('s1'), store('s2')))];
  for (let i = 0; i < 3; i++) {
    await one.speak();
    await two.speak();
  }
  assert.deepEqual([one.numAsked(), two.numAsked()], [1, 1]);
  assert.deepEqual(events, ['joined'], 'once');
  assert.equal(names(cluster), 's1,s2');
  hub.publish(subjects.stores, toBytes({ router: 'r2', version: 1, came: [store('s3')], gone: [store('s2')] }));
  assert.equal(names(cluster), 's1,s3');
  hub.publish(subjects.stores, toBytes({ router: 'r2', version: 3, came: [store('s4')], gone: [] }));
  assert.equal(names(cluster), 's1,s3', 'it has missed one');
  await two.speak(1);
  assert.equal(two.numAsked(), 1, 'it has that version');
  await two.speak(2);
  assert.equal(two.numAsked(), 2, 'it has missed one');
});

test('a router that does not know it any more is asked again; one that is silent, or said goodbye, is forgotten for another', async () => {
  const cluster = await join();
  const [one, two] = [router('r1', accepting(store('s1'))), router('r2', accepting(store('s2')))];
  await one.speak();
  hub.publish(subjects.unknownMember('e1'), toBytes({ router: 'r1' }));
  await clock.run(clock.nowMs() + 1);
  assert.equal(one.numAsked(), 2);
  hub.publish(subjects.unknownMember('e1'), toBytes({ router: 'never heard' }));
  await clock.run(clock.nowMs() + 20_000);
  assert.equal(names(cluster), 's1', 'what the last one knew');
  await two.speak();
  assert.equal(names(cluster), 's2');
  hub.publish(subjects.routerGone, toBytes({ name: 'r2', epoch: 'r2' }));
  assert.equal(names(cluster), 's2');
  await one.speak();
  assert.equal(names(cluster), 's1');
});

test('refused by its first router it ends; refused by one of several it goes on with the others', async () => {
  await join();
  const [bad, good] = [
    router('bad', () => ({ kind: 'refused', reason: 'another model' })),
    router('good', accepting()),
  ];
  await good.speak();
  await bad.speak();
  assert.deepEqual(events, ['joined']);
  await clock.run(clock.nowMs() + 4_000);
  assert.equal(bad.numAsked(), 1);
  await clock.run(clock.nowMs() + 2_000);
  assert.equal(bad.numAsked(), 2, 'it may think better of it');
  hub = new EmbeddedHub(silentLog);
  await join();
  await router('bad', () => ({ kind: 'refused', reason: 'another model' })).speak();
  assert.deepEqual(events, ['joined'], 'there was no time to hear others');
  await clock.run(clock.nowMs() + 2_500);
  assert.deepEqual(events, ['joined', 'refused: another model']);
});

const refusing = (reason: string) => (): RegistrationReply => ({ kind: 'refused', reason });

test('refused by one router, it goes on asking while another one has not decided, or is heard later; refused by all, it ends', async () => {
  await join();
  let answer: RegistrationReply = { kind: 'wait', reason: 'another d1 lives' };
  const [old, next] = [router('old', refusing('protocol 14')), router('next', () => answer)];
  await old.speak();
  await clock.run(clock.nowMs() + 1_000);
  await next.speak();
  for (let i = 0; i < 4; i++) {
    await clock.run(clock.nowMs() + 1_000);
    await Promise.all([old.speak(), next.speak()]);
  }
  assert.deepEqual(events, []);
  assert(old.numAsked() > 1, 'it goes on asking');
  answer = accepting()();
  await clock.run(clock.nowMs() + 1_000);
  assert.deepEqual(events, ['joined']);
  // The upgrade ends: the router that accepted it says goodbye, and the other one alone decides.
  hub.publish(subjects.routerGone, toBytes({ name: 'next', epoch: 'next' }));
  for (let i = 0; i < 15; i++) {
    await old.speak();
    await clock.run(clock.nowMs() + 1_000);
  }
  assert.deepEqual(events, ['joined'], 'that router may be starting again');
  for (let i = 0; i < 15; i++) {
    await old.speak();
    await clock.run(clock.nowMs() + 1_000);
  }
  assert.deepEqual(events, ['joined', 'refused: protocol 14']);
});

test('a name that another process has is waited for, and not for ever', async () => {
  await join();
  const one = router('r1', () => ({ kind: 'wait', reason: 'd1 lives' }));
  for (let i = 0; i < 9; i++) {
    await one.speak();
    await clock.run(clock.nowMs() + 1_000);
  }
  assert.deepEqual(events, []);
  await one.speak();
  await clock.run(clock.nowMs() + 2_000);
  assert.deepEqual(events, ['refused: d1 lives']);
});

test('routers under another token alone: it ends; with one under its own it does not', async () => {
  await join();
  suspect(subjects.heartbeat);
  suspect(subjects.router);
  await clock.run(clock.nowMs() + 1_900);
  assert.deepEqual(events, []);
  await clock.run(clock.nowMs() + 200);
  assert.deepEqual(events, [
    'refused: wrong --cluster-token: the routers on the hub have another, or are of another version',
  ]);
  hub = new EmbeddedHub(silentLog);
  events = [];
  await join();
  suspect(subjects.router);
  await router('r1', accepting()).speak();
  await clock.run(clock.nowMs() + 5_000);
  assert.deepEqual(events, ['joined']);
});

test('a changed load is told at once, and not more often than every 50 ms, with a single router every 100 ms', async () => {
  const cluster = await join();
  const heartbeatsMs: number[] = [];
  hub.subscribe(subjects.heartbeat, (bytes) => {
    assert.equal(readHeartbeat(bytes).epoch, 'e1');
    heartbeatsMs.push(clock.nowMs());
  });
  const placed = async (count: number): Promise<number> => {
    heartbeatsMs.length = 0;
    const startMs = clock.nowMs();
    for (let i = 0; i < count; i++) {
      void cluster.loadChanged();
      await clock.run(startMs + i + 1);
    }
    return heartbeatsMs.length;
  };
  await router('r1', accepting()).speak();
  const alone = await placed(200);
  assert(alone >= 2 && alone <= 3, `${alone} with one router`);
  await router('r2', accepting()).speak();
  const among = await placed(200);
  assert(among >= 3 && among <= 5, `${among} with two`);
});

test('before it has loaded it asks what keeps it out: refused it ends; else it registers when it is loaded, once', async () => {
  const cluster = await join(false);
  let numInquiries = 0;
  let answer: RegistrationReply = { kind: 'accepted', version: 0, stores: [] };
  hub.serve(subjects.inquire('r1'), () => {
    numInquiries++;
    return toBytes(answer);
  });
  const one = router('r1', accepting());
  let isAnswered = false;
  void cluster.inquired(1_000).then(() => (isAnswered = true));
  await one.speak();
  await one.speak();
  assert.deepEqual([numInquiries, one.numAsked(), isAnswered], [1, 0, true]);
  assert.deepEqual(events, []);
  joinLoaded(cluster);
  await clock.run(clock.nowMs() + 1);
  assert.deepEqual([numInquiries, one.numAsked(), events], [1, 1, ['joined']]);
  hub = new EmbeddedHub(silentLog);
  events = [];
  await join(false);
  answer = { kind: 'refused', reason: 'another block size' };
  hub.serve(subjects.inquire('r1'), () => toBytes(answer));
  await router('r1', accepting()).speak();
  assert.deepEqual(events, []);
  await clock.run(clock.nowMs() + 2_500);
  assert.deepEqual(events, ['refused: another block size']);
});

test('what one router refuses before it has loaded, another may want: it does not end', async () => {
  const cluster = await join(false);
  const refused: RegistrationReply = { kind: 'refused', reason: 'another protocol' };
  hub.serve(subjects.inquire('r1'), () => toBytes(refused));
  hub.serve(subjects.inquire('r2'), () => toBytes({ kind: 'accepted', version: 0, stores: [] }));
  let isAnswered = false;
  void cluster.inquired(1_000).then(() => (isAnswered = true));
  const [one, other] = [router('r1', accepting()), router('r2', accepting())];
  await Promise.all([one.speak(), other.speak()]);
  await clock.run(clock.nowMs() + 600);
  assert.deepEqual([events, isAnswered], [[], true]);
});

test('after an outage of the bus the routers have as long as at the start', async () => {
  await join();
  const [bad, good] = [router('bad', refusing('another model')), router('good', accepting())];
  await good.speak();
  await bad.speak();
  await clock.run(clock.nowMs() + 30_000);
  listener?.onDisconnected('gone');
  await clock.run(clock.nowMs() + 6_000);
  listener?.onConnected();
  await bad.speak();
  await clock.run(clock.nowMs() + 800);
  await good.speak();
  await clock.run(clock.nowMs() + 3_000);
  assert.deepEqual(events, ['joined']);
});

test('refused before it has loaded, it waits for a router that is heard later before it reads a model', async () => {
  const cluster = await join(false);
  hub.serve(subjects.inquire('old'), () => toBytes(refusing('protocol 14')()));
  hub.serve(subjects.inquire('next'), () => toBytes({ kind: 'accepted', version: 0, stores: [] }));
  let isAnswered = false;
  void cluster.inquired(1_000).then(() => (isAnswered = true));
  await router('old', refusing('protocol 14')).speak();
  await clock.run(clock.nowMs() + 1_200);
  assert.equal(isAnswered, false);
  await router('next', accepting()).speak();
  assert.deepEqual([events, isAnswered], [[], true]);
  joinLoaded(cluster);
  await clock.run(clock.nowMs() + 1_000);
  assert.deepEqual(events, ['joined']);
});

test('without a router it loads all the same, a second later', async () => {
  const cluster = await join(false);
  let isOver = false;
  void cluster.inquired(1_000).then(() => (isOver = true));
  await clock.run(clock.nowMs() + 900);
  assert.equal(isOver, false);
  await clock.run(clock.nowMs() + 200);
  assert.equal(isOver, true);
});

test('accepted where it cannot be reached, it has not joined before a router reaches it', async () => {
  await join();
  const unreachable = 'connect ECONNREFUSED';
  await router('r1', () => ({ kind: 'accepted', version: 0, stores: [], unreachable })).speak();
  assert.deepEqual(events, []);
  const notify = async (why: string | null, from = 'r1'): Promise<void> => {
    hub.publish(subjects.reach('e1'), toBytes({ router: from, unreachable: why }));
    await clock.run(clock.nowMs() + 1);
  };
  await notify(null, 'never heard');
  await notify('no route');
  assert.deepEqual(events, []);
  await notify(null);
  await notify('again');
  await notify(null);
  assert.deepEqual(events, ['joined']);
});
