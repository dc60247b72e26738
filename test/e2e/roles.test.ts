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
import { goldenCases, goldenFolder } from '../support/golden.ts';
import { harbour, run, runToEnd, temporaryFolder, type NodeView } from '../support/cluster.ts';
import { patientCall, until } from '../support/until.ts';

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
  // Every role has its part, whatever that costs.
  const policy = ['--policy', 'longest_prefix'];
  const line = await start(
    ...(['router', '--bind', '127.0.0.1:0', '--hub-bind', '127.0.0.1:0', '--model', harbour] as const),
    ...policy,
  );
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
    ((await (await fetch(`${url}/api/pool`)).json()) as { nodes: NodeView[] }).nodes.filter(
      ({ role }) => role !== 'router',
    );
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
  const options = patientCall;
  await askOnce(network, /ready: (\S+)/.exec(line)?.[1] ?? '', 'drain', {}, options);
  network.close();
  assert.deepEqual(await exit, [0, null]);
  await until('the router has its goodbye', async () => {
    const { nodes } = (await (await fetch(`${url}/api/pool`)).json()) as { nodes: NodeView[] };
    return !nodes.some(({ name }) => name === 'drained');
  });
});

const nodeCalled = async (
  name: string,
): Promise<(NodeView & { state: string; unreachable: string | null }) | undefined> => {
  const { nodes } = (await (await fetch(`${url}/api/pool`)).json()) as {
    nodes: (NodeView & { state: string; unreachable: string | null })[];
  };
  return nodes.find((node) => node.name === name);
};

test('bound to every interface, a process is announced at the one that leads to the router', async () => {
  const args = [
    '--bind',
    '0.0.0.0:0',
    '--join',
    hub,
    '--data-dir',
    `${folder.path}/everywhere`,
    '--name',
    'everywhere',
  ];
  const line = await start('store', ...args);
  const child = children.pop();
  assert(child);
  const exit = once(child, 'exit');
  expect(line).toMatch(/everywhere ready: 127\.0\.0\.1:\d+/);
  expect(await nodeCalled('everywhere')).toMatchObject({ state: 'alive', unreachable: null });
  child.kill('SIGHUP');
  assert.deepEqual(await exit, [0, null], 'SIGHUP drains');
});

test('a process that nobody can call where it says is not counted, and its own log says why and what to do', async () => {
  const health = async (): Promise<{ instances: { decode: number } }> =>
    (await (await fetch(`${url}/health`)).json()) as { instances: { decode: number } };
  const args = ['--bind', '127.0.0.5:0', '--advertise', '127.0.0.5:1', '--join', hub, '--name', 'nowhere'];
  const child = run(['decode', '--model', harbour, '--threads', '1', '--log-level', 'warn', ...args], token);
  let errors = '';
  child.stderr?.on('data', (chunk: Buffer) => (errors += chunk.toString()));
  // A member is listed as soon as it is admitted, and was called a moment later.
  const node = await until('it is a member and was called', async () => {
    const listed = await nodeCalled('nowhere');
    return listed?.unreachable === null ? undefined : listed;
  });
  expect(node).toMatchObject({ state: 'unreachable' });
  expect(node.unreachable).toMatch(/127\.0\.0\.5:1: .*ECONNREFUSED/);
  assert.equal((await health()).instances.decode, 1, 'the other one');
  for (let i = 0; i < 4; i++) {
    const response = await fetch(`${url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ prompt: [5, 6 + i], max_tokens: 1 }),
    });
    assert.equal(response.status, 200);
    const { decode, attempts } = JSON.parse(response.headers.get('x-penstock-request') ?? '{}') as {
      decode: string;
      attempts: number;
    };
    assert.deepEqual([decode.includes('127.0.0.3'), attempts], [true, 1]);
  }
  expect(errors).toMatch(/the router cannot call this process/);
  expect(errors).toMatch(/ECONNREFUSED/);
  expect(errors).toMatch(/--advertise HOST:PORT/);
  const exit = once(child, 'exit');
  child.kill('SIGTERM');
  await exit;
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

async function servedModels(): Promise<string[]> {
  const { data } = (await (await fetch(`${url}/v1/models`)).json()) as { data: { id: string }[] };
  return data.map(({ id }) => id);
}

test('another model is served next to the first as long as it has an instance, with the tokenizer that it brings', async () => {
  const ask = (body: object, path = 'completions'): Promise<Response> =>
    fetch(`${url}/v1/${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ temperature: 0, return_token_ids: true, ...body }),
    });
  const model = 'gguf-q8_0';
  const place = ['--bind', '127.0.0.5:0', '--join', hub, '--threads', '1'];
  await start(
    'decode',
    ...place,
    '--name',
    'other',
    '--model',
    goldenFolder(model),
    '--weights',
    'f32',
    '--kv-dtype',
    'f32',
  );
  expect(await servedModels()).toEqual(['harbour', model]);
  const golden = goldenCases(model)[0]!;
  const response = await ask({ model, prompt: golden.prompt, max_tokens: 4 });
  assert.equal(response.status, 200, await response.clone().text());
  const { choices } = (await response.json()) as { choices: { token_ids: number[] }[] };
  expect(choices[0]?.token_ids).toEqual(golden.greedy.slice(0, 4));
  const chat = await ask({ model, messages: [{ role: 'user', content: 'hello' }], max_tokens: 2 }, 'chat/completions');
  const { prompt_token_ids: ids } = (await chat.json()) as { prompt_token_ids: number[] };
  // <|im_start|> of its own template.
  expect(ids[0]).toBe(1);
  // The first model is what it was, and knows its own vocabulary.
  expect((await ask({ prompt: [3, 4, 5], max_tokens: 1 })).status).toBe(200);
  const outside = await ask({ model, prompt: [1_536], max_tokens: 1 });
  expect(outside.status).toBe(400);
  const unknown = (await (await ask({ model: 'x', prompt: [3] })).json()) as { error: { message: string } };
  expect(unknown.error.message).toContain('this cluster serves `harbour`, `gguf-q8_0`');
  const metrics = await (await fetch(`${url}/metrics`)).text();
  expect(metrics).toMatch(/vllm:generation_tokens_total\{engine="[^"]+",model_name="gguf-q8_0"\} 6/);
  expect(metrics.match(/# TYPE vllm:generation_tokens_total/g)).toHaveLength(1);
  const other = children.pop()!;
  const exit = once(other, 'exit');
  other.kill('SIGTERM');
  await exit;
  await until('it is gone', async () => (await servedModels()).length === 1);
});

test('another block size is refused', async () => {
  const blocks = await runToEnd(
    ['prefill', '--join', hub, '--model', harbour, '--block-size', '16', '--log-level', 'silent'],
    token,
  );
  expect(blocks.code).toBe(1);
  expect(blocks.errors).toContain('has --block-size 16, the cluster 32');
});

test('a second store in the same data folder is refused', async () => {
  const { code, errors } = await runToEnd(
    ['store', '--bind', '127.0.0.4:0', '--join', hub, '--data-dir', folder.path, '--log-level', 'silent'],
    token,
  );
  expect(code).toBe(1);
  expect(errors).toMatch(/process \d+ uses the data folder/);
});
