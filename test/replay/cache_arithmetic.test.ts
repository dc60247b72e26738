/** Hits of one cache over a trace: against a naive model, and against published figures when the trace is there. Budget: 30 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { cacheCurve, cacheHits } from '../../services/replay/cache_arithmetic.ts';
import { generateTrace, parseGenerator } from '../../services/replay/trace_generators.ts';
import { readTrace } from '../../shared/trace/trace_reader.ts';
import type { Trace } from '../../shared/trace/trace.ts';
import { builtTrace, conversationTrace, hasConversationTrace } from './traces.ts';

/** Hits by a list in the order of use. */
function naiveHits(trace: Trace, capacity: number): { hitBlocks: number; hitTokens: number } {
  let [used, hitBlocks, hitTokens] = [[] as number[], 0, 0];
  for (let i = 0; i < trace.numRequests; i++) {
    const { hashIds, inputTokens } = trace.requestAt(i);
    for (const [at, id] of hashIds.entries()) {
      if (!used.includes(id)) break;
      hitBlocks++;
      hitTokens += trace.tokensOfBlock(inputTokens, at);
    }
    for (const id of hashIds) used = [...used.filter((one) => one !== id), id].slice(-capacity);
  }
  return { hitBlocks, hitTokens };
}

test('a request hits the blocks before its first missing one, and tokens of partial blocks count as they are', () => {
  const request = (inputTokens: number, hashIds: number[]) => ({
    timestampMs: 0,
    inputTokens,
    outputTokens: 1,
    hashIds,
  });
  const trace = builtTrace([request(10, [0, 1, 2]), request(10, [0, 1, 2]), request(8, [0, 3]), request(4, [0])]);
  assert.deepEqual(cacheHits(trace, Infinity), {
    capacityBlocks: Infinity,
    hitBlocks: 5,
    hitTokens: 10 + 4 + 4,
    blockShare: 5 / 9,
    tokenShare: 18 / 32,
  });
  // Three blocks hold the first request; the third request then evicts block 1.
  assert.equal(cacheHits(trace, 3).hitBlocks, 5);
  // Two hold the ends of chains, which are found after their beginnings only.
  assert.equal(cacheHits(trace, 2).hitBlocks, 1);
});

test.each(['agents', 'zipf', 'multi-turn'])(
  'hits over generated %s are those of a naive model at every capacity',
  (kind) => {
    const trace = generateTrace(parseGenerator(`${kind}:requests=120`));
    for (const capacity of [1, 5, 30, 150, trace.numBlocks]) {
      const { hitBlocks, hitTokens } = cacheHits(trace, capacity);
      assert.deepEqual({ hitBlocks, hitTokens }, naiveHits(trace, capacity), `${kind}, ${capacity} blocks`);
    }
  },
);

test('the curve rises to that of unbounded memory, and ends there', () => {
  const trace = generateTrace(parseGenerator('agents:requests=200'));
  const curve = cacheCurve(trace, [10, 100, 1_000_000]);
  assert.deepEqual(
    curve.map(({ capacityBlocks }) => capacityBlocks),
    [10, 100, Infinity],
  );
  assert(curve[0]!.hitBlocks < curve[1]!.hitBlocks && curve[1]!.hitBlocks <= curve[2]!.hitBlocks);
});

describe.runIf(hasConversationTrace)('Mooncake’s conversation trace', () => {
  test.each([
    [Infinity, 36.6, 37.4],
    [1_000, 4.45, 4.54],
    [3_000, 6.5, 6.63],
    [10_000, 21.1, 21.5],
    [30_000, 32.6, 33.2],
    [50_000, 35.5, 36.2],
    [100_000, 36.4, 37.1],
  ])('with room for %s blocks hits %s percent of blocks and %s percent of tokens', async (capacity, blocks, tokens) => {
    const trace = await readTrace(conversationTrace, { blockTokens: 512 });
    const { blockShare, tokenShare } = cacheHits(trace, capacity);
    assert(Math.abs(100 * blockShare - blocks) < 0.1, `${100 * blockShare} % of blocks`);
    assert(Math.abs(100 * tokenShare - tokens) < 0.1, `${100 * tokenShare} % of tokens`);
  });
});
