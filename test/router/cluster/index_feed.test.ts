/** The index feed against a real Blocks service: a late joiner, a gap, events during a snapshot. Budget: 10 s. */
import assert from 'node:assert/strict';
import { afterEach, beforeEach, test } from 'vitest';
import { systemClock } from '../../../shared/base/clock.ts';
import { silentLog } from '../../../shared/base/log.ts';
import { EmbeddedHub } from '../../../shared/bus/embedded_hub.ts';
import { chainOf, type BlockKey, type Digest } from '../../../shared/kv/block_key.ts';
import { Announcer } from '../../../shared/node/announcer.ts';
import type { BlockSource } from '../../../shared/net/block_source.ts';
import { createFetchHandlers } from '../../../shared/net/fetch/fetch_server.ts';
import { GrpcNetwork } from '../../../shared/net/grpc/grpc_network.ts';
import type { Listener, Network } from '../../../shared/net/network.ts';
import { encodeBlockBatch } from '../../../shared/protocol/block_events.ts';
import { keyWords } from '../../../shared/protocol/packing.ts';
import { subjects } from '../../../shared/protocol/membership.ts';
import { Instance } from '../../../shared/placement/instance.ts';
import { IndexFeed } from '../../../services/router/cluster/index_feed.ts';
import { PrefixIndex } from '../../../shared/placement/prefix_index/prefix_index.ts';
import { staysSo, until } from '../../support/until.ts';
import { heldRuns } from '../../placement/held_runs.ts';

const hashes = chainOf(
  '0'.repeat(32) as Digest,
  4,
  Array.from({ length: 4 * 100 }, (_, i) => i),
);

const words = keyWords(hashes.map(({ key }) => key));

let listener: Listener;
let announcer: Announcer;
let isBusUp: boolean;
let feed: IndexFeed;
const stopped = new AbortController();
const index = new PrefixIndex();
const hub = new EmbeddedHub(silentLog);
const network = new GrpcNetwork('', systemClock);
let instance: Instance;

beforeEach(async () => {
  isBusUp = true;
  announcer = new Announcer(
    's1/e',
    (batch) => isBusUp && hub.publish(subjects.blocks, batch),
    systemClock,
    stopped.signal,
  );
  const source = { snapshot: () => announcer.snapshot() } as unknown as BlockSource;
  const { snapshot } = createFetchHandlers(() => source, { maxStreams: 64 });
  listener = await network.listen('127.0.0.1:0', { snapshot });
  instance = new Instance(
    { member: { name: 's1', role: 'store', address: listener.address, pid: 1, epoch: 'e' }, protocolVersion: 1 },
    0,
  );
  feed = new IndexFeed(index, hub, network, systemClock, silentLog);
});
afterEach(async () => {
  await listener.close(100);
});

test('a late joiner gets a snapshot, then events; a gap is repaired by another snapshot', async () => {
  const run = (): number => heldRuns(index, words).get('s1/e') ?? 0;
  for (const hash of hashes.slice(0, 20)) announcer.stored('dram', hash);
  announcer.flush();
  feed.add(instance);
  await until('the snapshot is in', () => run() === 20);
  for (const hash of hashes.slice(20, 30)) announcer.stored('disk', hash);
  announcer.flush();
  await until('the events are in', () => run() === 30);
  assert.equal(feed.numSnapshots, 1);

  isBusUp = false;
  for (const hash of hashes.slice(30, 60)) announcer.stored('disk', hash);
  announcer.removed('dram', hashes[5]!.key);
  announcer.flush();
  isBusUp = true;
  for (const hash of hashes.slice(60, 70)) announcer.stored('disk', hash);
  announcer.flush();
  await until('the gap is repaired, the removal too', () => run() === 5);
  announcer.stored('disk', hashes[5]!);
  announcer.flush();
  await until('the hole is filled', () => run() === 70);
  assert.equal(feed.numSnapshots, 2);
  feed.remove(instance);
  assert.equal(run(), 0);
  assert.equal(index.size, 0, 'a small index is swept at once');
});

test('the last batches are lost and nothing follows: the holder says how many there were', async () => {
  const run = (): number => heldRuns(index, words).get('s1/e') ?? 0;
  feed.add(instance);
  for (const hash of hashes.slice(0, 20)) announcer.stored('dram', hash);
  announcer.flush();
  await until('it is in step', () => run() === 20);
  isBusUp = false;
  for (const hash of hashes.slice(20, 40)) announcer.stored('dram', hash);
  announcer.flush();
  isBusUp = true;
  await staysSo('nobody knows of them', () => run() === 20);
  const { numSnapshots } = feed;
  feed.heard(instance, announcer.sequence - 1);
  await staysSo('so many it had', () => feed.numSnapshots === numSnapshots);
  feed.heard(instance, announcer.sequence);
  await until('the snapshot is in', () => run() === 40);
  assert.equal(feed.numSnapshots, numSnapshots + 1);
  feed.heard(instance, announcer.sequence);
  await staysSo('it is in step', () => feed.numSnapshots === numSnapshots + 1);
  feed.remove(instance);
});

test('10,000 batches are kept while a snapshot is on its way; what is lost beyond is seen as a gap and repaired (P1)', async () => {
  const other = new PrefixIndex();
  let numAsked = 0;
  const answers: (() => void)[] = [];
  const numbers = [0, 10_002];
  const played = {
    async *open() {
      const sequence = numbers[numAsked++] ?? 0;
      await new Promise<void>((resolve) => answers.push(resolve));
      yield { epoch: 's1/e', sequence, tier: 1, keys: Buffer.alloc(0), parents: Buffer.alloc(0) };
    },
  } as unknown as Network;
  const ownHub = new EmbeddedHub(silentLog);
  const own = new IndexFeed(other, ownHub, played, systemClock, silentLog);
  own.add(instance);
  await until('the snapshot is asked for', () => numAsked === 1);
  const publish = (sequence: number): void => {
    const run = { operation: 'stored' as const, tier: 'dram' as const, keys: keyWords([BigInt(sequence) as BlockKey]) };
    ownHub.publish(subjects.blocks, encodeBlockBatch({ holder: 's1/e', sequence, runs: [run] }));
  };
  for (let sequence = 1; sequence <= 10_001; sequence++) publish(sequence);
  answers[0]?.();
  await until('what was kept is applied', () => other.size === 10_000);
  publish(10_002);
  await until('the gap is seen', () => numAsked === 2);
  answers[1]?.();
  await until('it is repaired', () => own.numSnapshots === 2);
});
