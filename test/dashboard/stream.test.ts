/** The page's stream and its values, on a clock of the test's. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import type { EventReceiver, Host } from '../../services/dashboard/host.ts';
import { Store } from '../../services/dashboard/store.ts';
import { Stream } from '../../services/dashboard/stream.ts';
import { World } from '../support/dashboard_world.ts';

const SIZE = { nodes: 4, blocks: 100, requests: 20, seed: 3 };

/** A browser whose time passes by `pass`. */
class PlayedHost implements Host {
  at = 1_000_000;
  visible = true;
  receiver: EventReceiver | undefined;
  numOpened = 0;
  #timers: { at: number; run: () => void }[] = [];
  #changed = (): void => undefined;

  now(): number {
    return this.at;
  }

  later(ms: number, run: () => void): () => void {
    const timer = { at: this.at + ms, run };
    this.#timers.push(timer);
    return () => (this.#timers = this.#timers.filter((one) => one !== timer));
  }

  isVisible(): boolean {
    return this.visible;
  }

  onVisibility(changed: () => void): void {
    this.#changed = changed;
  }

  openEvents(_path: string, receiver: EventReceiver): { close: () => void } {
    this.numOpened++;
    this.receiver = receiver;
    return {
      close: () => {
        if (this.receiver === receiver) this.receiver = undefined;
      },
    };
  }

  get numTimers(): number {
    return this.#timers.length;
  }

  show(visible: boolean): void {
    this.visible = visible;
    this.#changed();
  }

  pass(ms: number): void {
    const end = this.at + ms;
    for (;;) {
      const [next] = this.#timers.filter(({ at }) => at <= end).sort((a, b) => a.at - b.at);
      if (!next) break;
      this.#timers = this.#timers.filter((one) => one !== next);
      this.at = next.at;
      next.run();
    }
    this.at = end;
  }

  /** Ends the connection, as a router does that is killed, or refuses it. */
  drop(refusal?: string): void {
    const { receiver } = this;
    this.receiver = undefined;
    receiver?.onEnd(refusal);
  }
}

const opensOf = ({ numOpened }: PlayedHost): number => numOpened;

function start() {
  const host = new PlayedHost();
  const store = new Store();
  const world = new World(SIZE, host.at);
  new Stream(store, host).start();
  const send = (tick: object): void => host.receiver?.onTick(JSON.stringify(tick));
  return { host, store, world, send };
}

test('values are stale three seconds after the last tick, and live again with the next one', () => {
  const { host, store, world, send } = start();
  assert.equal(store.liveness.value, 'connecting');
  send(world.first());
  assert.equal(store.liveness.value, 'live');
  host.pass(2_900);
  assert.equal(store.liveness.value, 'live');
  host.pass(400);
  assert.equal(store.liveness.value, 'stale');
  assert.equal(store.heardAt.value, 1_000_000);
  send(world.tick(host.at));
  assert.equal(store.liveness.value, 'live');
});

test('a page whose first connection never brings a tick says so, too', () => {
  const { host, store } = start();
  host.pass(3_500);
  assert.equal(store.liveness.value, 'stale');
  assert.equal(store.heardAt.value, null);
});

test('a page that the router refuses says why at once, asks again, and is live when it is let in', () => {
  const { host, store, world, send } = start();
  host.drop('there are 64 streams already: close a page of the dashboard');
  assert.equal(store.liveness.value, 'stale');
  assert.match(store.refusal.value ?? '', /64 streams/);
  host.pass(300);
  assert.equal(opensOf(host), 2);
  host.drop();
  assert.equal(store.refusal.value, null, 'a router that does not answer refuses nothing');
  host.pass(1_000);
  send(world.first());
  assert.equal(store.liveness.value, 'live');
});

test('a connection that ends is opened again, later after each failure; one that hangs is replaced', () => {
  const { host, world, send } = start();
  send(world.first());
  host.drop();
  host.pass(200);
  assert.equal(opensOf(host), 1);
  host.pass(100);
  assert.equal(opensOf(host), 2);
  const opened: number[] = [];
  for (let i = 0; i < 6; i++) {
    host.drop();
    const from = host.at;
    while (!host.receiver) host.pass(50);
    opened.push(host.at - from);
  }
  assert.deepEqual(opened, [500, 1_000, 2_000, 2_000, 2_000, 2_000]);
  // Ten seconds without a tick after the eighth connection.
  host.pass(10_500);
  assert.equal(opensOf(host), 9);
});

test('a hidden page has neither connection nor timers', () => {
  const { host, store, world, send } = start();
  send(world.first());
  host.show(false);
  assert.equal(host.receiver, undefined);
  assert.equal(host.numTimers, 0);
  host.pass(60_000);
  assert.equal(host.numOpened, 1);
  host.show(true);
  assert.equal(host.numOpened, 2);
  send(world.first());
  assert.equal(store.liveness.value, 'live');
  assert.equal(host.numTimers, 1);
});

test('rows keep their signals while their values change; rows that are gone go', () => {
  const { host, store, world, send } = start();
  send(world.first());
  const names = store.nodes.ids.value;
  const [first = ''] = names;
  const row = store.nodes.row(first);
  for (let i = 0; i < 50; i++) send(world.tick(host.at + i * 1_000));
  assert.equal(store.nodes.row(first), row);
  assert.deepEqual(store.nodes.ids.value, names);
  assert.deepEqual(row?.value, JSON.parse(JSON.stringify(world.nodes.find(({ name }) => name === first))));
  send(world.lose(first));
  assert(!store.nodes.ids.value.includes(first));
  assert.equal(store.nodes.row(first), undefined);
  assert.equal(store.events.value[0]?.kind, 'lost');
});

test('the newest requests come first; a request that changes keeps its place', () => {
  const { host, store, world, send } = start();
  send(world.first());
  const [newest] = store.requests.ids.value;
  assert.equal(newest, world.requests[0]?.id);
  send(world.tick(host.at + 1_000, 1));
  assert.equal(store.requests.ids.value[1], newest);
  const known = world.requests[5];
  assert(known);
  send({ ...world.tick(host.at + 2_000, 0), requests: [{ ...known, output_tokens: 7_777 }] });
  assert.equal(store.requests.ids.value.indexOf(known.id), 5);
  assert.equal(store.requests.row(known.id)?.value.output_tokens, 7_777);
});

test('another router’s requests and events replace those of the one before', () => {
  const { host, store, world, send } = start();
  send(world.first());
  host.drop();
  host.pass(300);
  const other = new World({ ...SIZE, nodes: 2, requests: 3 }, host.at, 'epoch-2');
  send(other.first());
  assert.equal(store.requests.ids.value.length, 3);
  assert.equal(store.nodes.ids.value.length, 2);
  assert.deepEqual(
    store.events.value.map(({ id }) => id),
    other.events.map(({ id }) => id),
  );
  assert.equal(store.connections.value, 2);
});

test('3,600 ticks keep the lists at their bounds', () => {
  const { host, store, world, send } = start();
  send(world.first());
  for (let i = 0; i < 3_600; i++) send(world.tick(host.at + i * 1_000, 3));
  assert.equal(store.requests.ids.value.length, 10_000);
  assert.equal(store.requests.all().length, 10_000);
  assert.equal(store.nodes.ids.value.length, 4);
});
