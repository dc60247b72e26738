/** Where blocks have their home: rendezvous hashing. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { homeStore } from '../../shared/instance/offers.ts';
import type { Member } from '../../shared/protocol/membership.ts';

const stores = ['a', 'b', 'c', 'd'].map((name): Member => ({
  name,
  role: 'store',
  address: `${name}:1`,
  pid: 1,
  epoch: 'e',
}));
const random = new Random(1);
const anchors = Array.from({ length: 4_000 }, () => (BigInt(random.u32()) << 32n) + BigInt(random.u32()));

test('anchors spread evenly, and when a store leaves only its own move', () => {
  const before = anchors.map((anchor) => homeStore(anchor, stores)?.name);
  for (const { name } of stores) {
    const share = before.filter((home) => home === name).length / anchors.length;
    assert(Math.abs(share - 0.25) < 0.04, `${name} has ${share}`);
  }
  const after = anchors.map((anchor) => homeStore(anchor, stores.slice(1))?.name);
  before.forEach((home, i) => {
    if (home !== 'a') assert.equal(after[i], home);
  });
  assert.equal(homeStore(1n, []), undefined);
});

test('a store keeps its blocks when it comes back under its name, whatever its address', () => {
  const moved = stores.map((store) => ({ ...store, address: 'elsewhere:2', epoch: 'f' }));
  for (const anchor of anchors.slice(0, 100))
    assert.equal(homeStore(anchor, stores)?.name, homeStore(anchor, moved)?.name);
});
