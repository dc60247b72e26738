/**
 * Each reason for which tokens of a prompt are computed, provoked on a real prefix index and conductor. That requests of a running cluster
 * have them: test/e2e/inside_blocks.test.ts.
 */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Random } from '../../../shared/base/random.ts';
import { systemClock } from '../../../shared/base/clock.ts';
import { chainOf, type Digest } from '../../../shared/kv/block_key.ts';
import { keyWords } from '../../../shared/protocol/packing.ts';
import type { MembersView } from '../../../shared/placement/members_view.ts';
import { Instance } from '../../../shared/placement/instance.ts';
import { PrefixIndex } from '../../../shared/placement/prefix_index/prefix_index.ts';
import { Conductor } from '../../../shared/placement/conductor.ts';
import { LongestPrefixPolicy } from '../../../shared/placement/longest_prefix_policy.ts';
import { GoneKeys } from '../../../services/router/record/gone_keys.ts';
import { MissReasons, type PromptMisses } from '../../../services/router/record/miss_reasons.ts';

const BLOCK = 16;
const NOW_MS = 1_700_000_000_000;
const FORMAT = 'ab'.repeat(16) as Digest;
const OTHER_SALT = 'cd'.repeat(16) as Digest;

function instance(name: string, role: 'decode' | 'prefill' | 'store'): Instance {
  const one = new Instance(
    { member: { name, role, address: `${name}:1`, pid: 1, epoch: 'e' }, protocolVersion: 1 },
    systemClock.nowMs(),
  );
  one.answered(systemClock.nowMs());
  return Object.defineProperty(one, 'maxModelLen', { value: 100_000 });
}

/** A router's index, conductor and reasons over two decode instances and a store. */
class Router {
  readonly members = [instance('decode-1', 'decode'), instance('decode-2', 'decode'), instance('store-1', 'store')];
  readonly gone = new GoneKeys({ wallMs: () => NOW_MS });
  readonly index = new PrefixIndex(10_000, this.gone);
  readonly reasons = new MissReasons(this.index, this.gone);
  readonly conductor: Conductor;

  constructor() {
    const { members, index } = this;
    const view = {
      model: { digest: FORMAT, format: { blockSize: BLOCK } },
      of: (role: string) => members.filter((one) => one.role === role),
      all: () => members,
      generating: () => members.filter((one) => one.role === 'decode'),
      byHolder: (id: string) => members.find((one) => one.id === id),
      decodeSeenMs: () => systemClock.nowMs(),
      otherRouters: [],
    } as unknown as MembersView;
    const policy = new LongestPrefixPolicy(64);
    this.conductor = new Conductor({ view, index, clock: systemClock, random: new Random(1), policy, tieBreak: 0 });
  }

  /** Places a prompt, and returns the reasons of its tokens. */
  place(tokens: Uint32Array, root = FORMAT, isHolder: (one: Instance) => boolean = () => true): PromptMisses {
    const keys = keysOf(tokens, root);
    const avoided = { has: () => false, isHolder };
    const outcome = this.conductor.decide({
      requestId: 'r',
      numTokens: tokens.length,
      keys,
      maxLength: tokens.length + 1,
      avoided,
    });
    if (outcome.kind !== 'place') throw new Error('not placed');
    const { held, heldTokens, decodeSources, prefillSources } = outcome.chosen;
    const sources = [...decodeSources, ...prefillSources];
    return this.reasons.classify({ tokens, blockSize: BLOCK, root, keys, held, heldTokens, sources });
  }

  /** Announces blocks [from, to) of a prompt. */
  announce(operation: 'stored' | 'removed', holder: string, tokens: Uint32Array, from = 0, to = Infinity): void {
    const keys = keysOf(tokens, FORMAT).subarray(2 * from, 2 * to);
    this.index.apply(`${holder}/e`, { operation, tier: holder.startsWith('store') ? 'dram' : 'device', keys });
  }
}

/** Ten full blocks and a tail of five tokens. */
function prompt(seed: number): Uint32Array {
  return Uint32Array.from({ length: 10 * BLOCK + 5 }, (_, i) => 1_000 * seed + i);
}

function keysOf(tokens: Uint32Array, root: Digest): Int32Array {
  const numBlocks = Math.floor((tokens.length - 1) / BLOCK);
  return keyWords(chainOf(root, BLOCK, tokens, numBlocks).map(({ key }) => key));
}

