/**
 * `penstock tenant forget` on a real cluster: a tenant's blocks are gone from device, outbox, DRAM, disk and index, and its key from the list;
 * others keep theirs. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import { readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { chainOf, numPrefillBlocks, tenantIdOf, type Digest } from '../../shared/kv/block_key.ts';
import { chainRoot, noScope } from '../../shared/kv/format.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import type { ForgetOutcome, PrefillRequest } from '../../shared/protocol/messages.ts';
import { packDigest, packTokens } from '../../shared/protocol/packing.ts';
import { KeyList } from '../../services/store/key_list.ts';
import { Cluster, runToEnd, temporaryFolder } from '../support/cluster.ts';
import { callPrefill } from '../support/played_decode.ts';
import { PATIENCE_MS, until } from '../support/until.ts';

const token = 'a-secret-of-this-test';
const KEY = '5a'.repeat(32);
const NUM_TOKENS = 200;
const folder = temporaryFolder();
let cluster: Cluster;
let format: Digest;

beforeAll(async () => {
  const keyFile = join(folder.path, 'key');
  writeFileSync(keyFile, KEY, { mode: 0o600 });
  cluster = await Cluster.up(
    ...['--prefill', '1', '--decode', '1', '--store', '1', '--cluster-token', token],
    ...['--disk-key', keyFile, '--disk-writes', 'through'],
  );
  const pool = (await (await fetch(`${cluster.url}/api/pool`)).json()) as { model: { digest: Digest } };
  format = pool.model.digest;
});
afterAll(async () => {
  await cluster.close();
  folder.remove();
});

/** Has a prompt of a tenant computed by the prefill instance, as a router does. */
async function prefill(tenant: string, first: number): Promise<void> {
  const tokens = Uint32Array.from({ length: NUM_TOKENS }, (_, i) => 3 + ((first * 97 + i * 31) % 1_500));
  const scope = { ...noScope, tenant };
  const hashes = chainOf(chainRoot(format, scope), 32, tokens, numPrefillBlocks(NUM_TOKENS, 32));
  const { address } = await cluster.node('prefill-1');
  const network = new GrpcNetwork(token, systemClock);
  const request: PrefillRequest = {
    context: {
      requestId: `${tenant}-${first}`,
      tenant,
      priority: 0,
      timeoutMs: PATIENCE_MS,
      traceId: '',
      router: '',
      placement: 0,
      expectedTokens: 0,
    },
    format: packDigest(format),
    tokens: packTokens(tokens),
    lastDigest: packDigest(hashes.at(-1)!.digest),
    sources: [],
    scope,
    pipelinePatienceMs: 0,
  };
  await callPrefill(network, address, request);
  network.close();
}

async function blocksAt(name: string, tier: string): Promise<number> {
  return (await cluster.node(name)).tiers[tier]?.blocks ?? 0;
}

const forget = (...args: string[]): ReturnType<typeof runToEnd> =>
  runToEnd(['tenant', ...args, '--router', cluster.hub], { PENSTOCK_CLUSTER_TOKEN: token });

async function indexKeys(): Promise<number> {
  return ((await (await fetch(`${cluster.url}/api/pool`)).json()) as { index_keys: number }).index_keys;
}

test('the blocks of one tenant are gone everywhere, and its key; those of others stay', async () => {
  const numBlocks = numPrefillBlocks(NUM_TOKENS, 32);
  await prefill('acme', 1);
  await prefill('other', 2);
  await until('the blocks of both are on disk', async () => (await blocksAt('store-1', 'disk')) === 2 * numBlocks);
  await until('the index knows them', async () => (await indexKeys()) === 2 * numBlocks);
  const [name = ''] = readdirSync(cluster.dataFolder);
  const data = join(cluster.dataFolder, name);
  const list = join(data, 'lmdb.keys');
  assert(KeyList.read(list, Buffer.from(KEY, 'hex')).byTenant(tenantIdOf('acme')));

  const { code, output, errors } = await forget('forget', 'acme', '--json');
  assert.equal(code, 0, errors);
  const { outcomes } = JSON.parse(output) as { outcomes: ForgetOutcome[] };
  const of = (member: string): ForgetOutcome => outcomes.find((one) => one.member === member)!;
  expect(outcomes).toHaveLength(3);
  expect(of('store-1')).toMatchObject({ role: 'store', blocks: numBlocks, inUse: 0, isFinal: true, error: '' });
  expect(of('prefill-1')).toMatchObject({ role: 'prefill', blocks: numBlocks, inUse: 0, error: '' });
  expect(of('decode-1')).toMatchObject({ role: 'decode', blocks: 0, error: '' });

  await until('the index has lost them', async () => (await indexKeys()) === numBlocks);
  for (const tier of ['dram', 'disk'])
    await until(`${tier} has lost them`, async () => (await blocksAt('store-1', tier)) === numBlocks);
  const keys = KeyList.read(list, Buffer.from(KEY, 'hex'));
  expect([keys.byTenant(tenantIdOf('acme')), keys.size]).toEqual([undefined, 1]);
  const again = await forget('forget', 'acme');
  expect([again.code, again.output]).toEqual([0, expect.stringContaining('store store-1: 0 blocks')]);

  // A later request of the tenant begins anew.
  await prefill('acme', 1);
  await until('its blocks are kept again', async () => (await blocksAt('store-1', 'disk')) === 2 * numBlocks);
  expect(KeyList.read(list, Buffer.from(KEY, 'hex')).size).toBe(2);
});

test('the empty name, another action, a second name and a router that is not there are refused', async () => {
  for (const [args, code, why] of [
    [['forget', ''], 2, /name the tenant/],
    [['forget'], 2, /name the tenant/],
    [['remember', 'acme'], 2, /has one action, forget/],
    [['forget', 'acme', 'other'], 2, /takes one name/],
  ] as const) {
    const ended = await forget(...args);
    expect([ended.code, ended.errors]).toEqual([code, expect.stringMatching(why)]);
  }
  const nowhere = await runToEnd(['tenant', 'forget', 'acme', '--router', '127.0.0.1:1']);
  expect([nowhere.code, nowhere.errors]).toEqual([1, expect.stringMatching(/did not answer/)]);
});

test('a store that does not answer is named, the exit status says so, and the command can be run again', async () => {
  // It is killed only after the command has ended: a store that is killed before would be back in time.
  cluster.kill('store-1', 'SIGSTOP');
  try {
    const { code, errors } = await forget('forget', 'other', '--json');
    expect(code).toBe(1);
    expect(errors).toMatch(/not deleted at store-1; run the command again|no store is in the cluster now/);
  } finally {
    cluster.kill('store-1', 'SIGKILL');
    await until('the store is back', async () => (await cluster.pool()).some(({ name }) => name === 'store-1'));
  }
  await until('it is forgotten', async () => (await forget('forget', 'other')).code === 0);
});
