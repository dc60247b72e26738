/**
 * Two routers, two prefill, two decode instances and two stores on a real nats-server: every answer is that of a single process, whoever
 * restarts. Budget: 90 s.
 */
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { harbour, heartbeats, run, runToEnd, temporaryFolder, type NodeView } from '../support/cluster.ts';
import { halfOf } from '../support/long.ts';
import { freePort } from '../support/free_ports.ts';
import { NatsServer } from '../support/nats_server.ts';
import { generate, greedy, loadReference } from '../support/reference_loop.ts';
import { staysSo, until } from '../support/until.ts';

const token = { PENSTOCK_CLUSTER_TOKEN: 'a-secret-of-this-test' };
const folder = temporaryFolder();
const children = new Map<string, ChildProcess>();
const urls = new Map<string, string>();
/** Addresses of the calls of routers. */
const hubs = new Map<string, string>();
let nats: NatsServer;

interface Case {
  readonly prompt: readonly number[];
  readonly tokens: readonly number[];
}
const MAX_TOKENS = 12;
const cases: Case[] = [];

async function start(name: string): Promise<void> {
  const role = name.replace(/-\d$/, '');
  const own: Record<string, string[]> = {
    router: [
      ...['--model', harbour, '--bind', urls.get(name)?.replace('http://', '') ?? '127.0.0.1:0'],
      ...['--hub-bind', hubs.get(name) ?? '127.0.0.1:0'],
    ],
    store: ['--data-dir', folder.path],
  };
  const rest = own[role] ?? ['--model', harbour, '--threads', '1', '--weights', 'f32', '--kv-dtype', 'f32'];
  const common = ['--name', name, '--bus', nats.url, '--cluster', 'harbour', '--log-level', 'error'];
  const child = run([role, ...common, ...rest], token);
  children.set(name, child);
  assert(child.stdout);
  const [line] = (await once(createInterface({ input: child.stdout }), 'line')) as [string];
  const url = /ready: (http:\S+),/.exec(line)?.[1];
  if (url) urls.set(name, url);
}

async function stop(name: string, signal: NodeJS.Signals): Promise<void> {
  const child = children.get(name);
  assert(child);
  const exit = once(child, 'exit');
  child.kill(signal);
  await exit;
}

async function poolOf(router: string): Promise<NodeView[]> {
  const { nodes } = (await (await fetch(`${urls.get(router)}/api/pool`)).json()) as { nodes: NodeView[] };
  return nodes.filter(({ role }) => role !== 'router');
}

/** Resolves when both routers see all six nodes alive. */
async function whole(): Promise<void> {
  for (const router of ['router-1', 'router-2']) {
    await until(`${router} sees all`, async () => {
      const nodes = await poolOf(router).catch(() => []);
      return nodes.length === 6 && nodes.every(({ state }) => state === 'alive');
    });
  }
}

