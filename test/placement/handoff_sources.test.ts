/** Sources whose blocks a request's own prefills compute. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { withHandoffs } from '../../shared/placement/handoff_sources.ts';
import type { Placement } from '../../shared/placement/policy.ts';
import type { Source } from '../../shared/protocol/messages.ts';

const addressOf = (id: string): string => `${id}:1`;
const held = (address: string, start: number, end: number): Source => ({ address, start, end, isComputing: false });
const computing = (address: string, start: number, end: number): Source => ({
  ...held(address, start, end),
  isComputing: true,
});
const placement: Placement = {
  decode: 'd1',
  prefill: undefined,
  heldTokens: 0,
  maxSelfCompute: 4,
  reason: 'because',
  decodeSources: [held('s1:1', 0, 4)],
  prefillSources: [],
};

test('the decode instance’s source that a prefill of the request computes is marked; held blocks are not', () => {
  const decodeSources = [held('s1:1', 0, 4), computing('p1:1', 4, 9)];
  const marked = withHandoffs({ ...placement, prefill: 'p1', decodeSources }, addressOf);
  assert.deepEqual(marked.decodeSources, [held('s1:1', 0, 4), { ...computing('p1:1', 4, 9), isHandoff: true }]);
});

test('a source that another prefill computes, for another request, is not marked', () => {
  const decodeSources = [computing('p2:1', 0, 4), computing('p1:1', 4, 9)];
  const marked = withHandoffs({ ...placement, prefill: 'p1', decodeSources }, addressOf);
  assert.deepEqual(marked.decodeSources[0], computing('p2:1', 0, 4));
  assert.deepEqual(withHandoffs({ ...placement, decodeSources: [computing('p2:1', 0, 4)] }, addressOf).decodeSources, [
    computing('p2:1', 0, 4),
  ]);
});

test('in a pipeline each prefill gets the other one’s ranges as handed over', () => {
  const { prefillSources, second } = withHandoffs(
    {
      ...placement,
      prefill: 'p1',
      decodeSources: [computing('p1:1', 0, 8)],
      prefillSources: [held('s1:1', 0, 2), computing('p2:1', 2, 4)],
      second: { prefill: 'p2', sources: [computing('p1:1', 4, 8)], tokens: 8, patienceMs: 1 },
    },
    addressOf,
  );
  assert.deepEqual(
    [...prefillSources, ...(second?.sources ?? [])].map(({ isHandoff }) => isHandoff ?? false),
    [false, true, true],
  );
});
