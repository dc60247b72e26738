/** Promised blocks against a plain count of open promises, by block and instance. Which instance a promise is made for is the relay's. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { PromisedBlocks } from '../../shared/placement/promised_blocks.ts';
import { Random } from '../../shared/base/random.ts';
import { chainOf, type Digest } from '../../shared/kv/block_key.ts';
import { keyWords } from '../../shared/protocol/packing.ts';

const root = '0'.repeat(32) as Digest;
/** Keys of the blocks of 1 token each. */
const keysOf = (...tokens: readonly number[]): Int32Array => keyWords(chainOf(root, 1, tokens).map(({ key }) => key));
const noMatches = new Map<string, number>();

test('a block stays promised until the last of its promises has ended, in any order', () => {
  for (const order of [
    [0, 1, 2],
    [2, 1, 0],
    [1, 0, 2],
    [1, 2, 0],
  ]) {
    const promised = new PromisedBlocks();
    const chains = [keysOf(1, 2, 3, 4), keysOf(1, 2, 3, 4), keysOf(1, 2, 9)];
    const ends = chains.map((keys) => promised.promise('a', keys));
    const open = new Set([0, 1, 2]);
    for (const number of order) {
      const run = (keys: Int32Array): number => promised.prefixes(keys, noMatches)[0]?.end ?? 0;
      assert.equal(run(chains[0]!), open.has(0) || open.has(1) ? 4 : 2);
      assert.equal(run(chains[2]!), open.has(2) ? 3 : 2);
      ends[number]!();
      ends[number]!();
      open.delete(number);
    }
    assert.deepEqual([promised.numOpen, promised.numBlocks], [0, 0]);
  }
});

test('a run begins where the instance has blocks already, and is left out when it is no longer than these', () => {
  const promised = new PromisedBlocks();
  promised.promise('a', keysOf(1, 2, 3, 4));
  promised.promise('b', keysOf(1, 2));
  const asked = keysOf(1, 2, 3, 8);
  assert.deepEqual(promised.prefixes(asked, new Map([['a', 1]])), [
    { id: 'a', end: 3, fetchedTo: 0 },
    { id: 'b', end: 2, fetchedTo: 0 },
  ]);
  assert.deepEqual(promised.prefixes(asked, new Map(Object.entries({ a: 3, b: 2 }))), []);
  assert.deepEqual(promised.prefixes(keysOf(7), noMatches), []);
});

test('an instance that has left has no promises, and the end of an earlier one takes nothing of its successor', () => {
  const promised = new PromisedBlocks();
  const end = promised.promise('a', keysOf(1, 2));
  promised.forget('a');
  assert.equal(promised.numOpen, 0);
  assert.deepEqual(promised.prefixes(keysOf(1, 2), noMatches), []);
  promised.promise('a', keysOf(1, 2));
  end();
  assert.deepEqual(promised.prefixes(keysOf(1, 2), noMatches), [{ id: 'a', end: 2, fetchedTo: 0 }]);
});

test('a run says which of its blocks are only fetched, until a promise computes them too', () => {
  const promised = new PromisedBlocks();
  const asked = keysOf(1, 2, 3, 4, 8);
  promised.promise('a', keysOf(1, 2, 3, 4), 3);
  assert.deepEqual(promised.prefixes(asked, noMatches), [{ id: 'a', end: 4, fetchedTo: 3 }]);
  assert.deepEqual(promised.prefixes(asked, new Map([['a', 3]])), [{ id: 'a', end: 4, fetchedTo: 0 }]);
  const end = promised.promise('a', keysOf(1, 2, 3), 1);
  assert.deepEqual(promised.prefixes(asked, noMatches), [{ id: 'a', end: 4, fetchedTo: 1 }]);
  promised.promise('a', keysOf(1, 2, 3, 4, 8), 5);
  assert.deepEqual(promised.prefixes(asked, noMatches), [{ id: 'a', end: 5, fetchedTo: 5 }]);
  end();
  assert.equal(promised.prefixes(asked, noMatches)[0]?.end, 5);
});

test('P1: blocks beyond the bound are not promised, and nothing is left of the others', () => {
  const promised = new PromisedBlocks(600);
  const chains = Array.from({ length: 40 }, (_, i) => keysOf(...Array.from({ length: 30 }, (_, k) => 100 * i + k)));
  const ends = chains.map((keys) => promised.promise('a', keys));
  assert(promised.numBlocks <= 600);
  for (const end of ends) end();
  assert.deepEqual([promised.numOpen, promised.numBlocks], [0, 0]);
});

test('any sequence of promises and ends gives the runs of a plain count', () => {
  const random = new Random(5);
  const promised = new PromisedBlocks();
  const open: { readonly id: string; readonly tokens: readonly number[]; readonly end: () => void }[] = [];
  const draw = (): number[] => Array.from({ length: 1 + random.below(6) }, () => random.below(2));
  const plain = (id: string, tokens: readonly number[]): number =>
    Math.max(
      0,
      ...open.map((one) => {
        if (one.id !== id) return 0;
        const different = one.tokens.findIndex((token, i) => token !== tokens[i]);
        return different < 0 ? one.tokens.length : different;
      }),
    );
  for (let i = 0; i < 2_000; i++) {
    const id = random.pick(['a', 'b', 'c']);
    if (random.chance(1, 200)) {
      promised.forget(id);
      open.splice(0, open.length, ...open.filter((one) => one.id !== id));
    } else if (open.length < 12 && random.chance(1, 2)) {
      const tokens = draw();
      open.push({ id, tokens, end: promised.promise(id, keysOf(...tokens), random.below(tokens.length + 1)) });
    } else open.splice(random.below(open.length), 1)[0]?.end();
    const tokens = draw();
    const runs = new Map(promised.prefixes(keysOf(...tokens), noMatches).map((run) => [run.id, run.end]));
    for (const one of ['a', 'b', 'c']) assert.equal(runs.get(one) ?? 0, plain(one, tokens), `step ${i}`);
    assert.equal(promised.numOpen, open.length);
  }
});
