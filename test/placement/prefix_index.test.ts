/** The prefix index against a naive model, and its bound. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { chainOf, type BlockKey, type Digest } from '../../shared/kv/block_key.ts';
import { tiers, type Tier } from '../../shared/protocol/block_events.ts';
import { keyWords } from '../../shared/protocol/packing.ts';
import { HolderSets, NO_SET } from '../../shared/placement/prefix_index/holder_sets.ts';
import { PrefixIndex, type HeldRange } from '../../shared/placement/prefix_index/prefix_index.ts';
import { heldRuns } from './held_runs.ts';

const hashes = chainOf(
  '0'.repeat(32) as Digest,
  4,
  Array.from({ length: 40 }, (_, i) => i),
);

const words = keyWords(hashes.map(({ key }) => key));

test('runs are what a naive model says, under random stores, removals and losses', () => {
  const random = new Random(2);
  const index = new PrefixIndex();
  const naive = new Map<string, Map<Tier, Set<BlockKey>>>();
  const holders = ['a/1', 'b/1', 'c/2'];
  for (let event = 0; event < 3_000; event++) {
    const holder = random.pick(holders as [string, ...string[]]);
    const tier = random.pick(tiers);
    const { key } = hashes[random.below(hashes.length)]!;
    const set = naive.get(holder) ?? new Map<Tier, Set<BlockKey>>();
    naive.set(holder, set);
    const keys = set.get(tier) ?? new Set<BlockKey>();
    set.set(tier, keys);
    if (random.chance(1, 100)) {
      index.removeHolder(holder);
      naive.delete(holder);
    } else if (random.chance(2, 3)) {
      index.apply(holder, { operation: 'stored', tier, keys: keyWords([key]) });
      keys.add(key);
    } else {
      index.apply(holder, { operation: 'removed', tier, keys: keyWords([key]) });
      keys.delete(key);
    }
    const runs = heldRuns(index, words);
    for (const name of holders) {
      const has = (at: number): boolean =>
        [...(naive.get(name)?.values() ?? [])].some((held) => held.has(hashes[at]!.key));
      let run = 0;
      while (run < hashes.length && has(run)) run++;
      assert.equal(runs.get(name) ?? 0, run);
    }
  }
});

/** Chains of a tree: each goes on where another one is left, as chats do. */
function treeOf(random: Random, numChains: number): Int32Array[] {
  const tokens: number[][] = [];
  return Array.from({ length: numChains }, (_, i) => {
    const before = i === 0 ? [] : random.pick(tokens as [number[], ...number[][]]);
    const shared = before.slice(0, 4 * random.below(before.length / 4 + 1));
    const own = Array.from({ length: 4 * (1 + random.below(120)) }, () => random.below(1_000));
    tokens.push([...shared, ...own]);
    return keyWords(chainOf('0'.repeat(32) as Digest, 4, tokens[i]!).map(({ key }) => key));
  });
}

/** A byte a block and holder: its tiers. */
class NaiveIndex {
  readonly #numbers = new Map<string, number>();
  readonly #bits: Uint8Array[] = [];
  readonly #numHolders: number;

  constructor(numHolders: number) {
    this.#numHolders = numHolders;
  }

  /** The blocks of a chain. */
  numbersOf(keys: Int32Array): number[] {
    return Array.from({ length: keys.length / 2 }, (_, i) => {
      const name = `${keys[2 * i]},${keys[2 * i + 1]}`;
      const number = this.#numbers.get(name) ?? this.#numbers.size;
      this.#numbers.set(name, number);
      this.#bits[number] ??= new Uint8Array(this.#numHolders);
      return number;
    });
  }

  apply(holder: number, isStored: boolean, bit: number, numbers: readonly number[]): void {
    for (const number of numbers) {
      const bits = this.#bits[number]!;
      bits[holder] = isStored ? bits[holder]! | bit : bits[holder]! & ~bit;
    }
  }

