/** States in a memory of records: a third of it, the one used longest ago goes first. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { KeyChain, type BlockHash, type Digest } from '../../shared/kv/block_key.ts';
import { kvSpec } from '../../shared/kv/kv_spec.ts';
import { RecordCache } from '../../shared/kv/record_cache.ts';
import { recordShapeOf, sealRecord, stateHashOf } from '../../shared/kv/record.ts';
import { Slab, slotBytes, slotLength } from '../../shared/kv/slab.ts';

const format = 'ab'.repeat(16) as Digest;
const spec = kvSpec(
  [
    { kind: 'paged', planes: [8, 8], window: 0 },
    { kind: 'state', planes: [64, 256], window: 0 },
  ],
  { blockSize: 4, valueType: 'f16' },
);
const layout = { format, numericsClass: 'test', spec };
const blocks = new KeyChain(format, 4).extend(Array.from({ length: 96 }, (_, i) => i));

/** A cache of `numStates` states' bytes, and what leaves it. */
function cacheOf(numStates: number): { cache: RecordCache; put: (hash: BlockHash) => void; evicted: bigint[] } {
  const slab = new Slab(numStates * slotLength(recordShapeOf(spec, 'state').slotBytes));
  const evicted: bigint[] = [];
  const cache = new RecordCache(slab, { onEvict: ({ hash }) => evicted.push(hash.key), isWanted: () => false });
  const put = (hash: BlockHash): void => {
    const { slotBytes: bytes } = recordShapeOf(spec, hash.kind);
    const slot = cache.acquireSlot(bytes);
    assert(slot !== undefined);
    sealRecord(slotBytes(slab.memory, slot, bytes), layout, hash);
    assert(cache.put({ hash, format, slot, bytes }));
  };
  return { cache, put, evicted };
}

test('states take a third of the memory, and the one used longest ago goes, though blocks are older', () => {
  const { cache, put, evicted } = cacheOf(9);
  const states = blocks.map(stateHashOf);
  for (const block of blocks.slice(0, 4)) put(block);
  for (const state of states.slice(0, 3)) put(state);
  assert.deepEqual(evicted, []);
  cache.find(states[0]!);
  put(states[3]!);
  assert.deepEqual(evicted, [states[1]!.key]);
  // A state that is read stays.
  cache.pin(states[2]!.key);
  put(states[4]!);
  assert.deepEqual(evicted, [states[1]!.key, states[0]!.key]);
  assert(blocks.slice(0, 4).every((block) => cache.peek(block)));
  cache.remove(states[2]!.key);
  put(states[5]!);
  assert.equal(evicted.length, 3);
});
