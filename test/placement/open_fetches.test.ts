/** Bytes that placed requests are still to fetch, and the price of a fetch with them. Budget: 2 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { OpenFetches } from '../../shared/placement/open_fetches.ts';
import { FetchPrices } from '../../shared/placement/priced/fetch_price.ts';
import type { Source } from '../../shared/protocol/messages.ts';
import { cluster } from './snapshots.ts';

const source = (address: string, start: number, end: number, isComputing = false): Source => ({
  address,
  start,
  end,
  isComputing,
});

test('bytes count for the reader and for each holder until the fetch ends, and end once (R2)', () => {
  const fetches = new OpenFetches();
  const first = fetches.begin('d1/e', [source('s1:1', 0, 3), source('p1:1', 3, 5, true)], 10);
  const second = fetches.begin('d2/e', [source('s1:1', 0, 1)], 100);
  assert.deepEqual(fetches.bytes, { byReader: { 'd1/e': 50, 'd2/e': 100 }, byHolder: { 's1:1': 130, 'p1:1': 20 } });
  first();
  first();
  assert.deepEqual(fetches.bytes, { byReader: { 'd2/e': 100 }, byHolder: { 's1:1': 100 } });
  assert.equal(fetches.numOpen, 1);
  second();
  assert.deepEqual([fetches.bytes, fetches.numOpen], [{ byReader: {}, byHolder: {} }, 0]);
});

test('a fetch waits for what its holder and its reader owe, and takes another holder where that is sooner', () => {
  const otherLink = { bytesPerMs: 10, latencyMs: 1 };
  const reader = { id: 'd1/e', address: 'd1:1' };
  const msOf = (
    runs: Record<string, number>,
    byReader: Record<string, number>,
    byHolder: Record<string, number>,
  ): number =>
    new FetchPrices(cluster(runs, { otherLink, fetching: { byReader, byHolder } })).best(reader, 0, 100, (to, ms) =>
      to === 4 ? ms : Infinity,
    ).ms;
  // Four blocks of 100 bytes.
  assert.equal(msOf({ p1: 4 }, {}, {}), 41);
  assert.equal(msOf({ p1: 4 }, { 'd1/e': 200 }, {}), 61);
  assert.equal(msOf({ p1: 4 }, { 'd1/e': 200 }, { 'p1:1': 500 }), 91);
  assert.equal(msOf({ p1: 4, p2: 4 }, { 'd1/e': 200 }, { 'p1:1': 500 }), 61);
  assert.equal(msOf({ p1: 4 }, { 'd2/e': 900 }, { 'p2:1': 900 }), 41);
  // Blocks in its own host memory come over no link.
  assert.equal(msOf({ d1: 4 }, { 'd1/e': 200 }, {}), 0);
});
