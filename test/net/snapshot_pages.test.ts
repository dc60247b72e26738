/** Reads snapshots page by page: how long a holder may say nothing, and that a whole snapshot has no limit. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Failure } from '../../shared/base/failure.ts';
import { snapshotPages } from '../../shared/net/snapshot_pages.ts';
import { SimulatedClock } from '../sim/simulated_clock.ts';
import { playedNetwork } from '../support/played_network.ts';

const clock = new SimulatedClock();

/** Reads the snapshot of a holder that sends pages with these pauses, in milliseconds, between them. */
async function read(pausesMs: readonly number[]): Promise<{ numPages: number; error: unknown; isCancelled: boolean }> {
  let isCancelled = false;
  const network = playedNetwork({
    snapshot: async function* (_requests, { signal }) {
      signal.addEventListener('abort', () => (isCancelled = true));
      for (const pauseMs of pausesMs) {
        await clock.sleep(pauseMs, signal);
        if (signal.aborted) throw new Failure('cancelled', 'nobody listens');
        yield { epoch: 'e', sequence: 1, tier: 0, keys: Buffer.alloc(0), parents: Buffer.alloc(0) };
      }
    },
  });
  let numPages = 0;
  let error: unknown;
  const reading = (async () => {
    for await (const { epoch } of snapshotPages({ network, clock }, 'store:1', new AbortController().signal))
      numPages += epoch === 'e' ? 1 : 0;
  })().catch((thrown: unknown) => (error = thrown));
  await clock.run(clock.nowMs() + 1_000_000);
  await reading;
  return { numPages, error, isCancelled };
}

test('a snapshot takes as long as it takes', async () => {
  const { numPages, error } = await read(Array.from({ length: 20 }, () => 25_000));
  assert.deepEqual([numPages, error], [20, undefined]);
});

test('a holder that sends no page for half a minute is given up, and its call ends', async () => {
  const { numPages, error, isCancelled } = await read([10, 25_000, 31_000, 10]);
  assert.equal(numPages, 2);
  assert(error instanceof Failure && error.code === 'deadline_exceeded', String(error));
  assert.match(error.message, /store:1 sent no page of its snapshot for 30000 ms/);
  assert(isCancelled);
});
