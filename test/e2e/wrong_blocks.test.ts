/**
 * K2 on arrival: a member of the cluster serves blocks that are wrong in every way, to real engines and to a real store. Whatever it
 * serves costs a recompute, never an answer. Budget: 90 s.
 */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { Random } from '../../shared/base/random.ts';
import type { LoadedModel } from '../../shared/engine/load_model.ts';
import { chainOf, type BlockHash, type Digest } from '../../shared/kv/block_key.ts';
import type { OfferReply, OfferRequest } from '../../shared/protocol/messages.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { askOnce } from '../../shared/net/network.ts';
import { numericsId } from '../../shared/kv/record.ts';
import { Cluster, harbour, run, temporaryFolder } from '../support/cluster.ts';
import { joinFakeHolder, lies, type FakeHolder, type Lie } from '../support/fake_holder.ts';
import { longTest } from '../support/long.ts';
import { generate, greedy, loadReference } from '../support/reference_loop.ts';
import { offerOf } from '../support/borrowing.ts';
import { patientCall, until } from '../support/until.ts';

const token = 'incoming-test-token';
const random = new Random(77);
let cluster: Cluster;
let holder: FakeHolder;
let reference: LoadedModel;
let format: Digest;

beforeAll(async () => {
  reference = await loadReference(harbour, 'f16');
  cluster = await Cluster.up(
    ...['--prefill', '1', '--decode', '1', '--store', '1', '--cluster-token', token, '--local-prefill-tokens', '64'],
    // Blocks are fetched wherever somebody holds them, also where computing them takes less time.
    ...['--policy', 'longest_prefix'],
  );
  const pool = (await (await fetch(`${cluster.url}/api/pool`)).json()) as { model: { digest: Digest } };
  ({ digest: format } = pool.model);
  holder = await joinFakeHolder(cluster.hub, token, format);
});
afterAll(async () => {
  await holder.close();
  await cluster.close();
  await reference.executable.close();
});

const promptOf = (length: number): number[] => Array.from({ length }, () => 3 + random.below(1_500));

async function indexKeys(): Promise<number> {
  return ((await (await fetch(`${cluster.url}/api/pool`)).json()) as { index_keys: number }).index_keys;
}

/** Lies that make readers wait for a timeout; they have tests of their own. */
const patient = ['silence', 'always busy'] as const;

/** `numKeys`: that the index has when all is announced. */
async function expectComputed(holder: FakeHolder, lie: Lie, numKeys: number): Promise<void> {
  holder.lie(lie);
  const prompt = promptOf(200);
  holder.announce(chainOf(format, 32, prompt));
  await until('the router believes it', async () => (await indexKeys()) >= numKeys);
  const numBefore = holder.numFetches();
  const requestId = `lie-${lie.replaceAll(' ', '-')}`;
  const { choices } = await cluster.completion({ prompt, max_tokens: 8, request_id: requestId });
  const want = await generate(reference.executable, prompt, greedy, 8);
  assert.deepEqual(
    choices[0]?.token_ids,
    want.map((sampled) => sampled.token),
  );
  expect(holder.numFetches()).toBeGreaterThan(numBefore);
  // Another may have ended meanwhile.
  const view = (await cluster.requests(2)).find(({ client_id: id }) => id === requestId);
  expect(view?.tokens.computed).toBe(200);
  expect(view?.attempts).toHaveLength(1);
}

test.each(lies.filter((lie) => !patient.some((one) => one === lie)))(
  'a holder that serves %s: the engines compute, the answer is right',
  async (lie) => expectComputed(holder, lie, (await indexKeys()) + 6),
);

longTest('holders that serve silence, and are always busy: the engines compute, the answers are right', async () => {
  const busy = await joinFakeHolder(cluster.hub, token, format, 'busy');
  try {
    const numKeys = (await indexKeys()) + 12;
    await Promise.all([expectComputed(holder, 'silence', numKeys), expectComputed(busy, 'always busy', numKeys)]);
  } finally {
    await busy.close();
  }
});

test.each(lies.filter((lie) => !patient.some((one) => one === lie)))(
  'a holder that offers a store %s: nothing of it is stored',
  async (lie) => {
    holder.lie(lie);
    const { address } = await cluster.node('store-1');
    const reply = await offer(address, chainOf(format, 32, promptOf(64)));
    assert.deepEqual(reply, { stored: 0, held: 0, durable: 0 });
  },
);

/** Sends an offer to a store and returns its reply. */
async function asked(address: string, request: OfferRequest): Promise<OfferReply> {
  const network = new GrpcNetwork(token, systemClock);
  try {
    return await askOnce(network, address, 'offer', request, patientCall);
  } finally {
    network.close();
  }
}

