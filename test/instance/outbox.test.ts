/** Reads of blocks that are not there, and what the outbox remembers of ended prefills. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { silentLog } from '../../shared/base/log.ts';
import { Outbox } from '../../shared/instance/outbox.ts';
import { chainOf, type Digest } from '../../shared/kv/block_key.ts';
import type { TransferThread } from '../../shared/net/transfer_thread/transfer_thread.ts';
import { Slab } from '../../shared/kv/slab.ts';
import { Announcer } from '../../shared/node/announcer.ts';
import { SimulatedClock } from '../sim/simulated_clock.ts';
import { evenSpec } from '../support/kv.ts';

const never = new AbortController().signal;
const [hash] = chainOf('ab'.repeat(16) as Digest, 4, [1, 2, 3, 4]);
assert(hash);

const WAIT_MS = 5_000;

function open(): { clock: SimulatedClock; outbox: Outbox; read: (requestId: string) => Promise<number> } {
  const clock = new SimulatedClock();
  const announcer = new Announcer('holder', () => undefined, clock, never);
  const outbox = new Outbox({
    layout: {
      format: 'ab'.repeat(16) as Digest,
      numericsClass: 'none',
      spec: evenSpec({ numLayers: 1, blockSize: 4, payloadBytes: 256 }),
    },
    slab: new Slab(512 * 8),
    numSlots: 8,
    transferThread: {} as unknown as TransferThread,
    announcer,
    clock,
    log: silentLog,
    sendToEngine: () => undefined,
    onReady: () => undefined,
    onSlotFree: () => undefined,
  });
  /** How long a read of a block that never comes takes. */
  const read = async (requestId: string): Promise<number> => {
    const startMs = clock.nowMs();
    let endMs = -1;
    const reading = outbox.borrow(hash!, requestId, WAIT_MS, never).then((record) => {
      assert.equal(record, undefined);
      endMs = clock.nowMs();
    });
    await clock.run(startMs + WAIT_MS);
    await reading;
    return endMs - startMs;
  };
  return { clock, outbox, read };
}

test('who reads a block of a prefill that has ended does not wait for it; of one that may still begin, it does', async () => {
  const { clock, outbox, read } = open();
  assert.equal(await read('r'), WAIT_MS, 'nobody has heard of it');
  outbox.begin('r');
  outbox.begin('r');
  outbox.end('r');
  assert.equal(await read('r'), WAIT_MS, 'a retry of it runs');
  outbox.postpone('r');
  assert.equal(await read('r'), WAIT_MS, 'refused for now: it comes again');
  outbox.begin('r');
  const reading = outbox.borrow(hash, 'r', WAIT_MS, never);
  await clock.run(clock.nowMs() + 10);
  const endMs = clock.nowMs();
  outbox.end('r');
  await reading;
  assert.equal(clock.nowMs(), endMs, 'its end wakes who waits');
  assert.equal(await read('r'), 0);
});

test('4,096 ended prefills are remembered; of one before them a late read waits as for any other (P1)', async () => {
  const { outbox, read } = open();
  for (let i = 0; i < 4_097; i++) {
    outbox.begin(`r${i}`);
    outbox.end(`r${i}`);
  }
  assert.equal(await read('r1'), 0);
  assert.equal(await read('r4096'), 0);
  assert.equal(await read('r0'), WAIT_MS);
});
