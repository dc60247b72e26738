/** Calls and their ends, over real gRPC: more of them than a session survives as resets. Budget: 20 s. */
import assert from 'node:assert/strict';
import { afterEach, beforeEach, test } from 'vitest';
import type { Digest } from '../../shared/kv/block_key.ts';
import { systemClock } from '../../shared/base/clock.ts';
import { Failure } from '../../shared/base/failure.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { answering, answeringOnce, ask, askOnce, type Handler, type Listener } from '../../shared/net/network.ts';
import { noFrame, type FetchReply, type FetchRequest } from '../../shared/protocol/messages.ts';
import { mapConcurrently } from '../support/cluster.ts';
import { offerOf } from '../support/borrowing.ts';
import { PATIENCE_MS, patientCall, staysSo, turn, until } from '../support/until.ts';

/** Above Node's burst of 1,000 resets, which ends the session and every call on it. */
const MANY = 2_500;
const request: FetchRequest = {
  context: null,
  format: Buffer.alloc(16),
  hashes: Buffer.alloc(0),
  waitMs: 0,
  channel: 0,
  stream: 0,
  inFrames: false,
  frames: 0,
};
const slice = { index: 0, offset: 0, totalBytes: 1, data: Buffer.from([7]), numReady: 0, ...noFrame };
const never = new AbortController().signal;

let network: GrpcNetwork;
let listener: Listener;
let serve: Handler<'fetch'>;
let numOpen: number;

beforeEach(async () => {
  numOpen = 0;
  network = new GrpcNetwork('', systemClock);
  listener = await network.listen('127.0.0.1:0', {
    async *fetch(requests, call) {
      numOpen++;
      try {
        yield* serve(requests, call);
      } finally {
        numOpen--;
      }
    },
    offer: answeringOnce<'offer'>(({ recordBytes }) => ({ stored: recordBytes, held: 0, durable: 0 })),
  });
});
afterEach(async () => {
  network.close();
  await listener.close(100);
});

const fetching = (
  signal = never,
  timeoutMs = PATIENCE_MS,
  address = listener.address,
): AsyncIterableIterator<FetchReply> => ask(network, address, 'fetch', request, { signal, timeoutMs });
const isFailure =
  (code: string, message = /./) =>
  (error: unknown): boolean =>
    error instanceof Failure && error.code === code && message.test(error.message);

test('calls that are left while they run leave the session and its other calls alone, by their reader or by their signal', async () => {
  serve = answering<'fetch'>(async function* (_request, { signal }) {
    yield slice;
    // Goes on until it is told to stop.
    await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }));
  });
  const end = new AbortController();
  const witness = fetching(end.signal);
  const { value } = (await witness.next()) as IteratorYieldResult<FetchReply>;
  assert.equal(value.data[0], 7);
  await mapConcurrently(
    Array.from({ length: MANY }, (_, i) => i),
    64,
    async (i) => {
      const own = new AbortController();
      const read = async (): Promise<void> => {
        for await (const { data } of fetching(own.signal)) {
          assert.equal(data[0], 7);
          if (i % 2 === 0) break;
          own.abort(new Failure('deadline_exceeded', 'too slow'));
        }
      };
      // A reader whose own signal ended the call gets the signal's reason.
      if (i % 2 === 0) await read();
      else await assert.rejects(read(), isFailure('deadline_exceeded'));
    },
  );
  await until('only the witness is open (R2)', () => numOpen === 1);
  end.abort();
  await assert.rejects(witness.next(), isFailure('cancelled'));
  await until('none is open (R2)', () => numOpen === 0);
});

test('a failure of the server keeps its code, and comes after what was sent before: each once, in order (R1)', async () => {
  serve = answering<'fetch'>(async function* () {
    for (let index = 0; index < 12; index++) yield { ...slice, index };
    await turn();
    throw new Failure('overloaded', 'too much');
  });
  const got: number[] = [];
  await assert.rejects(
    async () => {
      for await (const { index } of fetching()) {
        got.push(index);
        // Slower than the failure, which finds the others waiting.
        await turn();
      }
    },
    isFailure('overloaded', /too much/),
  );
  assert.deepEqual(
    got,
    Array.from({ length: 12 }, (_, i) => i),
  );
});

test('a reader that is slow holds the sender back and loses nothing', async () => {
  const count = 200;
  // More in all than the transport's own windows hold.
  const data = Buffer.alloc(256 << 10);
  let numSent = 0;
  serve = answering<'fetch'>(async function* () {
    for (let index = 0; index < count; index++) {
      numSent++;
      yield { ...slice, index, data };
    }
  });
  const got: number[] = [];
  for await (const { index } of fetching()) {
    if (index === 0) await staysSo('not everything is sent to a reader that reads nothing', () => numSent < count);
    got.push(index);
  }
  assert.deepEqual(
    got,
    Array.from({ length: count }, (_, i) => i),
  );
});

