/** Names and records of blocks: K1 and K2. Budget: 5 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import {
  chainOf,
  KeyChain,
  numPrefillBlocks,
  SHARED,
  tenantIdOf,
  type BlockKey,
  type Digest,
} from '../../shared/kv/block_key.ts';
import {
  chainRoot,
  formatDifference,
  noScope,
  type CacheScope,
  formatDigest,
  type Format,
} from '../../shared/kv/format.ts';
import { RecordCache, type CachedRecord } from '../../shared/kv/record_cache.ts';
import {
  contentHashOf,
  numericsId,
  numericsOf,
  readHeader,
  sealRecord,
  stateHashOf,
  tenantOf,
  verifyRecord,
  type RecordLayout,
} from '../../shared/kv/record.ts';
import { Slab, slotLength } from '../../shared/kv/slab.ts';
import { evenSpec } from '../support/kv.ts';
import { FRAME_HEADER_BYTES, IDENTITY_BYTES, type FrameSpec } from '../../shared/kv/kv_spec.ts';

const format: Format = {
  model: 'abc',
  weightFormat: 'f32',
  kvDtype: 'f16',
  layoutVersion: 1,
  blockSize: 4,
  numerics: 'n',
  kv: 'spec',
};
const digest = formatDigest(format);
const layout: RecordLayout = {
  format: digest,
  numericsClass: 'test',
  spec: evenSpec({ numLayers: 3, blockSize: 4, payloadBytes: 3 * 64 }),
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
    const scopes: CacheScope[] = [
      noScope,
      { ...noScope, salt: 'a' },
      { ...noScope, salt: 'b' },
      { ...noScope, adapter: 'a' },
      { ...noScope, tenant: 'a' },
      { ...noScope, tenant: 'a', salt: 'a' },
      { ...noScope, tenant: 'aa' },
      // Salts that are spelled as a tenant's scope is.
      { ...noScope, salt: JSON.stringify(['a', '']) },
      { ...noScope, salt: 'a","' },
      { ...noScope, adapter: 'a', salt: 'a' },
    ];
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

  test('blocks of one run of 64 blocks share their anchor', () => {
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
    const record = new Uint8Array(layout.spec.slotBytes);
    for (let i = layout.spec.preambleBytes; i < record.length; i++) record[i] = i * 7;
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

  test('a record says whose it is: its tenant, or nobody alone; so does the state at its end', () => {
    const tenant = tenantIdOf('a');
    assert.notEqual(tenant, tenantIdOf('b'));
    assert.equal(tenantIdOf(''), SHARED);
    const root = chainRoot(digest, { ...noScope, tenant: 'a' });
    const [own] = new KeyChain(root, 4, [], undefined, tenant).extend([1, 2, 3, 4]);
    const record = sealed();
    assert.equal(tenantOf(record), SHARED);
    sealRecord(record, layout, own!);
    assert.equal(tenantOf(record), tenant);
    assert.equal(verifyRecord(record, { format: digest, digest: own!.digest }), undefined);
    const header = readHeader(record);
    assert(!('fault' in header) && header.tenant === tenant);
    assert.equal(stateHashOf(own!).tenant, tenant);
    assert(!('tenant' in stateHashOf(hash!)));
  });

  test('K2: any flipped bit is found', () => {
    const record = sealed();
    for (let bit = 0; bit < record.length * 8; bit++) {
      record[bit >> 3]! ^= 1 << (bit & 7);
      assert.notEqual(verifyRecord(record, { format: digest, digest: hash!.digest }), undefined, `bit ${bit}`);
      record[bit >> 3]! ^= 1 << (bit & 7);
    }
  });

  test('layers are in frames of 64 KiB at least, eight at most, each verified by what is said of it', () => {
    const framesOf = (shape: (typeof shapes)[number]): readonly FrameSpec[] =>
      evenSpec({ ...shape, blockSize: 4 }).frames;
    const shapes = [
      { numLayers: 30, payloadBytes: 737_280 },
      { numLayers: 3, payloadBytes: 192 },
      { numLayers: 32, payloadBytes: 4 << 20 },
      { numLayers: 7, payloadBytes: 7 << 20 },
    ];
    assert.deepEqual(
      shapes.map((shape) => framesOf(shape).map(({ numLayers }) => numLayers)),
      [[4, 4, 4, 4, 4, 4, 4, 2], [3], [4, 4, 4, 4, 4, 4, 4, 4], [1, 1, 1, 1, 1, 1, 1]],
    );
    for (const shape of shapes) {
      let [layer, offset] = [0, 0];
      for (const { firstLayer, numLayers, rawBytes: bytes, offset: at } of framesOf(shape)) {
        assert.deepEqual([firstLayer, at], [layer, offset]);
        [layer, offset] = [layer + numLayers, offset + bytes];
      }
      assert.deepEqual([layer, offset], [shape.numLayers, shape.payloadBytes]);
    }
    const spec = evenSpec({ numLayers: 7, blockSize: 4, payloadBytes: 7 << 17 });
    const large: RecordLayout = { ...layout, spec };
    const seal = (fill: number, as = hash!): { record: Uint8Array; contentHash: bigint } => {
      const record = new Uint8Array(large.spec.slotBytes).fill(fill);
      return { record, contentHash: sealRecord(record, large, as) };
    };
    const { record, contentHash } = seal(1);
    assert.equal(contentHashOf(record), contentHash);
    assert.equal(seal(1, chainOf(digest, 4, [9, 9, 9, 9])[0]).contentHash, contentHash, 'of the raw bytes alone');
    assert.notEqual(seal(2).contentHash, contentHash);
    assert.equal(numericsOf(record), numericsId(large.numericsClass));
    // The header that another block has for the same frame does not match this record.
    const other = seal(1, chainOf(digest, 4, [9, 9, 9, 9])[0]).record;
    const second = IDENTITY_BYTES + FRAME_HEADER_BYTES;
    record.set(other.subarray(second, second + FRAME_HEADER_BYTES), second);
    assert.match(verifyRecord(record)!, /layer 1 is damaged, or another block's/);
    const flipped = seal(1).record;
    flipped[flipped.length - 1]! ^= 1;
    assert.match(verifyRecord(flipped)!, /layers 6 to 6/);
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

  const recordOf = (i: number, slot: number, bytes = 256): CachedRecord => ({
    hash: linkOf(i),
    format: digest,
    slot,
    bytes,
  });

  test('the least recently used goes first, what somebody is about to read goes last', () => {
    const evicted: BlockKey[] = [];
    const wanted = new Set([linkOf(0).key]);
    const cache = new RecordCache(new Slab(3 * 256), {
      onEvict: ({ hash }) => evicted.push(hash.key),
      isWanted: (key) => wanted.has(key),
    });
    for (const i of [0, 1, 2]) cache.put(recordOf(i, cache.acquireSlot(256)!));
    cache.find(linkOf(1));
    for (const i of [3, 4, 5]) cache.put(recordOf(i, cache.acquireSlot(256)!));
    assert.deepEqual(evicted, [linkOf(2).key, linkOf(1).key, linkOf(3).key]);
    assert(cache.has(linkOf(0).key), 'the wanted one is still there');
    assert.equal(cache.counters.evictions, 3);
  });

  test('a second record of a key is a duplicate, and a colliding key finds nothing', () => {
    const slab = new Slab(3 * 256);
    const cache = new RecordCache(slab, { onEvict: () => undefined, isWanted: () => false });
    assert(cache.put(recordOf(1, cache.acquireSlot(256)!)));
    const slot = cache.acquireSlot(256)!;
    assert(!cache.put(recordOf(1, slot)));
    cache.releaseSlot(slot);
    assert.equal(slab.numFreeBytes, 2 * 256);
    assert.equal(cache.find({ ...linkOf(1), digest: '0'.repeat(32) as Digest }), undefined);
    assert.throws(() => slab.release(slot), /not in use/);
  });

  test('records of several sizes share the memory; a large one takes the place of its oldest and of those around it', () => {
    const random = new Random(5);
    const slab = new Slab(64 * 256);
    const cache = new RecordCache(slab, { onEvict: ({ hash }) => held.delete(hash.key), isWanted: () => false });
    const held = new Map<BlockKey, number>();
    const sizes = [256, 700, 2_048] as const;
    for (let i = 0; i < 3_000; i++) {
      const bytes = random.pick(sizes);
      const slot = cache.acquireSlot(bytes);
      assert(slot !== undefined && slot + bytes <= slab.numBytes);
      const record = recordOf(i, slot, bytes);
      assert(cache.put(record));
      held.set(record.hash.key, slotLength(bytes));
      const used = [...held.values()].reduce((sum, length) => sum + length, 0);
      assert.equal(slab.numFreeBytes, slab.numBytes - used);
      assert.equal(cache.size, held.size);
    }
    const used = 1 - slab.numFreeBytes / slab.numBytes;
    assert(used > 0.6, `${used} of the memory is used`);
    const { blocks } = cache.formats.largest(1)[digest]!;
    assert.equal(blocks, held.size);
  });

  test('what is pinned stays where it is, and no room around it is no room', () => {
    const slab = new Slab(8 * 256);
    const cache = new RecordCache(slab, { onEvict: () => undefined, isWanted: () => false });
    for (let i = 0; i < 8; i++) cache.put(recordOf(i, cache.acquireSlot(256)!));
    for (const i of [1, 3, 5, 7]) cache.pin(linkOf(i).key);
    assert.equal(cache.acquireSlot(512), undefined);
    for (const i of [1, 3, 5, 7]) assert(cache.has(linkOf(i).key));
  });

  test('of a large memory the oldest go before somebody needs their place', async () => {
    const turns: (() => void)[] = [];
    const cache = new RecordCache(new Slab(1_000 * 256), {
      onEvict: () => undefined,
      isWanted: () => false,
      turn: () => new Promise((resolve) => turns.push(resolve)),
    });
    for (let i = 0; i < 985; i++) cache.put(recordOf(i, cache.acquireSlot(256)!));
    assert.equal(cache.counters.evictions, 0);
    assert.equal(turns.length, 1);
    turns[0]!();
    await Promise.resolve();
    await Promise.resolve();
    assert.equal(cache.counters.evictions, 25, 'until 4 % is free');
    assert(!cache.has(linkOf(24).key) && cache.has(linkOf(25).key));
  });
});
