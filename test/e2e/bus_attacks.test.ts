/**
 * An outsider has an account at the NATS server and no cluster token: what it records of `penstock.>` has no word of an answer, and sent again
 * changes nothing, neither at a router that runs nor at one that starts later. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { connect, type NatsConnection } from 'nats';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { decodeAnswer } from '../../services/router/remembered_answers.ts';
import { Current } from '../../shared/base/current.ts';
import { EPOCH_BYTES, Opener } from '../../shared/bus/sealed/seal.ts';
import { subjects } from '../../shared/protocol/membership.ts';
import { harbour, run, runToEnd, temporaryFolder, type NodeView } from '../support/cluster.ts';
import { freePort } from '../support/free_ports.ts';
import { NatsServer } from '../support/nats_server.ts';
import { NEVER_SILENT, PATIENCE_MS, until } from '../support/until.ts';

const TOKEN = 'a-secret-of-this-test';
const CLUSTER = 'harbour';
const NUM_ANSWERS = 50;
const NUM_RECORDED = 1_000;
/** Messages that are sent again between two looks at a router. */
const BATCH = 25;
/** Notices of a router, one a second, that come before recorded messages are sent to a router that starts later. */
const NUM_NOTICES = 4;

interface Recorded {
  readonly subject: string;
  readonly payload: Buffer;
}

interface Pool {
  readonly nodes: readonly NodeView[];
  readonly index_keys: number;
  readonly bus: { readonly replayed: number; readonly unverified: number };
  readonly policy: { readonly name: string; readonly version: number };
}

const folder = temporaryFolder();
const children = new Map<string, ChildProcess>();
const urls = new Map<string, string>();
const recorded: Recorded[] = [];
const answers: string[] = [];
let nats: NatsServer;
let outsider: NatsConnection;
let hub = '';

async function start(name: string): Promise<void> {
  const role = name.replace(/-\d$/, '');
  const own: Record<string, string[]> = {
    router: ['--model', harbour, '--bind', '127.0.0.1:0', ...NEVER_SILENT],
    store: ['--data-dir', folder.path],
  };
  const rest = own[role] ?? ['--model', harbour, '--threads', '1'];
  const common = ['--name', name, '--bus', nats.url, '--cluster', CLUSTER, '--log-level', 'error'];
  const ports = name === 'router-1' ? ['--hub-bind', hub] : [];
  const child = run([role, ...common, ...rest, ...ports], { PENSTOCK_CLUSTER_TOKEN: TOKEN });
  children.set(name, child);
  assert(child.stdout);
  const [line] = (await once(createInterface({ input: child.stdout }), 'line')) as [string];
  const url = /ready: (http:\S+),/.exec(line)?.[1];
  if (url) urls.set(name, url);
}

async function stop(name: string, signal: NodeJS.Signals): Promise<void> {
  const child = children.get(name);
  assert(child);
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exit = once(child, 'exit');
  child.kill(signal);
  await exit;
}

async function poolOf(router: string): Promise<Pool> {
  return (await (await fetch(`${urls.get(router)}/api/pool`)).json()) as Pool;
}

/** Returns what no recorded message may change, as a router has it. */
async function stateOf(router: string): Promise<unknown> {
  const { nodes, index_keys, policy } = await poolOf(router);
  const members = nodes
    .filter(({ role }) => role !== 'router')
    .map(({ name, epoch, state, running, waiting, open_streams, kv_usage, tiers }) => ({
      name,
      epoch,
      state,
      running,
      waiting,
      open_streams,
      kv_usage,
      blocks: Object.fromEntries(Object.entries(tiers).map(([tier, { blocks }]) => [tier, blocks])),
    }))
    .sort((a, b) => (a.name < b.name ? -1 : 1));
  return { members, index_keys, policy: { name: policy.name, version: policy.version } };
}

async function has(router: string, ...names: readonly string[]): Promise<void> {
  await until(`${router} has ${names.join(', ')}`, async () => {
    const { nodes } = await poolOf(router);
    const members = nodes.filter(({ role }) => role !== 'router');
    return (
      members.length === names.length && members.every(({ name, state }) => names.includes(name) && state === 'alive')
    );
  });
}

/** Resolves with the state of a router once nothing runs, and the state has stayed the same for some heartbeats. */
async function settled(router: string): Promise<unknown> {
  const beats = async (): Promise<number> =>
    Math.min(
      ...(await poolOf(router)).nodes.filter(({ role }) => role !== 'router').map(({ heartbeats }) => heartbeats),
    );
  let [state, sinceBeats] = [await stateOf(router), await beats()];
  await until(`${router} is idle`, async () => {
    const [now, nowBeats] = [await stateOf(router), await beats()];
    if (JSON.stringify(now) !== JSON.stringify(state)) [state, sinceBeats] = [now, nowBeats];
    return nowBeats >= sinceBeats + 4;
  });
  return state;
}

