/** Chains of earlier prompts: what is taken over is what would have been derived. Budget: 3 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Random } from '../../../shared/base/random.ts';
import { chainOf, type Digest } from '../../../shared/kv/block_key.ts';
import { ChainCache } from '../../../services/router/relay/chain_cache.ts';
import { TokenList } from '../../../shared/base/token_list.ts';

const root = 'ab'.repeat(16) as Digest;

test('a thousand prompts that share beginnings: each has the chain that it has by itself, much of it found', () => {
  const random = new Random(3);
  const cache = new ChainCache(20_000);
  const said: Uint32Array[] = [];
  let [numFound, numBlocks] = [0, 0];
  for (let i = 0; i < 1_000; i++) {
    const before = said.length > 0 && random.chance(3, 4) ? said[random.below(said.length)] : undefined;
    const start = before ? before.subarray(0, 1 + random.below(before.length)) : new Uint32Array(0);
    const own = Uint32Array.from({ length: 1 + random.below(60) }, () => random.below(3));
    const tokens = Uint32Array.from([...start, ...own]);
    const chain = cache.chainOf(root, 4, tokens);
    const found = [...chain.hashes];
    const want = chainOf(root, 4, tokens);
    assert.deepEqual(found, want.slice(0, found.length));
    const hashes = chain.extend(tokens);
    assert.deepEqual(hashes, want);
    cache.keep(root, 4, tokens, hashes);
    assert(cache.numTokens <= 20_000, '(P1)');
    said.push(tokens);
    numFound += found.length;
    numBlocks += want.length;
  }
  assert(numFound > numBlocks / 10, `${numFound} of ${numBlocks}`);
});

test('another root or block size finds nothing; a prompt over the bound is not kept', () => {
  const cache = new ChainCache(100);
  const tokens = Uint32Array.from({ length: 64 }, (_, i) => i);
  cache.keep(root, 4, tokens, chainOf(root, 4, tokens));
  assert.equal(cache.chainOf(root, 4, tokens).hashes.length, 16);
  assert.equal(cache.chainOf('cd'.repeat(16) as Digest, 4, tokens).hashes.length, 0);
  assert.equal(cache.chainOf(root, 8, tokens).hashes.length, 0);
  const long = Uint32Array.from({ length: 101 }, (_, i) => i + 1);
  cache.keep(root, 4, long, chainOf(root, 4, long));
  assert.equal(cache.chainOf(root, 4, long).hashes.length, 0);
  assert.equal(cache.numTokens, 64);
});

test('a list of tokens grows, and what was looked at stays as it was', () => {
  const list = new TokenList(Uint32Array.of(1, 2));
  const views: Uint32Array[] = [];
  for (let i = 0; i < 1_000; i++) {
    views.push(list.view());
    list.push(i);
  }
  assert.equal(list.length, 1_002);
  for (const [i, view] of views.entries())
    assert.deepEqual([...view], [1, 2, ...Array.from({ length: i }, (_, k) => k)].slice(0, i + 2));
});
