/** Clients by address, and their bound. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { Peers } from '../../shared/protocol/rpc.ts';

test('4,096 peers are kept, then the oldest is closed (P1)', () => {
  const peers = new Peers('', systemClock);
  const addressOf = (i: number): string => `127.${Math.floor(i / 60_000) + 1}.0.1:${1 + (i % 60_000)}`;
  const [first, second] = [peers.client(addressOf(0)), peers.client(addressOf(1))];
  for (let i = 2; i < 4_096; i++) peers.client(addressOf(i));
  assert.equal(peers.client(addressOf(0)), first);
  peers.client(addressOf(4_096));
  assert.equal(peers.client(addressOf(1)), second);
  assert.notEqual(peers.client(addressOf(0)), first, 'the oldest was let go of');
  peers.close();
});
