/** Fetching from holders that are busy, and leaving them. Real gRPC, fake holders. Budget: 20 s. */
import assert from 'node:assert/strict';
import { afterEach, beforeEach, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { chainOf, type ChainLink, type Digest } from '../../shared/kv/block_key.ts';
import { WantedKeys } from '../../shared/kv/wanted_keys.ts';
import type { BlockSource } from '../../shared/net/block_source.ts';
import { openFetch } from '../../shared/net/fetch_client.ts';
import { createFetchHandlers, type FetchServerCounters } from '../../shared/net/fetch_server.ts';
import { snapshotBlocks, type FetchCall } from '../../shared/protocol/calls.ts';
import type { SnapshotPage } from '../../shared/protocol/messages.ts';
import { createServer, listen, Peers, services, shutDown, toFailure } from '../../shared/protocol/rpc.ts';
import { until } from '../support/cluster.ts';

const namespace = 'cd'.repeat(16) as Digest;
const links = chainOf(
  namespace,
  4,
  Array.from({ length: 40 }, (_, i) => i),
);
const BYTES = 1_024;
const MAX_STREAMS = 3;

let server: ReturnType<typeof createServer>;
let peers: Peers;
let address: string;
let counters: FetchServerCounters;
let read: (link: ChainLink, waitMs: number, signal: AbortSignal) => Promise<Buffer | undefined>;
const wanted = new WantedKeys();

beforeEach(async () => {
  server = createServer('');
  const source: BlockSource = {
    wanted,
    read: (link, _requestId, waitMs, signal) => read(link, waitMs, signal),
    snapshot: () => ({ epoch: 'e', sequence: 0, tiers: [] }),
  };
  const handlers = createFetchHandlers(() => source, { maxStreams: MAX_STREAMS, clock: systemClock });
  ({ counters } = handlers);
  server.addService(services.blocks, { fetch: handlers.fetch, snapshot: handlers.snapshot, offer: () => undefined });
  address = `127.0.0.1:${await listen(server, '127.0.0.1:0')}`;
  peers = new Peers('', systemClock);
});
afterEach(async () => {
  peers.close();
  await shutDown(server, systemClock, 100);
});

async function fetchAll(signal = new AbortController().signal): Promise<number[]> {
  const stream = openFetch(peers, address, {
    ...{
      context: { requestId: 'r', tenant: '', priority: 0, timeoutMs: 10_000, traceId: '' },
      namespace,
      links,
      signal,
    },
    ...{ waitMs: 1_000, timeoutMs: 10_000, patienceMs: undefined, recordBytes: BYTES },
  });
  const got: number[] = [];
  const slot = { slot: 0, bytes: new Uint8Array(BYTES) };
  const records = stream.records(
    () => Promise.resolve(slot),
    () => undefined,
  );
  for await (const { index } of records) {
    assert.equal(slot.bytes[0], index);
    got.push(index);
  }
  return got;
}

const recordOf = (link: ChainLink): Buffer =>
  Buffer.alloc(
    BYTES,
    links.findIndex(({ key }) => key === link.key),
  );

test('more fetches than a holder takes at once: the others wait, and each gets every block (P1, busy is not broken)', async () => {
  let most = 0;
  read = async (link) => {
    most = Math.max(most, counters.openStreams);
    await systemClock.sleep(1);
    return recordOf(link);
  };
  const all = await Promise.all(Array.from({ length: 24 }, () => fetchAll()));
  for (const got of all) assert.equal(got.length, links.length);
  assert.equal(most, MAX_STREAMS);
  await until('no stream is open (R2)', () => counters.openStreams === 0);
  for (const { key } of links) assert(!wanted.has(key), 'nothing is pinned');
});

test('a fetch that waits for a block ends when its reader leaves, and lets go of what it wanted (R2)', async () => {
  read = (_link, _waitMs, signal) =>
    new Promise((resolve) => {
      signal.addEventListener('abort', () => {
        resolve(undefined);
      });
    });
  const reader = new AbortController();
  const fetching = fetchAll(reader.signal);
  await until('it waits', () => counters.openStreams === 1);
  reader.abort();
  await fetching.catch(() => undefined);
  await until('no stream is open', () => counters.openStreams === 0);
  for (const { key } of links) assert(!wanted.has(key));
});

test('snapshots that are read at once have a bound (P1), and one that fails gives its place back', async () => {
  let isFailing = true;
  const handlers = createFetchHandlers(
    () => {
      if (isFailing) throw new Error('not yet');
      return {
        wanted,
        read: () => Promise.resolve(undefined),
        snapshot: () => ({ epoch: 'e', sequence: 3, tiers: [] }),
      };
    },
    { maxStreams: 1, clock: systemClock },
  );
  const other = createServer('');
  other.addService(services.blocks, { fetch: handlers.fetch, snapshot: handlers.snapshot, offer: () => undefined });
  const port = await listen(other, '127.0.0.1:0');
  const ask = async (): Promise<string> => {
    const call = snapshotBlocks(peers, `127.0.0.1:${port}`, 5_000);
    try {
      for await (const page of call as AsyncIterable<SnapshotPage>) return String(page.sequence);
      return 'nothing';
    } catch (error) {
      return toFailure(error, 'holder').code;
    }
  };
  for (let i = 0; i < 40; i++) assert.equal(await ask(), 'internal');
  isFailing = false;
  const answers = await Promise.all(Array.from({ length: 16 }, ask));
  assert(
    answers.every((answer) => answer === '3'),
    answers.join(),
  );
  await shutDown(other, systemClock, 100);
});

test('a connection that breaks under a fetch again and again is asked five times, not for ever (P1)', async () => {
  let numAsked = 0;
  const other = createServer('');
  other.addService(services.blocks, {
    fetch: (call: FetchCall) => {
      numAsked++;
      // What the transport says of a stream that was reset.
      call.emit('error', { code: 13, details: 'Received RST_STREAM with code 2' });
    },
    snapshot: () => undefined,
    offer: () => undefined,
  });
  address = `127.0.0.1:${await listen(other, '127.0.0.1:0')}`;
  await assert.rejects(fetchAll(), /RST_STREAM/);
  assert.equal(numAsked, 5);
  await shutDown(other, systemClock, 100);
});
