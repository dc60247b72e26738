/** Headers about limits, as the APIs write them. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import {
  anthropicLimitHeaders,
  limitHeaderNames,
  openaiLimitHeaders,
} from '../../../services/router/api/limit_headers.ts';

const rate = (resetMs: number): { limit: number; remaining: number; resetMs: number } => ({
  limit: 60,
  remaining: 59,
  resetMs,
});

test('durations are those of OpenAI', () => {
  const of = (ms: number): string | undefined =>
    new Map(openaiLimitHeaders({ requests: rate(ms), tokens: undefined }, 0)).get('x-ratelimit-reset-requests');
  assert.deepEqual([0, 0.2, 119.5, 999, 1_000, 1_001, 59_001, 60_000, 61_500, 360_000].map(of), [
    '0s',
    '1ms',
    '120ms',
    '999ms',
    '1s',
    '2s',
    '1m0s',
    '1m0s',
    '1m2s',
    '6m0s',
  ]);
});

test('a limit that there is not has no headers; those of Anthropic have times, and pages may read all', () => {
  assert.deepEqual(openaiLimitHeaders({ requests: undefined, tokens: undefined }, 0), []);
  const own = new Map(anthropicLimitHeaders({ requests: rate(1), tokens: rate(30_000) }, 1_700_000_000_000));
  assert.equal(own.get('anthropic-ratelimit-tokens-reset'), '2023-11-14T22:13:50Z');
  assert.equal(own.get('anthropic-ratelimit-requests-remaining'), '59');
  assert.equal(own.get('x-ratelimit-remaining-tokens'), '59');
  assert.deepEqual([...own.keys()].toSorted(), [...limitHeaderNames].toSorted());
});
