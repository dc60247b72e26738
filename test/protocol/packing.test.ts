/** Lists as bytes: what goes in comes out, and rubbish is refused, never misread. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Failure } from '../../shared/base/failure.ts';
import { Random } from '../../shared/base/random.ts';
import { chainOf, type BlockKey, type Digest } from '../../shared/kv/block_key.ts';
import { decodeBlockBatch, encodeBlockBatch, type BlockBatch } from '../../shared/protocol/block_events.ts';
import { readHeartbeat, readRegistration } from '../../shared/protocol/membership.ts';
import {
  keyWords,
  packKeys,
  packFloats,
  packHashes,
  packTokens,
  unpackFloats,
  unpackHashes,
  unpackKeyWords,
  unpackTokens,
} from '../../shared/protocol/packing.ts';

const isInvalid = (error: unknown): boolean => error instanceof Failure && error.code === 'invalid_request';

test('tokens, keys and hashes come back as they were', () => {
  const tokens = [0, 1, 0xffffffff, 128_000];
  assert.deepEqual([...unpackTokens(packTokens(tokens))], tokens);
  const values = Float32Array.of(0, -1.5, 1e-45, Math.fround(0.1));
  assert.deepEqual(unpackFloats(packFloats(values)), values);
  const keys = [0n, 2n ** 64n - 1n] as BlockKey[];
  assert.deepEqual(unpackKeyWords(packKeys(keys)), keyWords(keys));
  const hashes = chainOf('a'.repeat(32) as Digest, 4, [1, 2, 3, 4, 5, 6, 7, 8]).map(({ key, parent, digest }) => ({
    key,
    parent,
    digest,
  }));
  assert.deepEqual(unpackHashes(packHashes(hashes)), hashes);
  assert.deepEqual(unpackHashes(packHashes([])), []);
});

test('a list that is cut short is refused', () => {
  assert.throws(() => unpackTokens(Buffer.alloc(5)), isInvalid);
  assert.throws(() => unpackFloats(Buffer.alloc(6)), isInvalid);
  assert.throws(() => unpackKeyWords(Buffer.alloc(9)), isInvalid);
  assert.throws(() => unpackHashes(Buffer.alloc(33)), isInvalid);
});

test('block events come back as they were, and rubbish never ends the listener otherwise than as a failure', () => {
  const batch: BlockBatch = {
    holder: 'store-1/abc',
    sequence: 77,
    runs: [
      { operation: 'stored', tier: 'disk', keys: keyWords([1n, 2n] as BlockKey[]) },
      { operation: 'removed', tier: 'device', keys: keyWords([2n ** 63n] as BlockKey[]) },
      {
        operation: 'stored',
        tier: 'dram',
        keys: keyWords([3n, 4n, 5n, 6n, 7n] as BlockKey[]),
        parents: keyWords([2n, 3n, 4n, 5n, 6n] as BlockKey[]),
      },
    ],
  };
  const bytes = encodeBlockBatch(batch);
  assert.deepEqual(decodeBlockBatch(bytes), batch);
  const random = new Random(4);
  for (let i = 0; i < 2_000; i++) {
    const rubbish = Buffer.from(bytes.subarray(0, random.below(bytes.length + 1)));
    if (rubbish.length > 0) rubbish[random.below(rubbish.length)] = random.below(256);
    try {
      decodeBlockBatch(rubbish);
    } catch (error) {
      assert(isInvalid(error), String(error));
    }
  }
  assert.throws(() => readHeartbeat(Buffer.from('{')), isInvalid);
  assert.throws(() => readRegistration(Buffer.from('{"member": 1}')), isInvalid);
});
