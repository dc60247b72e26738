/** Messages of a cluster's bus that are recorded, moved, changed and sent again: none is read, and none is taken. Budget: 2 s. */
import assert from 'node:assert/strict';
import { beforeEach, test } from 'vitest';
import { Current } from '../../shared/base/current.ts';
import type { Log } from '../../shared/base/log.ts';
import { silentLog } from '../../shared/base/log.ts';
import { ClusterBus } from '../../shared/bus/cluster_bus.ts';
import { EmbeddedHub } from '../../shared/bus/embedded_hub.ts';
import { LATE_MS, RECENT_MS, RecentCounters, ReplayWindow, WINDOW } from '../../shared/bus/sealed/counters.ts';
import { Sealer } from '../../shared/bus/sealed/seal.ts';
import { Random } from '../../shared/base/random.ts';
import { SimulatedClock } from '../sim/simulated_clock.ts';

/** A hub whose messages are recorded. */
class TappedHub extends EmbeddedHub {
  readonly recorded: { readonly subject: string; readonly payload: Buffer }[] = [];
  /** Subjects whose messages do not arrive. */
  readonly unheard = new Set<string>();

  override publish(subject: string, payload: Buffer): void {
    this.recorded.push({ subject, payload });
    this.#carry(subject, payload);
  }

  /** Sends messages again. */
  replay(messages: TappedHub['recorded']): void {
    for (const { subject, payload } of messages) this.#carry(subject, Buffer.from(payload));
  }

  #carry(subject: string, payload: Buffer): void {
    if (!this.unheard.has(subject)) super.publish(subject, payload);
  }
}

let hub: TappedHub;
let clock: SimulatedClock;
let numEpochs = 0;
beforeEach(() => {
  hub = new TappedHub(silentLog);
  clock = new SimulatedClock();
});

function nextEpoch(): Buffer {
  const epoch = Buffer.alloc(16);
  epoch.writeUInt32BE(++numEpochs);
  return epoch;
}

function open(token: string | Current<string> = 't', log: Log = silentLog): ClusterBus {
  return new ClusterBus(hub, { cluster: 'a', token, epoch: nextEpoch(), clock, log });
}

/** Returns the texts that a bus hears on a subject from now on. */
function heardBy(bus: ClusterBus, subject = 'news'): string[] {
  const heard: string[] = [];
  bus.subscribe(subject, (payload) => heard.push(payload.toString()));
  return heard;
}

const say = (bus: ClusterBus, ...texts: string[]): void => {
  for (const text of texts) bus.publish('news', Buffer.from(text));
};

test('a recorded message shows neither its text nor that two texts are equal', () => {
  const bus = open();
  heardBy(bus);
  say(bus, 'a prompt of somebody', 'a prompt of somebody');
  const [one, two] = hub.recorded.map(({ payload }) => payload.toString('latin1').slice(24));
  assert(one && !one.includes('prompt'));
  assert.notEqual(one, two);
});

test('a message that is sent again is dropped, in whatever order, and counted apart', () => {
  const warnings: object[] = [];
  const [sender, receiver] = [open(), open('t', { ...silentLog, warn: (fields: object) => warnings.push(fields) })];
  const heard = heardBy(receiver);
  say(sender, 'one', 'two', 'three');
  const recorded = hub.recorded.filter(({ subject }) => subject.endsWith('news'));
  hub.replay(recorded.toReversed());
  hub.replay(recorded);
  assert.deepEqual(heard, ['one', 'two', 'three']);
  assert.deepEqual([receiver.numReplayed, receiver.numUnverified], [6, 0]);
  assert.deepEqual(warnings, [{ subject: 'news', seen: 1, late: 0, unanswered: 0 }], 'at most one warning in 5 s');
});

test('whatever bytes somebody sends are dropped and counted as those of another token, with one warning in 5 s', () => {
  const warnings: object[] = [];
  const [sender, receiver] = [open(), open('t', { ...silentLog, warn: (fields: object) => warnings.push(fields) })];
  const heard = heardBy(receiver);
  say(sender, 'one');
  const [{ subject, payload } = assert.fail()] = hub.recorded.filter((one) => one.subject.endsWith('news'));
  // Some are of nobody; one is of a known sender, with the greatest counter.
  const forged = [Buffer.alloc(60, 0xff), Buffer.alloc(60), Buffer.alloc(39, 1), Buffer.alloc(0)];
  const ofSender = Buffer.from(payload).fill(0xff, 16, 24);
  for (const bytes of [...forged, ofSender]) hub.replay([{ subject, payload: bytes }]);
  assert.deepEqual(heard, ['one']);
  assert.deepEqual([receiver.numUnverified, receiver.numReplayed, warnings.length], [5, 0, 1]);
});

test('all handlers of a subject get each message once, also the sender’s own', () => {
  const bus = open();
  const [one, two] = [heardBy(bus), heardBy(bus)];
  const stop = bus.subscribe('news', () => assert.fail('it has left'));
  stop();
  stop();
  say(bus, 'x');
  hub.replay([...hub.recorded]);
  assert.deepEqual([one, two, bus.numReplayed], [['x'], ['x'], 1]);
});

