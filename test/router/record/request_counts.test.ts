/** Where the tokens of a prompt came from, counted from the reports of its attempts. Budget: 2 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { CountsFold } from '../../../services/router/record/request_counts.ts';
import type { TokenSources } from '../../../shared/protocol/router_api.ts';
import type { Report } from '../../../shared/protocol/messages.ts';
import { Random } from '../../../shared/base/random.ts';
import { placedAt, prefillAt } from '../../support/request_events.ts';

const NONE: TokenSources = { device: 0, dram: 0, instance: 0, store_dram: 0, store_disk: 0, handoff: 0, computed: 0 };
type Found = NonNullable<Report['sources']>;

function reportOf(computedTokens: number, found: Partial<Found>): Report {
  const sources: Found = { device: 0, dram: 0, instance: 0, storeDram: 0, storeDisk: 0, handoff: 0, ...found };
  const fetchedTokens = Object.values(sources).reduce((total, count) => total + count, 0) - sources.device;
  const counts = { cachedTokens: sources.device, fetchedTokens, computedTokens };
  return { ...counts, queueMs: 0, loadMs: 0, computeMs: 0, fetchedBytes: 0, links: [], sources };
}

interface Prefilled {
  readonly computed: number;
  readonly expected?: number;
  readonly outcome?: string;
}

function sourcesOf(promptTokens: number, report: Report | undefined, ...prefills: Prefilled[]): TokenSources {
  const counts = new CountsFold();
  counts.apply({ kind: 'read', facts: { promptTokens } });
  counts.apply(placedAt('d1'));
  for (const [index, { computed, expected = 0, outcome = 'finished' }] of prefills.entries()) {
    const entry = { ...prefillAt('p1', 0), computedTokens: computed, expectedTokens: expected, outcome };
    counts.apply({ kind: 'prefill', attempt: 1, index, entry });
  }
  counts.apply({ kind: 'firstToken', attempt: 1, report, isFirst: true });
  return counts.sources;
}

test('tokens that a prefill computed are handed over, those that it only passed on are of another instance', () => {
  const sources = sourcesOf(1_020, reportOf(28, { handoff: 992 }), { computed: 192 });
  assert.deepEqual(sources, { ...NONE, instance: 800, handoff: 192, computed: 28 });
});

test('at the first token a prefill that has not reported yet has computed what it handed over', () => {
  const late = { computed: 96, expected: 192, outcome: 'running' };
  const handed = { ...NONE, handoff: 192, computed: 28 };
  assert.deepEqual(sourcesOf(220, reportOf(28, { handoff: 192 }), late), handed);
  // The instance that generates gave up after 128 tokens, and computed the rest itself.
  const some = { ...NONE, handoff: 128, computed: 92 };
  assert.deepEqual(sourcesOf(220, reportOf(92, { handoff: 128 }), late), some);
  assert.deepEqual(sourcesOf(220, undefined, late), { ...NONE, handoff: 96 });
});

test('without a prefill every token is where the instance that generates found it', () => {
  const found = { device: 64, dram: 32, instance: 96, storeDram: 128, storeDisk: 160 };
  const { device, dram, instance } = found;
  const expected = { ...NONE, device, dram, instance, store_dram: 128, store_disk: 160, computed: 20 };
  assert.deepEqual(sourcesOf(500, reportOf(20, found)), expected);
});

test('before its first report a request has only the tokens that its prefills have computed', () => {
  assert.deepEqual(sourcesOf(500, undefined), NONE);
  assert.deepEqual(sourcesOf(500, undefined, { computed: 128 }), { ...NONE, handoff: 128 });
});

test('an instance of an earlier version, which reports no sources, has its fetches counted as another instance’s', () => {
  const report = { ...reportOf(20, { device: 60, storeDram: 420 }), sources: null };
  assert.deepEqual(sourcesOf(500, report), { ...NONE, device: 60, instance: 420, computed: 20 });
});

test('the sources add up to the prompt, and agree with the counts of tokens, whatever the instances report', () => {
  const random = new Random(40);
  for (let i = 0; i < 1_000; i++) {
    const some = (): number => random.below(300);
    const found = { device: some(), dram: some(), instance: some(), storeDram: some(), storeDisk: some() };
    const counts = new CountsFold();
    counts.apply({ kind: 'read', facts: { promptTokens: 500 } });
    for (let attempt = 1; attempt <= 2; attempt++) {
      counts.apply(placedAt('d1'));
      const tokens = { expectedTokens: some(), computedTokens: some() };
      const outcome = random.chance(1, 2) ? 'running' : 'finished';
      counts.apply({ kind: 'prefill', attempt, index: 0, entry: { ...prefillAt('p1', 0), ...tokens, outcome } });
      const report = reportOf(some(), { ...found, handoff: some() });
      counts.apply({ kind: 'firstToken', attempt, report, isFirst: attempt === 1 });
    }
    const { sources, tokens } = counts;
    const values = Object.values(sources) as number[];
    assert(values.every((count) => count >= 0));
    assert.equal(
      values.reduce((total, count) => total + count, 0),
      500,
    );
    assert.equal(sources.handoff + sources.computed, tokens.computed);
  }
});
