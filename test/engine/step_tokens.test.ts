/** Tokens of a step, as vLLM counts an iteration. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { tokensOf } from '../../shared/engine/step_tokens.ts';

test('prompt tokens and sampled ones count, and rows of tokens that were sampled before do not', () => {
  const rows = (start: number, count: number, numSampled: number): Parameters<typeof tokensOf>[0][number] => ({
    sequence: { request: { tokens: new Uint32Array(10) } } as never,
    start,
    count,
    sampled: new Array<number>(numSampled).fill(0),
  });
  assert.equal(tokensOf([rows(0, 6, 0)]), 6);
  assert.equal(tokensOf([rows(6, 4, 1)]), 5);
  assert.equal(tokensOf([rows(10, 1, 1), rows(12, 1, 1)]), 2);
  // After a preemption, generated tokens are computed again.
  assert.equal(tokensOf([rows(8, 6, 1)]), 3);
  assert.equal(tokensOf([]), 0);
});
