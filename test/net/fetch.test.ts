/** Fetching from holders that are busy, and leaving them. Real gRPC, fake holders. Budget: 20 s. */
import assert from 'node:assert/strict';
import { afterEach, beforeEach, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { asFailure, Failure } from '../../shared/base/failure.ts';
import { Random } from '../../shared/base/random.ts';
import { chainOf, type BlockHash, type Digest } from '../../shared/kv/block_key.ts';
import { WantedKeys } from '../../shared/kv/wanted_keys.ts';
import type { BlockSource } from '../../shared/net/block_source.ts';
import { openFetch } from '../../shared/net/fetch/fetch.ts';
import { nothingMoved } from '../../shared/net/fetch/transfer.ts';
import { createFetchHandlers, type FetchServerCounters } from '../../shared/net/fetch/fetch_server.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import type { TransferThread } from '../../shared/net/transfer_thread/transfer_thread.ts';
import { ask, type Listener } from '../../shared/net/network.ts';
import { copySource } from '../support/borrowing.ts';
import { PATIENCE_MS, patientCall, turn, until } from '../support/until.ts';

const format = 'cd'.repeat(16) as Digest;
const hashes = chainOf(
  format,
  4,
  Array.from({ length: 40 }, (_, i) => i),
);
const BYTES = 1_024;
/** Finds nothing wrong. */
const transferThread = { call: () => Promise.resolve(undefined) } as unknown as TransferThread;
const MAX_STREAMS = 3;

let network: GrpcNetwork;
let listener: Listener;
let address: string;
let counters: FetchServerCounters;
let read: (hash: BlockHash, waitMs: number, signal: AbortSignal) => Promise<Buffer | undefined>;
const wanted = new WantedKeys();

beforeEach(async () => {
  network = new GrpcNetwork('', systemClock);
  const source: BlockSource = {
    wanted,
    ...copySource((hash, _requestId, waitMs, signal) => read(hash, waitMs, signal)),
    snapshot: () => ({ epoch: 'e', sequence: 0, tiers: [] }),
  };
  const handlers = createFetchHandlers(() => source, { maxStreams: MAX_STREAMS });
  ({ counters } = handlers);
  const { fetch, snapshot } = handlers;
  listener = await network.listen('127.0.0.1:0', { fetch, snapshot });
  ({ address } = listener);
});
afterEach(async () => {
  network.close();
  await listener.close(100);
});

async function fetchAll(signal = new AbortController().signal): Promise<number[]> {
  const stream = openFetch(
    { network, clock: systemClock, random: new Random(1), transferThread, channels: undefined, moved: nothingMoved() },
    address,
    {
      context: {
        requestId: 'r',
        tenant: '',
        priority: 0,
        timeoutMs: PATIENCE_MS,
        traceId: '',
        router: '',
        placement: 0,
        expectedTokens: 0,
      },
      format,
      hashes,
      signal,
      waitMs: 1_000,
      timeoutMs: PATIENCE_MS,
      patienceMs: undefined,
      slotBytes: BYTES,
    },
  );
  const got: number[] = [];
  const memory = new Uint8Array(BYTES);
  const slots = { acquire: () => Promise.resolve(0), bytes: () => memory, release: () => undefined };
  const records = stream.records(slots);
  for await (const incoming of records) {
    for (const { index } of incoming) {
      assert.equal(memory[0], index);
      got.push(index);
    }
  }
  return got;
}

const recordOf = (hash: BlockHash): Buffer =>
  Buffer.alloc(
    BYTES,
    hashes.findIndex(({ key }) => key === hash.key),
  );

test('more fetches than a holder takes at once: the others wait, and each gets every block (P1, busy is not broken)', async () => {
  let most = 0;
  read = async (hash) => {
    most = Math.max(most, counters.openStreams);
    await turn();
    return recordOf(hash);
  };
  const all = await Promise.all(Array.from({ length: 24 }, () => fetchAll()));
  for (const got of all) assert.equal(got.length, hashes.length);
  assert.equal(most, MAX_STREAMS);
  await until('no stream is open (R2)', () => counters.openStreams === 0);
  for (const { key } of hashes) assert(!wanted.has(key), 'nothing is pinned');
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
  for (const { key } of hashes) assert(!wanted.has(key));
});

test('snapshots that are read at once have a bound (P1), and one that fails gives its place back', async () => {
  let isFailing = true;
  const handlers = createFetchHandlers(
    () => {
      if (isFailing) throw new Error('not yet');
      return {
        wanted,
        ...copySource(() => Promise.resolve(undefined)),
        snapshot: () => ({ epoch: 'e', sequence: 3, tiers: [] }),
      };
    },
    { maxStreams: 1 },
  );
  const other = await network.listen('127.0.0.1:0', { snapshot: handlers.snapshot });
  const read = async (): Promise<string> => {
    const options = patientCall;
    try {
      for await (const page of ask(network, other.address, 'snapshot', {}, options)) return String(page.sequence);
      return 'nothing';
    } catch (error) {
      return asFailure(error).code;
    }
  };
  for (let i = 0; i < 40; i++) assert.equal(await read(), 'internal');
  isFailing = false;
  const answers = await Promise.all(Array.from({ length: 16 }, read));
  assert(
    answers.every((answer) => answer === '3'),
    answers.join(),
  );
  await other.close(100);
});

test('a connection that breaks under a fetch again and again is asked five times, not for ever (P1)', async () => {
  let numAsked = 0;
  const other = await network.listen('127.0.0.1:0', {
    async *fetch() {
      numAsked++;
      // Error text that the transport reports for a reset stream.
      throw new Failure('session_broken', 'Received RST_STREAM with code 2');
    },
  });
  ({ address } = other);
  await assert.rejects(fetchAll(), /RST_STREAM/);
  assert.equal(numAsked, 5);
  await other.close(100);
});