test('a prompt that nobody announced was never seen; its tail is computed always', () => {
  const misses = new Router().place(prompt(1));
  assert.deepEqual(misses.of(165), [
    { start: 0, end: 160, reason: 'never_seen' },
    { start: 160, end: 165, reason: 'tail' },
  ]);
  assert.deepEqual(misses.tokens(165), { never_seen: 160, tail: 5 });
  assert.deepEqual(misses.of(5), [{ start: 160, end: 165, reason: 'tail' }], 'only computed tokens have reasons');
  assert.deepEqual(misses.of(20), [
    { start: 145, end: 160, reason: 'never_seen' },
    { start: 160, end: 165, reason: 'tail' },
  ]);
});

test('blocks that the last holder removed were evicted: when, from which node and tier', () => {
  const router = new Router();
  const tokens = prompt(1);
  router.announce('stored', 'store-1', tokens);
  router.announce('removed', 'store-1', tokens, 4);
  assert.deepEqual(router.place(tokens).of(101), [
    { start: 64, end: 160, reason: 'evicted', node: 'store-1', tier: 'dram', at: NOW_MS },
    { start: 160, end: 165, reason: 'tail' },
  ]);
});

test('blocks whose last holder left are lost', () => {
  const router = new Router();
  const tokens = prompt(1);
  router.announce('stored', 'decode-1', tokens);
  router.index.removeHolder('decode-1/e');
  router.members.shift();
  assert.deepEqual(router.place(tokens).tokens(165), { lost: 160, tail: 5 });
  assert.deepEqual(router.place(tokens).of(165)[0], {
    start: 0,
    end: 160,
    reason: 'lost',
    node: 'decode-1',
    tier: 'device',
    at: NOW_MS,
  });
});

test('the same tokens under another salt are another scope, as far as they are the same', () => {
  const router = new Router();
  router.place(prompt(1));
  const longer = Uint32Array.of(...prompt(1).subarray(0, 160), ...prompt(2));
  assert.deepEqual(router.place(longer, OTHER_SALT).tokens(325), { other_scope: 160, never_seen: 160, tail: 5 });
  assert.deepEqual(router.place(longer, OTHER_SALT).tokens(325), { never_seen: 320, tail: 5 }, 'now under its own');
});

test('blocks that a holder has, and that the placement does not fetch, are held elsewhere', () => {
  const router = new Router();
  const tokens = prompt(1);
  router.announce('stored', 'store-1', tokens, 2, 8);
  // A hole at the beginning: nothing after it can be used.
  assert.deepEqual(router.place(tokens).of(165), [
    { start: 0, end: 32, reason: 'never_seen' },
    { start: 32, end: 128, reason: 'held_elsewhere', node: 'store-1', tier: 'dram' },
    { start: 128, end: 160, reason: 'never_seen' },
    { start: 160, end: 165, reason: 'tail' },
  ]);
  assert.deepEqual(
    router.place(tokens, FORMAT, () => false).tokens(165),
    { never_seen: 64, held_elsewhere: 96, tail: 5 },
    'also where the holder cannot be asked',
  );
});

test('blocks that the placement counts on, and that are computed nevertheless, are absent', () => {
  const router = new Router();
  const tokens = prompt(1);
  router.announce('stored', 'store-1', tokens);
  const misses = router.place(tokens);
  assert.deepEqual(misses.of(5 + 3 * BLOCK), [
    { start: 112, end: 160, reason: 'absent', node: 'store-1', tier: 'dram' },
    { start: 160, end: 165, reason: 'tail' },
  ]);
});

test('a request has at most 16 runs, which add up to its tokens', () => {
  const router = new Router();
  const tokens = Uint32Array.from({ length: 1_000 * BLOCK + 1 }, (_, i) => i);
  const keys = keysOf(tokens, FORMAT);
  router.index.apply('store-1/e', { operation: 'stored', tier: 'dram', keys });
  for (let block = 0; block < 1_000; block += 1 + (block % 5)) {
    const one = keys.subarray(2 * block, 2 * block + 2);
    router.index.apply('store-1/e', { operation: 'removed', tier: 'dram', keys: one });
  }
  const misses = router.place(tokens).of(tokens.length);
  assert.ok(misses.length <= 16 && misses.length > 1, `${misses.length} runs`);
  let at = 0;
  for (const { start, end } of misses) {
    assert.equal(start, at);
    assert.ok(end > start);
    at = end;
  }
  assert.equal(at, tokens.length);
});
