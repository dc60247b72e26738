/** Work that placements bring to their instances. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { placedWork } from '../../shared/placement/placed_work.ts';

const question = { numTokens: 42, numBlocks: 10, isEmbedding: false };

/** Attended pairs of the rows [start, end), counted one by one. */
function pairs(start: number, end: number): number {
  let sum = 0;
  for (let row = start; row < end; row++) sum += row + 1;
  return sum;
}

test('a prefill instance computes the full blocks that nobody holds, the decode instance the tail', () => {
  assert.deepEqual(placedWork({ prefill: 'p', heldTokens: 12 }, question, 4), {
    decode: {
      prompts: { tokens: 2, pairs: pairs(40, 42), sequences: 1 },
      coming: { sequences: 1, contextTokens: 42, blocks: 11 },
    },
    prefill: {
      prompts: { tokens: 28, pairs: pairs(12, 40), sequences: 1 },
      coming: { sequences: 0, contextTokens: 0, blocks: 10 },
    },
  });
});

test('a decode instance alone computes all that nobody holds, and an embedding generates nothing', () => {
  const alone = placedWork({ prefill: undefined, heldTokens: 12 }, question, 4);
  assert.deepEqual(alone.decode.prompts, { tokens: 30, pairs: pairs(12, 42), sequences: 1 });
  assert.equal(alone.prefill, undefined);
  const embedding = placedWork({ prefill: undefined, heldTokens: 0 }, { ...question, isEmbedding: true }, 4);
  assert.deepEqual(embedding.decode, {
    prompts: { tokens: 42, pairs: pairs(0, 42), sequences: 1 },
    coming: { sequences: 0, contextTokens: 0, blocks: 11 },
  });
});
