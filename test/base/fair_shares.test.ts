/** Virtual counters of tenants by hand. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { FairShares } from '../../shared/base/fair_shares.ts';

/** Tenants that wait, each charged for a time. */
function serving(shares: FairShares, times: Record<string, number>): void {
  for (const name of Object.keys(times)) shares.wait(name);
  for (const [name, ms] of Object.entries(times)) shares.charge(name, ms);
}

/** A tenant asks, is served for a time, and ends. */
function serve(shares: FairShares, name: string, ms: number): void {
  shares.wait(name);
  shares.serve(name);
  shares.charge(name, ms);
  shares.end(name, false);
}

test('counters grow by the time served, divided by the weight; a weight that is none is 1', () => {
  const shares = new FairShares();
  const weights = { a: 4, b: 0, c: undefined, d: NaN };
  for (const [name, weight] of Object.entries(weights)) shares.wait(name, weight);
  for (const name of Object.keys(weights)) shares.charge(name, 100);
  assert.deepEqual(
    ['a', 'b', 'c', 'd'].map((name) => shares.virtualMs(name)),
    [25, 100, 100, 100],
  );
});

test('whoever comes is lifted to the least counter of those that wait', () => {
  const shares = new FairShares();
  serving(shares, { a: 5_000, b: 7_000 });
  shares.wait('c');
  assert.equal(shares.virtualMs('c'), 5_000);
  // One that is served and does not wait lifts nobody.
  shares.serve('a');
  shares.end('c', true);
  shares.wait('d');
  assert.equal(shares.virtualMs('d'), 7_000);
});

test('a tenant with requests in service keeps two seconds of what it had too little', () => {
  const shares = new FairShares();
  serving(shares, { slow: 10_000, soon: 98_500, flood: 100_000 });
  shares.serve('slow');
  shares.serve('soon');
  shares.wait('slow');
  shares.wait('soon');
  assert.deepEqual([shares.virtualMs('slow'), shares.virtualMs('soon')], [98_000, 98_500]);
});

test('what a tenant had above others is kept when it leaves, and forgotten when nobody is left', () => {
  const shares = new FairShares();
  shares.wait('b');
  serve(shares, 'a', 400);
  shares.charge('b', 100);
  shares.wait('a');
  assert.equal(shares.virtualMs('a'), 400);
  shares.end('a', true);
  shares.end('b', true);
  shares.wait('b');
  shares.wait('a');
  assert.equal(shares.virtualMs('a'), shares.virtualMs('b'));
});

test('tenants without requests are forgotten, those that had more than others up to 4,096', () => {
  const shares = new FairShares();
  shares.wait('waiting');
  for (let i = 0; i < 5_000; i++) serve(shares, `t${i}`, 1_000 + i);
  assert.equal(shares.numTenants, 1);
  assert.deepEqual([shares.virtualMs('t0'), shares.virtualMs('t4999')], [0, 5_999]);
  // Debts that others have caught up with go first.
  shares.charge('waiting', 5_500);
  serve(shares, 'late', 1);
  assert.deepEqual([shares.virtualMs('t4000'), shares.virtualMs('t4999')], [5_500, 5_999]);
});

test('a request that is put back waits again, and the end of one that nobody knows is an error', () => {
  const shares = new FairShares();
  shares.begin('a', 2);
  shares.putBack('a');
  assert.equal(shares.numWaiting('a'), 1);
  shares.end('a', true);
  assert.throws(() => {
    shares.end('a', true);
  }, /no requests/);
});
