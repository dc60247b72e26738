/** Prices of work per instance, learned from reports. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Prices } from '../../../services/router/conductor/prices.ts';
import type { Report } from '../../../shared/protocol/messages.ts';

const report = (more: Partial<Report>): Report => ({
  ...{ cachedTokens: 0, fetchedTokens: 0, computedTokens: 0, queueMs: 0, loadMs: 0, computeMs: 0, fetchedBytes: 0 },
  ...more,
});

test('a price is unknown until it was measured, follows what is measured, and leaves with its instance', () => {
  const prices = new Prices();
  assert.deepEqual(prices.of('a'), { computeMs: undefined, fetchMs: undefined });
  prices.learn('a', report({ computedTokens: 100, computeMs: 200 }));
  assert.deepEqual(prices.of('a'), { computeMs: 2, fetchMs: undefined });
  prices.learn('a', report({ computedTokens: 10, computeMs: 70, fetchedTokens: 64, loadMs: 32 }));
  assert.deepEqual(prices.of('a'), { computeMs: 0.8 * 2 + 0.2 * 7, fetchMs: 0.5 });
  // One row of a decode step says nothing about a token of a prompt.
  prices.learn('a', report({ computedTokens: 1, computeMs: 50 }));
  assert.equal(prices.of('a').computeMs, 0.8 * 2 + 0.2 * 7);
  prices.forget('a');
  assert.equal(prices.of('a').computeMs, undefined);
});
