/** `penstock policy` on a real cluster: the next decision is made by the policy that was set. Budget: 30 s. */
import assert from 'node:assert/strict';
import { rmSync, statSync } from 'node:fs';
import { afterAll, beforeAll, test } from 'vitest';
import { Cluster, harbour, run, runToEnd } from '../support/cluster.ts';
import { until } from '../support/until.ts';

const token = { PENSTOCK_CLUSTER_TOKEN: 'a-secret-of-this-test' };
let cluster: Cluster;

beforeAll(async () => {
  // `up` hands its flags to its processes.
  const flags = ['--cluster-token', token.PENSTOCK_CLUSTER_TOKEN, '--policy', 'round_robin', '--log-level', 'error'];
  cluster = await Cluster.up(
    '--model',
    harbour,
    '--prefill',
    '1',
    '--decode',
    '2',
    '--store',
    '0',
    '--block-size',
    '8',
    ...flags,
  );
});
afterAll(async () => {
  await cluster.close();
});

interface Decided {
  readonly requestId: string;
  readonly decision: { readonly kind: string; readonly policy?: string; readonly placement?: { reason: string } };
}

async function read<T>(path: string): Promise<T> {
  return (await (await fetch(`${cluster.url}${path}`)).json()) as T;
}

/** Sends a prompt and returns its first decision. */
async function decision(prompt: readonly number[]): Promise<Decided['decision']> {
  await cluster.completion({ prompt, max_tokens: 2 });
  const { decisions } = await read<{ decisions: Decided[] }>('/api/decisions?limit=1');
  assert(decisions[0]);
  return decisions[0].decision;
}

const policy = (...args: string[]): ReturnType<typeof runToEnd> =>
  runToEnd(['policy', ...args, '--router', cluster.hub], token);

const promptOf = (first: number): number[] => Array.from({ length: 40 }, (_, i) => 3 + ((first * 97 + i * 31) % 1_500));

test('requests are placed by the option, then by what was set, and the pool says since when', async () => {
  assert.equal((await decision(promptOf(1))).policy, 'round_robin');
  const shown = await policy();
  assert.match(shown.output, /^round_robin, since \d{4}-.*Z, by the router's option\nto choose from: auto, /);
  const set = await policy('least_load', '--json');
  assert.equal(set.code, 0, set.errors);
  const reply = JSON.parse(set.output) as { name: string; version: number; sinceMs: number };
  assert.deepEqual([reply.name, reply.version], ['least_load', 1]);
  const { policy: decider, placement } = await decision(promptOf(2));
  assert.equal(decider, 'least_load');
  assert.match(placement?.reason ?? '', /^least_load: shortest queues/);
  const pool = await read<{ policy: Record<string, unknown> }>('/api/pool');
  const since = new Date(reply.sinceMs).toISOString();
  assert.deepEqual(pool.policy, { name: 'least_load', places_by: 'least_load', version: 1, since, set_by: 'router' });
});

test('every policy answers prompts with the same tokens', async () => {
  const { names } = JSON.parse((await policy('--json')).output) as { names: string[] };
  assert(names.length > 8, names.join());
  const prompt = promptOf(3);
  const expected = (await cluster.completion({ prompt, max_tokens: 4 })).choices[0]?.token_ids;
  assert.equal(expected?.length, 4);
  for (const name of names) {
    assert.equal((await policy(name)).code, 0);
    // Two blocks of the prompt are held, the others are new.
    const fork = [...prompt.slice(0, 20), ...promptOf(names.indexOf(name) + 10)];
    const forked = await cluster.completion({ prompt: fork, max_tokens: 4 });
    const again = await cluster.completion({ prompt: fork, max_tokens: 4 });
    assert.deepEqual(again.choices[0]?.token_ids, forked.choices[0]?.token_ids, name);
    assert.deepEqual((await cluster.completion({ prompt, max_tokens: 4 })).choices[0]?.token_ids, expected, name);
  }
  await cluster.idle();
});

test('an unknown name, a wrong token and an address without a router are refused with what to do', async () => {
  const unknown = await policy('fastest');
  assert.equal(unknown.code, 2);
  assert.match(unknown.errors, /there is no placement policy "fastest": choose one of auto, priced, longest_prefix, /);
  const refused = await runToEnd(['policy', 'auto', '--router', cluster.hub], { PENSTOCK_CLUSTER_TOKEN: 'another' });
  assert.equal(refused.code, 2);
  assert.match(refused.errors, /wrong cluster token: every process of a cluster needs the same PENSTOCK_CLUSTER_TOKEN/);
  const nowhere = await runToEnd(['policy', '--router', '127.0.0.1:1'], token);
  assert.equal(nowhere.code, 1);
  assert.match(nowhere.errors, /the router at 127.0.0.1:1 did not answer: .*--router HOST:PORT/);
  const decode = await until('the decode instance is there', async () => (await cluster.node('decode-1')).address);
  const other = await runToEnd(['policy', '--router', decode], token);
  assert.match(other.errors, /a decode instance does not serve policy/);
});

test('clusters that make their own tokens are told apart by their hub, and need no variable until they end', async () => {
  const size = ['--model', harbour, '--prefill', '0', '--decode', '1', '--store', '0', '--log-level', 'error'];
  const own = await Promise.all([Cluster.up(...size), Cluster.up(...size, '--policy', 'random')]);
  const [first, second] = own;
  const shown = async ({ hub }: Cluster, ...name: string[]): Promise<string> => {
    const { output, errors } = await runToEnd(['policy', ...name, '--router', hub]);
    return output === '' ? errors : (output.split(/[ ,]/)[0] ?? '');
  };
  try {
    assert.equal(await shown(first, 'least_load'), 'least_load');
    assert.deepEqual([await shown(first), await shown(second)], ['least_load', 'random']);
    // A process that joins takes the token of its cluster too.
    const joined = run(['store', '--join', first.hub, '--data-dir', first.dataFolder, '--name', 'late']);
    await until('the store has joined', async () => (await first.pool()).some(({ name }) => name === 'late'));
    joined.kill('SIGTERM');
    // Another token is refused as before; an empty one is as if none were kept.
    const refused = await runToEnd(['policy', '--router', first.hub], { PENSTOCK_CLUSTER_TOKEN: '' });
    assert.equal(refused.code, 2);
    assert.match(refused.errors, /wrong cluster token/);
    await second.crash();
  } finally {
    await Promise.all(own.map((one) => one.close()));
  }
  assert.match(await shown(first), /did not answer: .*name its --hub-bind/);
  const stale = await shown(second);
  assert.match(stale, /did not answer: .*set PENSTOCK_CLUSTER_TOKEN .*has ended/);
  const file = /of (\S+\.json) /.exec(stale)?.[1] ?? '';
  assert.equal(statSync(file).mode & 0o077, 0);
  rmSync(file);
});