  remove(holder: number): void {
    for (const bits of this.#bits) bits[holder] = 0;
  }

  get size(): number {
    return this.#bits.filter((bits) => bits.some((one) => one !== 0)).length;
  }

  /** Why these ranges are wrong; undefined when they are right. */
  fault(ranges: readonly HeldRange[], numbers: readonly number[]): string | undefined {
    let next = 0;
    for (const { start, end, heldBy } of ranges) {
      if (start < next || end <= start || end > numbers.length) return `ranges do not ascend at ${start}`;
      for (; next < start; next++) if (this.#bits[numbers[next]!]!.some((one) => one !== 0)) return `${next} is held`;
      for (; next < end; next++) {
        const bits = this.#bits[numbers[next]!]!;
        let numHeld = 0;
        for (const one of bits) if (one !== 0) numHeld++;
        if (numHeld !== heldBy.length) return `${next} is held by ${numHeld}, not ${heldBy.length}`;
        for (const one of heldBy) if (bits[Number(one.holder)] !== one.tiers) return `${next} is not ${one.holder}'s`;
      }
    }
    for (; next < numbers.length; next++)
      if (this.#bits[numbers[next]!]!.some((one) => one !== 0)) return `${next} is held`;
    return undefined;
  }
}

test('ranges are what a naive index says after each of 100,000 events: runs stored and removed, holders lost and told anew', () => {
  const random = new Random(11);
  const numHolders = 12;
  const index = new PrefixIndex();
  const naive = new NaiveIndex(numHolders);
  const chains = treeOf(random, 60).map((keys) => ({ keys, numbers: naive.numbersOf(keys) }));
  for (let event = 0; event < 100_000; event++) {
    const holder = random.below(numHolders);
    const { keys, numbers } = chains[random.below(chains.length)]!;
    // Mostly a few blocks; now and then a whole chain, so that there are segments to jump over and to break.
    const isWhole = random.chance(1, 20);
    const from = isWhole ? 0 : random.below(numbers.length);
    const end = isWhole ? numbers.length : from + 1 + random.below(6);
    const part = keys.subarray(2 * from, 2 * end);
    const tier = random.pick(tiers);
    const bit = 1 << tiers.indexOf(tier);
    const kind = random.below(1_000);
    if (kind < 2) naive.remove(holder);
    if (kind === 0) {
      index.removeHolder(String(holder));
    } else if (kind === 1) {
      index.apply('staged', { operation: 'stored', tier, keys: part });
      index.replaceHolder(String(holder), 'staged');
      naive.apply(holder, true, bit, numbers.slice(from, end));
    } else {
      const isStored = kind < 600;
      index.apply(String(holder), { operation: isStored ? 'stored' : 'removed', tier, keys: part });
      naive.apply(holder, isStored, bit, numbers.slice(from, end));
    }
    const asked = chains[random.below(chains.length)]!;
    const fault = naive.fault(index.ranges(asked.keys), asked.numbers);
    assert(fault === undefined, `event ${event}: ${fault}`);
  }
  assert.equal(index.size, naive.size);
});

test('holders that come and go leave no keys, and sets only until there is no room (P1)', () => {
  const index = new PrefixIndex();
  for (let i = 0; i < 5_000; i++) {
    index.apply(`h${i}`, { operation: 'stored', tier: 'dram', keys: words.subarray(0, 4) });
    if (i >= 3) index.removeHolder(`h${i - 3}`);
    assert.equal(heldRuns(index, words).size, Math.min(i + 1, 3));
  }
  assert.equal(index.size, 2);

  const sets = new HolderSets(8);
  const ids = Array.from({ length: 7 }, (_, i) => sets.step(0, sets.numberOf(`h${i}`), 1, true));
  assert.equal(new Set(ids).size, 7);
  for (const id of ids.slice(1)) sets.count(id, 1);
  const other = sets.numberOf('other');
  const made = sets.step(0, other, 2, true);
  assert.equal(made, ids[0], 'the one that no block has makes room');
  sets.count(made, 1);
  assert.equal(sets.step(ids[1]!, other, 2, true), NO_SET);
  assert.deepEqual(sets.heldBy(sets.live(made)), [{ holder: 'other', tiers: 2 }]);
});

test('keys beyond the bound are not indexed, and what is indexed stays (P1)', () => {
  const index = new PrefixIndex(3);
  index.apply('a', { operation: 'stored', tier: 'dram', keys: words });
  assert.equal(index.size, 3);
  assert.equal(heldRuns(index, words).get('a'), 3);
  index.apply('b', { operation: 'stored', tier: 'dram', keys: words });
  assert.equal(heldRuns(index, words).get('b'), 3, 'of known keys every holder is');
  index.apply('a', { operation: 'removed', tier: 'dram', keys: words.slice(0, 2) });
  index.apply('b', { operation: 'removed', tier: 'dram', keys: words.slice(0, 2) });
  index.apply('a', { operation: 'stored', tier: 'disk', keys: words.slice(6, 8) });
  assert.equal(index.size, 3, 'there is room again');
});

test('a lost holder is swept out of a large index a little at a time, while keys come and go and the table grows', () => {
  const random = new Random(3);
  const keys = Int32Array.from({ length: 2 * 100_000 }, () => random.u32());
  const part = (from: number, end: number): Int32Array => keys.subarray(2 * from, 2 * end);
  const index = new PrefixIndex();
  index.apply('lost', { operation: 'stored', tier: 'dram', keys: part(0, 50_000) });
  index.apply('other', { operation: 'stored', tier: 'dram', keys: part(40_000, 60_000) });
  index.removeHolder('lost');
  assert(index.size > 40_000, 'not all at once');
  assert.deepEqual(index.ranges(part(0, 40_000)), [], 'nobody is asked for them any more');
  for (let i = 0; i < 40_000; i += 500) {
    index.apply('other', { operation: 'stored', tier: 'dram', keys: part(60_000 + i, 60_500 + i) });
    index.apply('other', { operation: 'removed', tier: 'dram', keys: part(40_000 + i / 2, 40_250 + i / 2) });
  }
  assert.equal(index.size, 40_000);
  assert.equal(heldRuns(index, part(60_000, 100_000)).get('other'), 40_000);
});
