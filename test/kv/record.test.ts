/** Names and records of blocks: K1 and K2. Budget: 5 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { chainOf, KeyChain, numPrefillBlocks, type BlockKey, type Digest } from '../../shared/kv/block_key.ts';
import { chainRoot, formatDifference, noScope, formatDigest, type Format } from '../../shared/kv/format.ts';
import { RecordCache } from '../../shared/kv/record_cache.ts';
import {
  headerBytes,
  readHeader,
  recordBytes,
  sealRecord,
  verifyRecord,
  type RecordLayout,
} from '../../shared/kv/record.ts';
import { Slab } from '../../shared/kv/slab.ts';

const format: Format = {
  ...{
    model: 'abc',
    weightFormat: 'f32',
    kvDtype: 'f16',
    layoutVersion: 1,
    blockSize: 4,
    numerics: 'n',
    shard: 'all',
  },
};
const digest = formatDigest(format);
const layout: RecordLayout = {
  format: digest,
  numericsClass: 'test',
  numLayers: 3,
  blockSize: 4,
  payloadBytes: 3 * 64,
};

describe('keys', () => {
  test('a chain grown in steps is the chain made at once, and depends on every token before', () => {
    const random = new Random(3);
    const tokens = Array.from({ length: 40 }, () => random.below(50_000));
    const grown = new KeyChain(digest, 4);
    for (let length = 1; length <= tokens.length; length++) grown.extend(tokens.slice(0, length));
    const whole = chainOf(digest, 4, tokens);
    assert.deepEqual(grown.hashes, whole);
    for (let at = 0; at < tokens.length; at++) {
      const other = chainOf(
        digest,
        4,
        tokens.map((token, i) => (i === at ? token + 1 : token)),
      );
      whole.forEach((hash, block) => {
        const isAfter = block >= Math.floor(at / 4);
        assert.equal(hash.key === other[block]!.key, !isAfter);
        assert.equal(hash.digest === other[block]!.digest, !isAfter);
      });
    }
  });

  test('other formats have other keys from the first block on', () => {
    const roots = new Set<BlockKey>();
    for (const change of [{}, { model: 'b' }, { kvDtype: 'f32' as const }, { blockSize: 8 }, { layoutVersion: 2 }]) {
      roots.add(chainOf(formatDigest({ ...format, ...change }), 4, [1, 2, 3, 4])[0]!.key);
    }
    assert.equal(roots.size, 5);
    assert.match(formatDifference({ ...format, blockSize: 8 }, format)!, /blockSize is 8/);
  });

  test('requests of different scopes share no key; without a scope the chain starts from the format', () => {
    const scopes = [noScope, { ...noScope, salt: 'a' }, { ...noScope, salt: 'b' }, { adapter: 'a', salt: '' }];
    const keys = scopes.map((scope) => chainOf(chainRoot(digest, scope), 4, [1, 2, 3, 4])[0]!.key);
    assert.equal(new Set(keys).size, scopes.length);
    assert.equal(keys[0], chainOf(digest, 4, [1, 2, 3, 4])[0]!.key);
  });

  test('the tail of 1 to block_size tokens is never a prefill block', () => {
    assert.deepEqual(
      [1, 4, 5, 8, 9].map((n) => numPrefillBlocks(n, 4)),
      [0, 0, 1, 1, 2],
    );
  });

  test('blocks of one stretch of 64 share their anchor', () => {
    const hashes = chainOf(
      digest,
      4,
      Array.from({ length: 4 * 130 }, (_, i) => i),
    );
    assert.deepEqual(
      [hashes[63]!.anchor, hashes[64]!.anchor, hashes[129]!.anchor],
      [hashes[0]!.key, hashes[64]!.key, hashes[128]!.key],
    );
  });
});

describe('records', () => {
  const [hash] = chainOf(digest, 4, [1, 2, 3, 4]);
  const sealed = (): Uint8Array => {
    const record = new Uint8Array(recordBytes(layout));
    for (let i = headerBytes(3); i < record.length; i++) record[i] = i * 7;
    sealRecord(record, layout, hash!);
    return record;
  };

  test('a sealed record reads back and verifies', () => {
    const header = readHeader(sealed());
    assert(!('fault' in header));
    assert.deepEqual(
      [header.key, header.parent, header.digest, header.format],
      [hash!.key, hash!.parent, hash!.digest, digest],
    );
    assert.equal(verifyRecord(sealed(), { format: digest, digest: hash!.digest }), undefined);
  });

  test('K2: any flipped bit is found', () => {
    const record = sealed();
    for (let bit = 0; bit < record.length * 8; bit++) {
      record[bit >> 3]! ^= 1 << (bit & 7);
      assert.notEqual(verifyRecord(record, { format: digest, digest: hash!.digest }), undefined, `bit ${bit}`);
      record[bit >> 3]! ^= 1 << (bit & 7);
    }
  });

  test('K2: a colliding key, another format and a cut record are refused with a reason', () => {
    assert.match(verifyRecord(sealed(), { format: digest, digest: '0'.repeat(32) as Digest })!, /keys collide/);
    assert.match(verifyRecord(sealed(), { format: '0'.repeat(32) as Digest, digest: hash!.digest })!, /another format/);
    assert.match(verifyRecord(sealed().subarray(0, 300))!, /lengths disagree/);
    assert.match(verifyRecord(new Uint8Array(10))!, /at least/);
    assert.match(verifyRecord(new Uint8Array(512))!, /no record/);
  });
});

describe('records in memory', () => {
  const linkOf = (i: number): ReturnType<typeof chainOf>[number] => chainOf(digest, 4, [i, i, i, i])[0]!;

  test('the least recently used goes first, what somebody is about to read goes last', () => {
    const evicted: BlockKey[] = [];
    const wanted = new Set([linkOf(0).key]);
    const cache = new RecordCache(new Slab(256, 3), {
      onEvict: ({ hash }) => evicted.push(hash.key),
      isWanted: (key) => wanted.has(key),
    });
    for (const i of [0, 1, 2]) cache.put(linkOf(i), cache.takeSlot()!);
    cache.find(linkOf(1));
    for (const i of [3, 4, 5]) cache.put(linkOf(i), cache.takeSlot()!);
    assert.deepEqual(evicted, [linkOf(2).key, linkOf(1).key, linkOf(3).key]);
    assert(cache.has(linkOf(0).key), 'the wanted one is still there');
    assert.equal(cache.counters.evictions, 3);
  });

  test('a second record of a key is a duplicate, and a colliding key finds nothing', () => {
    const slab = new Slab(256, 3);
    const cache = new RecordCache(slab, { onEvict: () => undefined, isWanted: () => false });
    assert(cache.put(linkOf(1), cache.takeSlot()!));
    const slot = cache.takeSlot()!;
    assert(!cache.put(linkOf(1), slot));
    cache.giveSlot(slot);
    assert.equal(slab.numFree, 2);
    assert.equal(cache.find({ ...linkOf(1), digest: '0'.repeat(32) as Digest }), undefined);
    assert.throws(() => slab.release(slot), /not in use/);
  });
});
