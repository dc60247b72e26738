/**
 * Sessions of two agents, sent as their clients send them: from the second turn on a request computes its new tokens and at most two
 * blocks besides them, whichever router of the cluster it goes through. Answers are those of the demo model; the texts of prompts are
 * our own: with others, even another path, the demo model answers otherwise, and some of its calls are cut off by max_tokens. Tools never run: their
 * results are made up. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { afterAll, beforeAll, test } from 'vitest';
import { run, type NodeView } from '../../support/cluster.ts';
import { NatsServer } from '../../support/nats_server.ts';
import { until } from '../../support/until.ts';
import { longContextModel } from './long_context_model.ts';
import { sessions } from './sessions.ts';

const token = { PENSTOCK_CLUSTER_TOKEN: 'a-secret-of-this-test' };
const model = 'harbour-agent';
const folder = longContextModel();
const children: ChildProcess[] = [];
/** Addresses of the routers, by name. */
const urls = new Map<string, string>();
let nats: NatsServer;

async function start(role: 'router' | 'decode', name: string, ...args: string[]): Promise<void> {
  const common = ['--name', name, '--bus', nats.url, '--cluster', 'agents', '--log-level', 'error'];
  const child = run([role, ...common, '--model', folder.path, ...args], token);
  children.push(child);
  assert(child.stdout);
  const [line] = (await once(createInterface({ input: child.stdout }), 'line')) as [string];
  const url = /ready: (http:\S+),/.exec(line)?.[1];
  if (url) urls.set(name, url);
}

beforeAll(async () => {
  nats = await NatsServer.start();
  const router = ['--bind', '127.0.0.1:0', '--served-model-name', model];
  await Promise.all([
    start('router', 'router-1', ...router),
    start('router', 'router-2', ...router),
    start('router', 'router-3', ...router, '--keep-reasoning'),
    start('decode', 'decode-1'),
  ]);
  for (const url of urls.values()) {
    await until(`${url} sees the decode instance`, async () => {
      const { nodes } = (await (await fetch(`${url}/api/pool`)).json()) as { nodes: NodeView[] };
      return nodes.some(({ role, state }) => role === 'decode' && state === 'alive');
    });
  }
});
afterAll(async () => {
  for (const child of children.reverse()) {
    const exit = once(child, 'exit');
    child.kill('SIGTERM');
    await exit;
  }
  await nats.close();
  folder.remove();
});

test.each(Object.entries(sessions))('%s', async (_, { play, routers, kinds, says, isDropping = false }) => {
  const urlOf = (turn: number): string =>
    urls.get(routers[turn % routers.length] ?? '') ?? assert.fail('a router of the session');
  const played = await play(urlOf, model);
  const { costs, last } = played;
  for (const kind of kinds) assert(played.kinds.has(kind), `an answer has ${kind}:\n${costs.table()}`);
  if (says) assert.match(last, says, costs.table());
  if (isDropping) costs.checkDropping(isDropping === true);
  else costs.check();
});
