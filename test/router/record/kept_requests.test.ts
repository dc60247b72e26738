/** Which finished requests are kept: by number, by bytes, and the notable ones for an hour. Budget: 2 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { KeptRequests } from '../../../services/router/record/kept_requests.ts';

interface One {
  readonly id: string;
  readonly phase: string;
  readonly ttftMs: number | undefined;
  readonly totalMs: number;
  readonly endMs: number;
  numBytes: number;
}

const HOUR_MS = 3_600_000;

function one(id: string, more: Partial<One> = {}): One {
  return { id, phase: 'finished', ttftMs: undefined, totalMs: 1, endMs: 0, numBytes: 10, ...more };
}

const idsOf = (kept: KeptRequests<One>): string[] => kept.list(0).map(({ id }) => id);

test('of small requests the last ones by number are kept, of large ones those that the bytes have room for', () => {
  const [small, large] = [new KeptRequests<One>(30, 1_000), new KeptRequests<One>(30, 1_000)];
  for (let i = 0; i < 100; i++) small.add(one(`s${i}`, { totalMs: i }));
  assert.equal(idsOf(small).length, 30, 'the slowest are among the last');
  assert.deepEqual([idsOf(small)[0], idsOf(small).at(-1), small.numBytes], ['s99', 's70', 300]);
  for (let i = 0; i < 100; i++) large.add(one(`l${i}`, { totalMs: i, numBytes: 90 }));
  assert.deepEqual([idsOf(large)[0], idsOf(large).at(-1), large.numBytes], ['l99', 'l89', 990]);
});

test('notable requests count, and go before the last ones when the bytes have no room', () => {
  const kept = new KeptRequests<One>(2, 50);
  for (let i = 0; i < 6; i++) kept.add(one(`f${i}`, { phase: 'failed' }));
  assert.deepEqual([idsOf(kept), kept.numBytes], [['f5', 'f4', 'f3', 'f2', 'f1'], 50]);
  kept.add(one('large', { numBytes: 45 }));
  assert.deepEqual([idsOf(kept), kept.numBytes], [['large'], 45]);
  kept.add(one('too large', { numBytes: 51 }));
  assert.deepEqual([idsOf(kept), kept.numBytes], [[], 0]);
});

test('a request whose record grows after its end pushes out others', () => {
  const kept = new KeptRequests<One>(9, 50);
  for (let i = 0; i < 5; i++) kept.add(one(`r${i}`));
  const grow = (request: One): void => {
    request.numBytes = 25;
  };
  kept.change(({ id }) => id === 'r3', grow, 0);
  assert.deepEqual([idsOf(kept), kept.numBytes], [['r4', 'r3', 'r2'], 45]);
  kept.change(({ id }) => id === 'gone', grow, 0);
  assert.equal(kept.numBytes, 45);
});

test('the bytes of requests that are forgotten after an hour are free', () => {
  const kept = new KeptRequests<One>(1, 1_000);
  for (let i = 0; i < 9; i++) kept.add(one(`f${i}`, { phase: 'failed' }));
  assert.equal(kept.numBytes, 90);
  kept.add(one('late', { endMs: HOUR_MS + 1 }));
  assert.deepEqual([kept.list(HOUR_MS + 1).map(({ id }) => id), kept.numBytes], [['late'], 10]);
});
