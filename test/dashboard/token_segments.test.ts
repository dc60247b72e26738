/** Tokens in segments of one colour, and the sentences about those that were computed. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import type { LookupBody, Miss, TokenSources } from '../../shared/protocol/router_api.ts';
import { missSentence } from '../../services/dashboard/model/miss_sentences.ts';
import {
  holderSegments,
  segmentTexts,
  sourceSegments,
  totalOf,
} from '../../services/dashboard/model/token_segments.ts';

function lookup(total: number, ranges: LookupBody['ranges']): LookupBody {
  return {
    as_of: 0,
    model: 'm',
    block_size: 16,
    texts: null,
    prompt_tokens: total,
    ranges,
    misses: [],
    cached_tokens: 0,
    unplaced: null,
    placements: [],
  };
}

const NONE: TokenSources = { device: 0, dram: 0, instance: 0, store_dram: 0, store_disk: 0, handoff: 0, computed: 0 };

test('the segments of a prompt cover each token once, with what nobody holds between and after', () => {
  const decode = [{ node: 'decode-1', tiers: ['device', 'dram'] }];
  const store = [{ node: 'store-1', tiers: ['disk'] }];
  const { segments, legend } = holderSegments(
    lookup(100, [
      { start: 0, end: 32, held_by: decode },
      { start: 32, end: 48, held_by: decode },
      { start: 64, end: 80, held_by: store },
    ]),
  );
  assert.deepEqual(
    segments.map(({ start, end, label, colour }) => [start, end, label, colour]),
    [
      [0, 48, 'decode-1 (device, host memory)', 1],
      [48, 64, 'not held', 0],
      [64, 80, 'store-1 (disk)', 2],
      [80, 100, 'not held', 0],
    ],
  );
  assert.deepEqual(
    legend.map(({ label, tokens }) => [label, tokens]),
    [
      ['decode-1 (device, host memory)', 48],
      ['not held', 36],
      ['store-1 (disk)', 16],
    ],
  );
});

test('sets of holders beyond the colours share one entry of the legend', () => {
  const ranges = Array.from({ length: 20 }, (_, i) => ({
    start: i * 16,
    end: i * 16 + 16,
    held_by: [{ node: `decode-${i}`, tiers: ['device'] }],
  }));
  const { segments, legend } = holderSegments(lookup(320, ranges));
  assert.equal(segments.length, 20);
  assert.equal(legend.length, 8);
  assert.deepEqual(legend.at(-1), { label: 'other holders', colour: 8, tokens: 13 * 16 });
});

test('computed tokens lie where the misses say, reused ones in the order of their sources', () => {
  const sources = { ...NONE, device: 16, store_disk: 32, handoff: 16, computed: 6 };
  const misses: Miss[] = [
    { start: 64, end: 70, reason: 'tail' },
    { start: 32, end: 48, reason: 'evicted' },
  ];
  assert.equal(totalOf(sources), 70);
  const { segments } = sourceSegments(sources, misses);
  assert.deepEqual(
    segments.map(({ start, end, colour }) => [start, end, colour]),
    [
      [0, 16, 1],
      [16, 32, 5],
      [32, 48, 6],
      [48, 64, 5],
      [64, 70, 0],
    ],
  );
});

test('without reasons that add up, computed tokens are the last ones', () => {
  const sources = { ...NONE, device: 16, computed: 8 };
  for (const misses of [[], [{ start: 0, end: 3, reason: 'evicted' } as const]]) {
    assert.deepEqual(
      sourceSegments(sources, misses).segments.map(({ start, end }) => [start, end]),
      [
        [0, 16],
        [16, 24],
      ],
    );
  }
});

test('a short prompt has the text of each token, the middle of a long segment is left out', () => {
  const segment = { start: 0, end: 3, label: '', colour: 0 };
  assert.deepEqual(segmentTexts([segment], ['a', 'b', 'c'])[0]?.texts, ['a', 'b', 'c']);
  const long = segmentTexts([{ ...segment, end: 5_000 }], Array<string>(5_000).fill('x'))[0]!;
  assert.deepEqual([long.texts.map((text) => text.length), long.hidden], [[300, 300], 4_400]);
});

test('a sentence names the tokens, the node, the tier and the time', () => {
  const miss: Miss = { start: 0, end: 1_024, reason: 'evicted', node: 'decode-1', tier: 'device', at: 60_000 };
  assert.equal(
    missSentence(miss, 100_000),
    "1,024 tokens were evicted from decode-1's device 40 s before the request.",
  );
  assert.equal(
    missSentence({ start: 3, end: 4, reason: 'evicted' }, 0),
    '1 token was evicted from the last node that held them.',
  );
  const reasons = ['never_seen', 'lost', 'other_scope', 'held_elsewhere', 'absent', 'tail'] as const;
  const sentences = reasons.map((reason) => missSentence({ start: 0, end: 2, reason }, 0));
  assert.equal(new Set(sentences).size, reasons.length);
  for (const sentence of sentences) assert.match(sentence, /^2 tokens (were|have|are) .*\.$/);
});
