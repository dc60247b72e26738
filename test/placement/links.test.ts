/** Speeds of links, learnt from reports. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Links, linkSpeed, UNKNOWN_LINK, type LinkSpeed } from '../../shared/placement/links.ts';
import type { LinkReport } from '../../shared/protocol/messages.ts';

const MIB = 1 << 20;

const report = (address: string, bytes: number, movingMs: number, latencyMs = 2): LinkReport => ({
  address,
  bytes,
  movingMs,
  latencyMs,
  way: 'socket',
});

test('a link is learnt for its pair of holder and reader, and an unknown pair is taken for the mean of its reader, then of all', () => {
  const links = new Links();
  assert.deepEqual(links.mean, UNKNOWN_LINK);
  links.learn('r1', [report('a:1', 10 * MIB, 10), report('b:1', 10 * MIB, 30)]);
  links.learn('r2', [report('a:1', 10 * MIB, 60, 8)]);
  const speeds = (from: string, to: string): LinkSpeed =>
    linkSpeed(from, to, { links: links.recent, otherLink: links.mean });
  assert.deepEqual(
    [speeds('a:1', 'r1'), speeds('b:1', 'r1'), speeds('a:1', 'r2')].map(({ bytesPerMs }) => bytesPerMs / MIB),
    [1, 1 / 3, 1 / 6],
  );
  // 20 MiB in 40 ms.
  assert.equal(speeds('c:1', 'r1').bytesPerMs, MIB / 2);
  assert.equal(speeds('b:1', 'r2').bytesPerMs, MIB / 6);
  // 30 MiB in 100 ms.
  assert.deepEqual(speeds('a:1', 'r3'), { bytesPerMs: 0.3 * MIB, latencyMs: 4 });
});

test('large transfers weigh most; small ones and those without a measured latency change only what they say', () => {
  const links = new Links();
  const speed = (): number => (links.recent[0]?.bytesPerMs ?? NaN) / MIB;
  links.learn('r', [report('a:1', 1_000, 500)]);
  assert.equal(links.recent.length, 0, 'only the latency is known');
  links.learn('r', [report('a:1', 64 * MIB, 64)]);
  links.learn('r', [report('a:1', MIB, 100)]);
  assert(speed() > 0.3 && speed() < 0.5, 'a transfer of one MiB weighs as much as its bytes');
  for (let i = 0; i < 8; i++) links.learn('r', [report('a:1', 64 * MIB, 32, -1)]);
  assert(speed() > 1.5 && speed() < 2, 'a link that became faster is believed after some transfers');
  assert.equal(links.mean.latencyMs, 2);
});

test('links leave with their holder and with their reader, and the longest unmeasured are forgotten beyond the bound (P1)', () => {
  const links = new Links();
  for (const [to, from] of [
    ['r1', 'a:1'],
    ['r1', 'b:1'],
    ['r2', 'a:1'],
    ['r2', 'b:1'],
  ] as const)
    links.learn(to, [report(from, MIB, 1)]);
  links.forget('r1', 'r1:1');
  links.forget('b/e', 'b:1');
  assert.deepEqual(
    links.recent.map(({ from, to }) => `${from} ${to}`),
    ['a:1 r2'],
  );
  links.forget('r2', 'r2:1');
  assert.deepEqual([links.size, links.mean], [0, UNKNOWN_LINK]);
  for (let i = 0; i < (1 << 15) + 5; i++) links.learn(`r${i}`, [report('a:1', MIB, 1)]);
  assert.equal(links.size, 1 << 15);
  assert.equal(links.recent.length, 4_096);
  assert.deepEqual([links.recent.at(0)?.to, links.recent.at(-1)?.to], [`r${(1 << 15) + 4}`, `r${(1 << 15) - 4_091}`]);
  // With so many, some measurements are needed before the list is made anew; who has left is in none.
  const before = links.recent;
  links.learn('r0', [report('a:1', MIB, 1)]);
  assert.equal(links.recent, before);
  links.forget('r9000', 'r9000:1');
  assert.equal(links.recent[0]?.to, 'r0');
  links.forget('a/e', 'a:1');
  assert.deepEqual(links.recent, []);
});
