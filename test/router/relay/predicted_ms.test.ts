/** Predicted milliseconds of a placed request, by hand. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { predictedMs } from '../../../services/router/relay/predicted_ms.ts';
import type { Chosen } from '../../../shared/placement/conductor.ts';

const step = { constantMs: 4, rowMs: 0.5, pairMs: 0.01, contextMs: 0.001, sequenceMs: 1 };

function chosen(more: object, work: object | undefined): Chosen {
  const decode = { work: work && { step, chunkTokens: 100, generating: { sequences: 3 }, ...work } };
  const own = { prompts: { tokens: 50, pairs: 2_000, sequences: 1 }, coming: { contextTokens: 200 } };
  return { decode, prefill: undefined, work: { decode: own, prefill: undefined }, ...more } as unknown as Chosen;
}

test('rows of the prompt that are computed, and a row with its context for each expected token', () => {
  // Half a step of constant time, rows, pairs and the sequence; ten tokens, each a quarter of a step.
  const promptMs = 0.5 * 4 + 50 * 0.5 + 2_000 * 0.01 + 1;
  const tokenMs = 10 * (0.5 + 1 + 4 / 4) + 0.001 * 10 * (200 + 5);
  assert(Math.abs(predictedMs(chosen({}, {}), 10) - promptMs - tokenMs) < 1e-9);
});

test('an instance that has reported no step time counts a row as a millisecond', () => {
  assert.equal(predictedMs(chosen({}, undefined), 10), 60);
});

test('the rows of a prefill instance count at its own step time', () => {
  const prefill = { work: { step: { ...step, rowMs: 5 }, chunkTokens: 100 } };
  const prompts = { tokens: 100, pairs: 0, sequences: 1 };
  const { work } = chosen({}, {});
  const split = chosen({ prefill, work: { ...work, prefill: { prompts } } }, {});
  assert(Math.abs(predictedMs(split, 0) - predictedMs(chosen({}, {}), 0) - (100 * 5 + 4 + 1)) < 1e-9);
});
