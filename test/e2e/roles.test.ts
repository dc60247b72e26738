/**
 * The roles started one by one, without `up`, on addresses of their own form the same cluster; who does not belong is refused.
 * Budget: 40 s.
 */
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { createInterface } from 'node:readline';
import { once } from 'node:events';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { askOnce } from '../../shared/net/network.ts';
import { goldenFolder } from '../support/golden.ts';
import { harbour, run, runToEnd, temporaryFolder, until, type NodeView } from '../support/cluster.ts';

const token = { PENSTOCK_CLUSTER_TOKEN: 'a-secret-of-this-test' };
const folder = temporaryFolder();
const children: ChildProcess[] = [];
let url = '';
let hub = '';

/** Starts a role and returns the line it says when ready. */
async function start(role: string, ...args: string[]): Promise<string> {
  const child = run([role, '--log-level', 'error', ...args], token);
  children.push(child);
  assert(child.stdout);
  const [line] = (await once(createInterface({ input: child.stdout }), 'line')) as [string];
  return line;
}

beforeAll(async () => {
  const line = await start('router', '--bind', '127.0.0.1:0', '--hub-bind', '127.0.0.1:0', '--model', harbour);
  [, url = '', hub = ''] = /ready: (\S+), hub (\S+)/.exec(line) ?? [];
  await Promise.all([
    start('prefill', '--bind', '127.0.0.2:0', '--join', hub, '--model', harbour, '--threads', '1'),
    start('decode', '--bind', '127.0.0.3:0', '--join', hub, '--model', harbour, '--threads', '1'),
    start('store', '--bind', '127.0.0.4:0', '--join', hub, '--data-dir', folder.path),
  ]);
});
afterAll(async () => {
  await Promise.all(
    children.reverse().map(async (child) => {
      const exit = once(child, 'exit');
      child.kill('SIGTERM');
      const [code] = (await exit) as [number | null];
      assert.equal(code, 0, 'SIGTERM drains');
    }),
  );
  folder.remove();
});

test('four addresses, one cluster: a long prompt is prefilled on one, decoded on another, kept by a third', async () => {
  const prompt = Array.from({ length: 700 }, (_, i) => 3 + ((i * 31) % 1_500));
  const response = await fetch(`${url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ prompt, max_tokens: 4, temperature: 0 }),
  });
  assert.equal(response.status, 200, await response.clone().text());
  const where = JSON.parse(response.headers.get('x-penstock-request') ?? '{}') as { decode: string; prefill: string };
  expect(where.decode).toContain('127.0.0.3');
  expect(where.prefill).toContain('127.0.0.2');
  const nodes = async (): Promise<NodeView[]> =>
    ((await (await fetch(`${url}/api/pool`)).json()) as { nodes: NodeView[] }).nodes;
  expect((await nodes()).map(({ address }) => address.split(':')[0]).sort()).toEqual([
    '127.0.0.2',
    '127.0.0.3',
    '127.0.0.4',
  ]);
  await until(
    'the store has the blocks',
    async () => ((await nodes()).find(({ role }) => role === 'store')?.tiers['disk']?.blocks ?? 0) >= 21,
  );
});

test('the admin service drains a process, which then leaves the cluster', async () => {
  const line = await start(
    'store',
    '--bind',
    '127.0.0.4:0',
    '--join',
    hub,
    '--data-dir',
    `${folder.path}/drained`,
    '--name',
    'drained',
  );
  const child = children.pop();
  assert(child);
  const exit = once(child, 'exit');
  const network = new GrpcNetwork(token.PENSTOCK_CLUSTER_TOKEN, systemClock);
  const options = { signal: new AbortController().signal, timeoutMs: 5_000 };
  await askOnce(network, /ready: (\S+)/.exec(line)?.[1] ?? '', 'drain', {}, options);
  network.close();
  assert.deepEqual(await exit, [0, null]);
  const { nodes } = (await (await fetch(`${url}/api/pool`)).json()) as { nodes: NodeView[] };
  assert(!nodes.some(({ name }) => name === 'drained'));
});

test('a wrong token is refused, and says what to do', async () => {
  const { code, errors } = await runToEnd(
    ['store', '--join', hub, '--data-dir', `${folder.path}/other`, '--log-level', 'silent'],
    { PENSTOCK_CLUSTER_TOKEN: 'wrong' },
  );
  expect(code).toBe(1);
  expect(errors).toContain('wrong cluster token');
  expect(errors).toContain('PENSTOCK_CLUSTER_TOKEN');
});

test('another model is refused, and so is another block size', async () => {
  const other = await runToEnd(
    ['decode', '--join', hub, '--model', goldenFolder('llama-tied'), '--log-level', 'silent'],
    token,
  );
  expect(other.code).toBe(1);
  expect(other.errors).toContain('another model');
  const blocks = await runToEnd(
    ['prefill', '--join', hub, '--model', harbour, '--block-size', '16', '--log-level', 'silent'],
    token,
  );
  expect(blocks.code).toBe(1);
  expect(blocks.errors).toContain('blockSize is 16, the cluster has 32');
});

test('a second store in the same data folder is refused', async () => {
  const { code, errors } = await runToEnd(
    ['store', '--bind', '127.0.0.4:0', '--join', hub, '--data-dir', folder.path, '--log-level', 'silent'],
    token,
  );
  expect(code).toBe(1);
  expect(errors).toMatch(/process \d+ uses the data folder/);
});