test('one handler under two subscriptions gets each message twice, and leaves them one by one', () => {
  const bus = open();
  let count = 0;
  const handler = (): void => {
    count++;
  };
  const [stop] = [bus.subscribe('news', handler), bus.subscribe('news', handler)];
  say(bus, 'x');
  stop();
  say(bus, 'y');
  assert.equal(count, 3);
});

test('to a receiver that starts later, messages of a process that has ended say nothing', async () => {
  const sender = open();
  heardBy(open());
  say(sender, 'one', 'two');
  const recorded = [...hub.recorded];
  // Nobody hears the questions to it any more.
  const later = new TappedHub(silentLog);
  hub = later;
  const receiver = open();
  const heard = heardBy(receiver);
  hub.replay(recorded);
  await clock.run(10_000);
  assert.deepEqual([heard, receiver.numReplayed, receiver.numUnverified], [[], 2, 0]);
  // With the answers that it gave to others, and again.
  hub.replay(recorded);
  hub.replay(recorded);
  await clock.run(20_000);
  assert.deepEqual([heard, receiver.numReplayed], [[], 6]);
});

test('to a receiver that starts later, earlier messages of a living process say nothing, and its next ones are heard', async () => {
  const sender = open();
  heardBy(open());
  say(sender, 'one', 'two');
  await clock.run(RECENT_MS + 1);
  const recorded = hub.recorded.filter(({ subject }) => subject.endsWith('news'));
  const receiver = open();
  const heard = heardBy(receiver);
  hub.replay(recorded);
  assert.deepEqual([heard, receiver.numReplayed], [[], 2]);
  say(sender, 'three');
  hub.replay(recorded);
  assert.deepEqual([heard, receiver.numReplayed], [['three'], 4]);
});

test('an answer to an earlier question does not make a sender known that has ended', async () => {
  const [sender, receiver] = [open(), open()];
  const heard = heardBy(receiver);
  say(sender, 'one');
  const recorded = [...hub.recorded];
  const [question, answer] = recorded.filter(({ subject }) => subject.includes('alive'));
  assert(question && answer && recorded.length === 3);
  await clock.run(60_000);
  // The sender has ended: it hears no question. The receiver takes it for a new one.
  hub.unheard.add(question.subject);
  hub.replay(recorded);
  hub.replay([answer]);
  await clock.run(70_000);
  assert.deepEqual([heard, receiver.numReplayed], [['one'], 1]);
});

test('messages that a receiver missed while it was cut off are not taken when they come much later', async () => {
  const [sender, receiver] = [open(), open()];
  const heard = heardBy(receiver);
  say(sender, 'one');
  hub.unheard.add('penstock.a.news');
  say(sender, 'missed');
  hub.unheard.clear();
  const missed = hub.recorded.filter(({ subject }) => subject.endsWith('news')).slice(1);
  await clock.run(6_000);
  hub.replay(missed);
  say(sender, 'two');
  hub.replay(missed);
  assert.deepEqual([heard, receiver.numReplayed], [['one', 'two'], 2]);
});

test('a message that later ones have overtaken is taken for a while, then no more, and none that is far behind', () => {
  const window = new ReplayWindow(10, 0);
  assert.equal(window.take(9, 0), 'late', 'it was sent before the first');
  assert.equal(window.take(12, 0), 'fresh');
  assert.equal(window.take(11, LATE_MS - 1), 'fresh');
  assert.equal(window.take(11, LATE_MS - 1), 'seen');
  assert.equal(window.take(14, LATE_MS), 'fresh');
  assert.equal(window.take(13, 2 * LATE_MS - 1), 'fresh');
  assert.equal(window.take(10, 2 * LATE_MS), 'late', 'later ones came long ago');
  assert.equal(window.take(20, 2 * LATE_MS), 'fresh');
  assert.equal(window.take(20 + WINDOW, 2 * LATE_MS), 'fresh');
  assert.equal(window.take(20, 2 * LATE_MS), 'late');
  assert.equal(window.take(21, 2 * LATE_MS), 'fresh', 'the last one of the window');
  assert.equal(window.take(21, 2 * LATE_MS), 'seen');
  assert.equal(window.take(20 + 10 * WINDOW, 2 * LATE_MS), 'fresh', 'a jump leaves no trace of the counters before');
  assert.equal(window.take(19 + 10 * WINDOW, 2 * LATE_MS), 'fresh');
});