/** To an offer of the holder; `more`: what it says of its blocks. */
async function offer(
  address: string,
  hashes: readonly BlockHash[],
  more: { recordBytes?: number; contentHashes?: bigint[]; numerics?: bigint } = {},
): Promise<OfferReply> {
  const { recordBytes, member } = holder;
  return asked(address, offerOf(format, hashes, { recordBytes, source: member.address, ...more }));
}

test('an offer answers what is durable: fetched now, held already, or brought by another offer under way', async () => {
  holder.lie('nothing but the truth');
  const { address } = await cluster.node('store-1');
  const hashes = chainOf(format, 32, promptOf(32 * 20));
  const [a, b] = await Promise.all([offer(address, hashes), offer(address, hashes)]);
  assert.deepEqual([a.stored + b.stored, a.held + b.held], [20, 20], 'one fetch for both');
  // Written after the answer: it says how much is committed, and an offer of what is held writes what is not.
  await until('all of it is committed', async () => (await offer(address, hashes)).durable === 20);
  assert.deepEqual(await offer(address, hashes), { stored: 0, held: 20, durable: 20 });
});

test('a store without a disk holds blocks and calls none durable; DRAM that is smaller than an offer loses none on the way to disk', async () => {
  holder.lie('nothing but the truth');
  const folder = temporaryFolder();
  const start = (name: string, ...args: string[]): ReturnType<typeof run> =>
    run(['store', '--name', name, '--join', cluster.hub, '--data-dir', folder.path, '--log-level', 'error', ...args], {
      PENSTOCK_CLUSTER_TOKEN: token,
    });
  const stores = [
    start('no-disk', '--disk-bytes', '0'),
    start('little-dram', '--dram-bytes', '600KiB'),
    start('through', '--dram-bytes', '600KiB', '--disk-writes', 'through'),
  ];
  const addressOf = (name: string): Promise<string> =>
    until(`${name} is there, and its disk is open`, async () => {
      const node = (await cluster.pool()).find((one) => one.name === name);
      return node?.tiers['disk']?.fault === null && node.address;
    });
  const hashes = chainOf(format, 32, promptOf(32 * 40));
  assert.deepEqual(await offer(await addressOf('no-disk'), hashes), { stored: 40, held: 0, durable: 0 });
  assert.deepEqual(await offer(await addressOf('through'), hashes), { stored: 40, held: 0, durable: 40 });
  const little = await addressOf('little-dram');
  const { stored, held } = await offer(little, hashes);
  assert.deepEqual({ stored, held }, { stored: 40, held: 0 });
  await until('all of it is on its disk', async () => {
    const node = (await cluster.pool()).find(({ name }) => name === 'little-dram');
    return node?.tiers['disk']?.blocks === 40;
  });
  for (const store of stores) store.kill('SIGKILL');
  folder.remove();
});

test('a block that is offered with other bytes than the store holds, by the same numerics, is an alarm; it costs nobody anything', async () => {
  holder.lie('nothing but the truth');
  const { address } = await cluster.node('store-1');
  const hashes = chainOf(format, 32, promptOf(32 * 5));
  await offer(address, hashes);
  const numerics = numericsId('fake');
  const truth = hashes.map(() => holder.contentHash);
  const divergent = async (): Promise<number> => {
    const line = /^penstock_divergent_blocks_total{engine="store-1".*} (\d+)$/m.exec(
      await (await fetch(`${cluster.url}/metrics`)).text(),
    );
    return Number(line?.[1]);
  };
  assert.equal(await divergent(), 0);
  await offer(address, hashes, { contentHashes: truth, numerics });
  await offer(address, hashes, { contentHashes: truth.map((content) => content + 1n), numerics: numerics + 1n });
  const others = truth.map((content, i) => (i === 3 ? content + 1n : content));
  await offer(address, hashes, { contentHashes: others, numerics });
  await until('the alarm is raised', async () => (await divergent()) === 1);
  await until('the log says so', () =>
    cluster.errors.join('\n').includes('offers KV that differs from the KV held here'),
  );
  // From its disk too, when it is not in DRAM any more.
  await until('it is on disk', async () => (await offer(address, hashes)).durable === 5);
  await assert.rejects(offer(address, hashes, { contentHashes: [] }), /says what each of them holds/);
});

test('a record size that would make slots without number is refused', async () => {
  const { address } = await cluster.node('store-1');
  await assert.rejects(offer(address, chainOf(format, 32, promptOf(64)), { recordBytes: 1 }), /at least 512 bytes/);
  const answer = await cluster.completion({ prompt: [1, 2, 3], max_tokens: 2 });
  assert.equal(answer.choices[0]?.token_ids.length, 2);
});