async function chat(n: number): Promise<string> {
  const messages = [{ role: 'user', content: `question ${n} about ${'the harbour '.repeat(1 + (n % 40))}` }];
  const body = { messages, max_tokens: 40, temperature: 1.2, seed: n, ignore_eos: true };
  const response = await fetch(`${urls.get('router-1')}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  const text = await response.text();
  assert.equal(response.status, 200, text);
  return (JSON.parse(text) as { choices: [{ message: { content: string } }] }).choices[0].message.content;
}

const full = (subject: string): string => `penstock.${CLUSTER}.${subject}`;
const setPolicy = (name: string): ReturnType<typeof runToEnd> =>
  runToEnd(['policy', name, '--router', hub], { PENSTOCK_CLUSTER_TOKEN: TOKEN });

async function send(messages: readonly Recorded[]): Promise<void> {
  for (const { subject, payload } of messages) outsider.publish(subject, payload);
  await outsider.flush();
}

/** Sends all recorded messages again. The state of a router stays what it is, and it counts all that it hears. */
async function attack(router: string): Promise<void> {
  const before = await settled(router);
  const { bus } = await poolOf(router);
  for (let at = 0; at < recorded.length; at += BATCH) {
    await send(recorded.slice(at, at + BATCH));
    expect(await stateOf(router)).toEqual(before);
  }
  const heard = ['heartbeat', 'goodbye', 'blocks', 'policy', 'hello', 'router', 'answers'] as const;
  const numHeard = recorded.filter(({ subject }) => heard.some((name) => subject === full(subjects[name]))).length;
  assert(numHeard > NUM_RECORDED / 2);
  await until('all are counted', async () => (await poolOf(router)).bus.replayed >= bus.replayed + numHeard);
  expect(await settled(router)).toEqual(before);
  expect((await poolOf(router)).bus.unverified).toBe(0);
}

beforeAll(async () => {
  nats = await NatsServer.start();
  hub = `127.0.0.1:${await freePort()}`;
  outsider = await connect({ servers: nats.url });
  outsider.subscribe('penstock.>', {
    callback: (_error, { subject, data }) => {
      if (recorded.length < NUM_RECORDED) recorded.push({ subject, payload: Buffer.from(data) });
    },
  });
  await outsider.flush();
  await start('router-1');
  await Promise.all(['prefill-1', 'decode-1', 'store-1', 'store-2'].map(start));
  await has('router-1', 'prefill-1', 'decode-1', 'store-1', 'store-2');
  expect((await setPolicy('least_load')).code).toBe(0);
  for (let n = 0; n < NUM_ANSWERS; n++) answers.push(await chat(n));
  // The process says goodbye, and is gone.
  await stop('store-2', 'SIGTERM');
  await has('router-1', 'prefill-1', 'decode-1', 'store-1');
  expect((await setPolicy('auto')).code).toBe(0);
  for (let n = NUM_ANSWERS; recorded.length < NUM_RECORDED; n++) await chat(n);
});

afterAll(async () => {
  await outsider.close();
  await Promise.all([...children.keys()].map((name) => stop(name, 'SIGKILL')));
  await nats.close();
  folder.remove();
});

test('what is recorded has no word of 50 answers, which are in it for those who have the token', () => {
  const words = new Set(answers.flatMap((answer) => answer.match(/\p{L}{5,}/gu) ?? []));
  assert(words.size > 50, `${words.size} words`);
  const hasWord = (bytes: Buffer): boolean => {
    const text = bytes.toString('utf8');
    return [...words].some((word) => text.includes(word));
  };
  expect(recorded.filter(({ payload }) => hasWord(payload)).map(({ subject }) => subject)).toEqual([]);
  const secret = { tokens: new Current(TOKEN), cluster: CLUSTER };
  const remembered = recorded
    .filter(({ subject }) => subject === full(subjects.answers))
    .map(({ subject, payload }) =>
      new Opener(secret, payload.subarray(0, EPOCH_BYTES)).open(Buffer.from(subject), payload),
    )
    .map((opened) => decodeAnswer(opened?.payload ?? Buffer.alloc(0)));
  assert(remembered.length > 0);
  for (const { text, ids } of remembered) {
    assert(hasWord(Buffer.from(text)));
    const bytes = Buffer.from(ids.buffer, ids.byteOffset, Math.min(ids.byteLength, 16));
    assert(!recorded.some(({ payload }) => payload.includes(bytes)), 'nor its token ids');
  }
  const subjectsSeen = new Set(recorded.map(({ subject }) => subject));
  for (const subject of [subjects.heartbeat, subjects.goodbye, subjects.blocks, subjects.policy, subjects.hello])
    assert(subjectsSeen.has(full(subject)), `${subject} was recorded`);
});

test('sent again to a running cluster, 1,000 recorded messages change no member, load, policy or index', async () => {
  await attack('router-1');
  const metrics = await (await fetch(`${urls.get('router-1')}/metrics`)).text();
  expect(Number(/^penstock_bus_replayed_total (\d+)/m.exec(metrics)?.[1])).toBeGreaterThan(0);
  const register = recorded.find(({ subject }) => subject.includes('cluster.register'));
  assert(register);
  const refused = await outsider.request(register.subject, register.payload, { timeout: PATIENCE_MS });
  expect(Buffer.from(refused.data).toString()).toMatch(/not new/);
});

test('to a router that starts later they say nothing either, though it has heard none of their senders', async () => {
  const before = await settled('router-1');
  let numNotices = 0;
  const notices = outsider.subscribe(full(subjects.router), { callback: () => numNotices++ });
  await until('the recorded messages are old', () => numNotices > NUM_NOTICES);
  notices.unsubscribe();
  let isStarting = true;
  const attacking = (async (): Promise<void> => {
    while (isStarting) {
      await send(recorded);
      // eslint-disable-next-line time/speed -- the router needs a core too; how often it is attacked does not matter
      await sleep(50);
    }
  })();
  await start('router-2');
  await has('router-2', 'prefill-1', 'decode-1', 'store-1');
  isStarting = false;
  await attacking;
  await until('both are of one mind', async () => {
    const [one, other] = [await stateOf('router-1'), await stateOf('router-2')];
    return JSON.stringify(one) === JSON.stringify(other);
  });
  expect(await settled('router-2')).toEqual(before);
  await attack('router-2');
});