async function ask(router: string, { prompt }: Case): Promise<number[]> {
  const response = await fetch(`${urls.get(router)}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ prompt, max_tokens: MAX_TOKENS, temperature: 0, ignore_eos: true, return_token_ids: true }),
  });
  const body = await response.text();
  assert.equal(response.status, 200, body);
  return (JSON.parse(body) as { choices: { token_ids: number[] }[] }).choices[0]?.token_ids ?? [];
}

/** Requests over these routers in turn, four at a time, until it is told to end. */
class Traffic {
  readonly #routers: readonly string[];
  readonly #workers: Promise<void>[];
  #isEnding = false;
  numServed = 0;
  numLost = 0;

  constructor(routers: readonly string[]) {
    this.#routers = routers;
    this.#workers = [0, 1, 2, 3].map((worker) => this.#work(worker));
  }

  async #work(worker: number): Promise<void> {
    for (let i = worker; !this.#isEnding; i += 4) {
      const one = cases[i % cases.length];
      assert(one);
      const router = this.#routers[i % this.#routers.length] ?? '';
      const tokens = await ask(router, one);
      assert.deepEqual(tokens, one.tokens, `${one.prompt.length} tokens at ${router}`);
      this.numServed++;
    }
  }

  /** Resolves when it was told to end and the last request is answered; rejects when one fails. */
  async ended(): Promise<number> {
    await Promise.all(this.#workers);
    return this.numServed;
  }

  async end(): Promise<number> {
    this.#isEnding = true;
    return this.ended();
  }
}

beforeAll(async () => {
  nats = await NatsServer.start();
  const model = await loadReference(harbour, 'f32', 4_096, { weightFormat: 'f32' });
  const random = new Random(77);
  const of = (length: number): number[] => Array.from({ length }, () => 3 + random.below(1_500));
  const shared = of(300);
  for (let i = 0; i < 24; i++) {
    const own = of(5 + random.below(400));
    const prompt = i % 2 === 0 ? [...shared, ...own] : own;
    const tokens = await generate(model.executable, prompt, greedy, MAX_TOKENS);
    cases.push({ prompt, tokens: tokens.map((sampled) => sampled.token) });
  }
  await model.executable.close();
  model.device.destroy();
  // Routers after some, and before others.
  const early = ['store-1', 'prefill-1'].map(start);
  // eslint-disable-next-line time/speed -- any head start will do
  await sleep(300);
  hubs.set('router-1', `127.0.0.1:${await freePort()}`);
  await Promise.all(['router-1', 'router-2'].map(start));
  await Promise.all([...early, ...['store-2', 'prefill-2', 'decode-1', 'decode-2'].map(start)]);
  await whole();
});

afterAll(async () => {
  await Promise.all([...children.keys()].map((name) => stop(name, 'SIGKILL')));
  await nats.close();
  folder.remove();
});

test('the oracle, over both routers; what one has had computed the other finds', async () => {
  for (const [i, one] of cases.entries())
    assert.deepEqual(await ask(i % 2 === 0 ? 'router-1' : 'router-2', one), one.tokens);
  // Cases with the long prefix went to the first router alone.
  const again = cases[0];
  assert(again);
  await ask('router-2', again);
  const response = await fetch(`${urls.get('router-2')}/api/decisions?limit=1`);
  const { decisions } = (await response.json()) as { decisions: { snapshot: { ranges: { end: number }[] } }[] };
  expect(decisions[0]?.snapshot.ranges.at(-1)?.end).toBe(Math.floor((again.prompt.length - 1) / 32));
});

test('a policy that is set at one router decides at both, and at one that starts again', async () => {
  const placesBy = async (router: string): Promise<string | undefined> => {
    const [one] = cases;
    assert(one);
    assert.deepEqual(await ask(router, one), one.tokens);
    const response = await fetch(`${urls.get(router)}/api/decisions?limit=1`);
    const { decisions } = (await response.json()) as { decisions: { decision: { policy?: string } }[] };
    return decisions[0]?.decision.policy;
  };
  const set = (name: string): ReturnType<typeof runToEnd> =>
    runToEnd(['policy', name, '--router', hubs.get('router-1') ?? ''], token);
  const { code, errors } = await set('least_load');
  expect(code, errors).toBe(0);
  for (const router of ['router-1', 'router-2'])
    await until(`${router} places by it`, async () => (await placesBy(router)) === 'least_load');
  await stop('router-2', 'SIGTERM');
  await start('router-2');
  await whole();
  await until('it does again', async () => (await placesBy('router-2')) === 'least_load');
  await set('auto');
  await until('all is as before', async () => (await placesBy('router-2')) !== 'least_load');
});

test('every instance is restarted, one after the other, under load: no request fails, no token differs', async () => {
  const traffic = new Traffic(['router-1', 'router-2']);
  for (const name of halfOf(['prefill-1', 'decode-1', 'store-1', 'prefill-2', 'decode-2', 'store-2'])) {
    await stop(name, name.endsWith('1') ? 'SIGKILL' : 'SIGTERM');
    await start(name);
    await whole();
  }
  expect(await traffic.end()).toBeGreaterThan(10);
});

test('the bus is away for longer than an instance may be silent: what runs runs on, and new requests are served', async () => {
  const traffic = new Traffic(['router-1', 'router-2']);
  await until('it is served', () => traffic.numServed > 0);
  await nats.kill();
  // eslint-disable-next-line time/speed -- longer than an instance may be silent: nothing must come of it
  await sleep(5_000);
  const before = traffic.numServed;
  await until('it is still served', () => traffic.numServed > before + 8);
  expect(await poolOf('router-1')).toHaveLength(6);
  await nats.restart();
  for (const url of urls.values()) await heartbeats(url);
  await whole();
  expect(await traffic.end()).toBeGreaterThan(10);
});

test('a router is killed under load: its own requests lose their connection, nobody else notices', async () => {
  const struck = new Traffic(['router-1']);
  const failed = assert.rejects(struck.ended());
  const traffic = new Traffic(['router-2']);
  await until('both are served', () => struck.numServed > 0 && traffic.numServed > 0);
  await stop('router-1', 'SIGKILL');
  await failed;
  const before = traffic.numServed;
  await until('the other one serves on', () => traffic.numServed > before + 8);
  await start('router-1');
  await whole();
  expect(await traffic.end()).toBeGreaterThan(3);
  const again = cases[1];
  assert(again);
  assert.deepEqual(await ask('router-1', again), again.tokens);
});

test('another token, and another cluster on the same server', async () => {
  const common = ['--bus', nats.url, '--log-level', 'error', '--data-dir', folder.path];
  const wrong = await runToEnd(['store', '--name', 'thief', '--cluster', 'harbour', ...common], {
    PENSTOCK_CLUSTER_TOKEN: 'guessed',
  });
  expect(wrong.code).toBe(1);
  expect(wrong.errors).toMatch(/wrong --cluster-token: the routers on nats:/);
  const other = run(['store', '--name', 'other', '--cluster', 'quay', ...common, '--log-level', 'info'], token);
  let said = '';
  other.stderr?.on('data', (chunk: Buffer) => (said += chunk.toString()));
  await until('it is ready', () => said.includes('joining'));
  await staysSo('it waits for a router of its own', () => other.exitCode === null);
  expect((await poolOf('router-1')).map(({ name }) => name)).not.toContain('other');
  other.kill('SIGKILL');
});
