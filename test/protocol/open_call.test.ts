/** Calls and their ends, over real gRPC: more of them than a session survives as resets. Budget: 20 s. */
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { Failure } from '../../shared/base/failure.ts';
import { fetchBlocks, type FetchCall } from '../../shared/protocol/calls.ts';
import type { FetchReply, FetchRequest } from '../../shared/protocol/messages.ts';
import { endWith, serveStarted } from '../../shared/protocol/open_call.ts';
import { createServer, listen, Peers, services, shutDown } from '../../shared/protocol/rpc.ts';
import { mapConcurrently, until } from '../support/cluster.ts';

/** Above Node's burst of 1,000 resets, which ends the session and every call on it. */
const MANY = 2_500;
const request: FetchRequest = { context: null, namespace: Buffer.alloc(16), links: Buffer.alloc(0), waitMs: 0 };
const slice = { index: 0, offset: 0, totalBytes: 1, data: Buffer.from([7]) };

let server: ReturnType<typeof createServer>;
let peers: Peers;
let address: string;
let serve: (call: FetchCall) => void;
let numOpen: number;

beforeEach(async () => {
  numOpen = 0;
  server = createServer('');
  server.addService(services.blocks, {
    fetch: (call: FetchCall) => {
      numOpen++;
      call.once('close', () => numOpen--);
      serve(call);
    },
    snapshot: () => undefined,
    offer: () => undefined,
  });
  address = `127.0.0.1:${await listen(server, '127.0.0.1:0')}`;
  peers = new Peers('', systemClock);
});
afterEach(async () => {
  peers.close();
  await shutDown(server, systemClock, 100);
});

test('calls that are finished, and calls that are left while they run, leave the session and its other calls alone', async () => {
  serve = (call) => {
    serveStarted(call, systemClock, async (_start: FetchRequest, signal) => {
      call.write(slice);
      // Goes on until it is told to stop.
      await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }));
    });
  };
  const witness = fetchBlocks(peers, address, request, 60_000);
  const witnessed = witness.replies();
  const { value } = (await witnessed.next()) as IteratorYieldResult<FetchReply>;
  assert.equal(value.data[0], 7);
  await mapConcurrently(Array.from({ length: MANY }), 64, async () => {
    const call = fetchBlocks(peers, address, request, 10_000);
    for await (const { data } of call.replies()) {
      assert.equal(data[0], 7);
      call.leave();
      break;
    }
  });
  await until('only the witness is open (R2)', () => numOpen === 1);
  witness.leave();
  await assert.rejects(witnessed.next(), (error: unknown) => error instanceof Failure && error.code === 'cancelled');
  await until('none is open (R2)', () => numOpen === 0);
});

test('a failure of the server keeps its code, and comes after what was sent before: each once, in order (R1)', async () => {
  serve = (call) => {
    serveStarted(call, systemClock, async () => {
      for (let index = 0; index < 12; index++) call.write({ ...slice, index });
      await sleep(20);
      throw new Failure('overloaded', 'too much');
    });
  };
  const call = fetchBlocks(peers, address, request, 5_000);
  const got: number[] = [];
  await assert.rejects(
    async () => {
      for await (const { index } of call.replies()) {
        got.push(index);
        // Slower than the failure, which finds the others waiting.
        await sleep(10);
      }
    },
    (error: unknown) => error instanceof Failure && error.code === 'overloaded' && /too much/.test(error.message),
  );
  assert.deepEqual(
    got,
    Array.from({ length: 12 }, (_, i) => i),
  );
});

test('a reader that is slow holds the sender back and loses nothing', async () => {
  const count = 200;
  serve = (call) => {
    serveStarted(call, systemClock, async () => {
      for (let index = 0; index < count; index++) {
        await new Promise((resolve) => call.write({ ...slice, index }, resolve));
      }
    });
  };
  const got: number[] = [];
  for await (const { index } of fetchBlocks(peers, address, request, 10_000).replies()) {
    if (index % 50 === 0) await sleep(20);
    got.push(index);
  }
  assert.deepEqual(
    got,
    Array.from({ length: count }, (_, i) => i),
  );
});

test('a peer that is gone is a lost instance; a call nobody serves is another version', async () => {
  const gone = fetchBlocks(peers, '127.0.0.1:1', request, 5_000).replies();
  await assert.rejects(gone.next(), (error: unknown) => error instanceof Failure && error.code === 'instance_lost');
  serve = (call) => {
    endWith(call, Object.assign(new Error('x'), { code: 12 }));
  };
  const broken = fetchBlocks(peers, address, request, 5_000).replies();
  await assert.rejects(broken.next(), (error: unknown) => error instanceof Failure && error.code === 'internal');
});

test('what does not fit a message is the request’s fault, not the peer’s loss', async () => {
  serve = (call) => {
    serveStarted(call, systemClock, () => Promise.resolve());
  };
  const huge = { ...request, links: Buffer.alloc(17 << 20) };
  await assert.rejects(
    fetchBlocks(peers, address, huge, 5_000).replies().next(),
    (error: unknown) => error instanceof Failure && error.code === 'invalid_request',
  );
});