test('under seeded random order, loss and repetition a window takes each counter at most once, and all that are in time', () => {
  const random = new Random(4711);
  for (let round = 0; round < 200; round++) {
    const window = new ReplayWindow(0, 0);
    const taken = new Set<number>();
    let [highest, nowMs] = [0, 0];
    for (let i = 0; i < 500; i++) {
      nowMs += random.below(5);
      const counter = Math.max(0, highest + random.below(40) - 20 - (random.chance(1, 50) ? WINDOW : 0));
      const verdict = window.take(counter, nowMs);
      assert.equal(verdict === 'seen', taken.has(counter) && verdict !== 'late');
      if (verdict === 'fresh') taken.add(counter);
      // 500 steps of 2 ms: nothing is late by time, except by the width.
      if (nowMs < LATE_MS)
        assert.equal(verdict === 'late', counter <= highest - WINDOW && counter <= Math.max(...taken) - WINDOW);
      highest = Math.max(highest, counter);
    }
  }
});

test('a sender that says which counters are recent never names an old one, nor leaves out one of the last half', () => {
  const random = new Random(815);
  for (let round = 0; round < 200; round++) {
    const recent = new RecentCounters();
    const sentMs: number[] = [];
    let nowMs = 0;
    for (let i = 0; i < 100; i++) {
      nowMs += random.chance(1, 10) ? random.below(3_000) : random.below(100);
      if (random.chance(2, 3)) {
        recent.note(sentMs.length, nowMs);
        sentMs.push(nowMs);
      } else {
        const least = recent.least(sentMs.length, nowMs);
        for (const [counter, ms] of sentMs.entries()) {
          if (counter >= least) assert(nowMs - ms <= RECENT_MS, `${nowMs - ms} ms ago`);
          if (nowMs - ms < RECENT_MS / 2) assert(counter >= least);
        }
      }
    }
  }
});

test('a request that is sent again is refused, and an answer is the answer to no other request', async () => {
  const [server, client] = [open(), open()];
  let numAsked = 0;
  server.serve('own', (payload) => Buffer.from(`${payload.toString()} ${++numAsked}`));
  const sealed: Buffer[] = [];
  const answers: Buffer[] = [];
  const ask = hub.request.bind(hub);
  hub.request = async (subject, payload) => {
    sealed.push(payload);
    answers.push(await ask(subject, payload));
    return answers.at(-1) as Buffer;
  };
  assert.equal((await client.request('own', Buffer.from('first'), 100)).toString(), 'first 1');
  const [request, answer] = [sealed[0], answers[0]];
  assert(request && answer);
  await assert.rejects(ask('penstock.a.own', request), /not new \(seen\)/);
  hub.request = () => Promise.resolve(answer);
  await assert.rejects(client.request('own', Buffer.from('first'), 100), { code: 'unauthenticated' });
  assert.equal(numAsked, 1);
});

test('a request of a process that has ended is refused, and none waits for ever', async () => {
  const sealer = new Sealer({ tokens: new Current('t'), cluster: 'a' }, nextEpoch());
  const server = open();
  server.serve('own', () => assert.fail('it is not asked'));
  const refused = assert.rejects(
    hub.request('penstock.a.own', sealer.seal(Buffer.from('penstock.a.own'), Buffer.from('x'))),
    /not new \(unanswered\)/,
  );
  await clock.run(10_000);
  await refused;
});

test('a token that is taken no more opens nothing, also of a sender that is known', () => {
  const [sent, taken] = [new Current('old'), new Current('old')];
  const [sender, receiver] = [open(sent), open(taken)];
  const heard = heardBy(receiver);
  say(sender, 'one');
  taken.replace('old\nnew');
  say(sender, 'two');
  sent.replace('new\nold');
  say(sender, 'three');
  taken.replace('new');
  say(sender, 'four');
  sent.replace('old\nnew');
  say(sender, 'five');
  assert.deepEqual([heard, receiver.numUnverified], [['one', 'two', 'three', 'four'], 1]);
});

test('without a token the bus works, and its messages count under no token that is one', () => {
  const [one, other, guarded] = [open(''), open(''), open('t')];
  const [heard, guardedHeard] = [heardBy(other), heardBy(guarded)];
  say(one, 'x');
  assert.deepEqual([heard, guardedHeard], [['x'], []]);
});

test('messages of more senders than may be asked at a time are dropped, and what waits is dropped in the end (P1)', async () => {
  const receiver = open();
  const heard = heardBy(receiver);
  const subject = 'penstock.a.news';
  for (let i = 0; i < 2_100; i++) {
    const sealer = new Sealer({ tokens: new Current('t'), cluster: 'a' }, nextEpoch());
    hub.publish(subject, sealer.seal(Buffer.from(subject), Buffer.from('x')));
  }
  assert.equal(receiver.numReplayed, 2_100 - 2_048);
  const sealer = new Sealer({ tokens: new Current('t'), cluster: 'a' }, nextEpoch());
  await clock.run(5_000);
  assert.equal(receiver.numReplayed, 2_100);
  for (let i = 0; i < 300; i++) hub.publish(subject, sealer.seal(Buffer.from(subject), Buffer.from('x')));
  assert.equal(receiver.numReplayed, 2_100 + 300 - 256);
  const sender = open();
  say(sender, 'there is room again');
  assert.deepEqual(heard, ['there is room again']);
});