test('a peer that is gone is a lost instance; a call nobody serves is another version', async () => {
  await assert.rejects(fetching(never, PATIENCE_MS, '127.0.0.1:1').next(), isFailure('instance_lost'));
  serve = answering<'fetch'>(() => {
    throw Object.assign(new Error('x'), { code: 12 });
  });
  await assert.rejects(fetching().next(), isFailure('internal'));
  const options = patientCall;
  await assert.rejects(ask(network, listener.address, 'snapshot', {}, options).next(), isFailure('cluster_mismatch'));
});

test('what does not fit a message is the request’s fault, not the peer’s loss', async () => {
  serve = answering<'fetch'>(async function* () {
    // Sends nothing.
  });
  const huge = { ...request, hashes: Buffer.alloc(17 << 20) };
  const options = patientCall;
  await assert.rejects(ask(network, listener.address, 'fetch', huge, options).next(), isFailure('invalid_request'));
});

test('a call that takes longer than it may fails by its deadline, and whoever serves it is told', async () => {
  let isTold = false;
  serve = answering<'fetch'>(async function* (_request, { signal }) {
    await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }));
    isTold = true;
  });
  // Connected before the time runs: the server is to be reached within it.
  await ask(
    network,
    listener.address,
    'offer',
    offerOf('00'.repeat(16) as Digest, [], { recordBytes: 1, source: 's' }),
    {
      ...patientCall,
    },
  ).next();
  await assert.rejects(fetching(never, 500).next(), isFailure('deadline_exceeded'));
  await until('the server knows', () => isTold && numOpen === 0);
});

test('a call with one reply; a wrong token', async () => {
  const offer = offerOf('00'.repeat(16) as Digest, [], { recordBytes: 77, source: 's' });
  const options = patientCall;
  assert.equal((await askOnce(network, listener.address, 'offer', offer, options)).stored, 77);
  const other = new GrpcNetwork('wrong', systemClock);
  await assert.rejects(askOnce(other, listener.address, 'offer', offer, options), isFailure('unauthenticated'));
  other.close();
});

test('pages are read no faster than their reader reads, and end when it leaves', async () => {
  let [numSent, isOver] = [0, false];
  const paging = await network.listen('127.0.0.1:0', {
    async *snapshot(_requests, { signal }) {
      try {
        while (!signal.aborted) {
          numSent++;
          yield { epoch: 'e', sequence: 0, tier: 0, keys: Buffer.alloc(1 << 20), parents: Buffer.alloc(0) };
        }
      } finally {
        isOver = true;
      }
    },
  });
  const pages = ask(network, paging.address, 'snapshot', {}, patientCall);
  for (let i = 0; i < 3; i++) await pages.next();
  await staysSo('little is sent to a reader that has read three MiB', () => numSent < 200);
  await pages.return?.();
  await until('the sender knows', () => isOver);
  await paging.close(100);
});

test('4,096 peers are kept, then the oldest is closed (P1)', () => {
  const addressOf = (i: number): string => `127.${Math.floor(i / 60_000) + 1}.0.1:${1 + (i % 60_000)}`;
  const [first, second] = [network.client(addressOf(0)), network.client(addressOf(1))];
  for (let i = 2; i < 4_096; i++) network.client(addressOf(i));
  assert.equal(network.client(addressOf(0)), first);
  network.client(addressOf(4_096));
  assert.equal(network.client(addressOf(1)), second);
  assert.notEqual(network.client(addressOf(0)), first, 'the oldest was let go of');
});

test('calls between processes go past a proxy that the environment names', async () => {
  const names = ['http_proxy', 'https_proxy', 'grpc_proxy', 'HTTP_PROXY', 'HTTPS_PROXY'];
  const before = names.map((name) => [name, process.env[name]] as const);
  for (const name of names) process.env[name] = 'http://127.0.0.1:9';
  const proxied = new GrpcNetwork('', systemClock);
  try {
    serve = answering<'fetch'>(async function* () {
      yield slice;
    });
    const replies = ask(proxied, listener.address, 'fetch', request, patientCall);
    assert.equal((await replies.next()).done, false);
  } finally {
    proxied.close();
    for (const [name, value] of before) {
      if (value === undefined) Reflect.deleteProperty(process.env, name);
      else process.env[name] = value;
    }
  }
});

test('a process is asked for by its epoch: another one at its address does not know it', async () => {
  const named = await network.listen('127.0.0.1:0', {}, 'e7');
  const check = (service: string): Promise<unknown> =>
    askOnce(network, named.address, 'check', { service }, patientCall);
  assert.deepEqual(await check('e7'), { status: 'NOT_SERVING' });
  named.setServing(true);
  assert.deepEqual(await check('e7'), { status: 'SERVING' });
  assert.deepEqual(await check(''), { status: 'SERVING' });
  await assert.rejects(check('e8'), isFailure('not_found'));
  await named.close(100);
});

test('the host by which another reaches this process is that of the interface that leads there', async () => {
  assert.equal(await network.hostTowards('127.0.0.1:8001'), '127.0.0.1');
  assert.equal(await network.hostTowards('nats://localhost:4222'), '127.0.0.1');
  await assert.rejects(network.hostTowards('no-such-host.invalid:1'), /--advertise/);
});
