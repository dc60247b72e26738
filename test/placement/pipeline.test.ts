/** How two prefill instances divide a prompt, and the work that each of them gets. Budget: 1 s. */
import { expect, test } from 'vitest';
import { inPipeline } from '../../shared/placement/pipeline.ts';
import { placedWork } from '../../shared/placement/placed_work.ts';
import { placementOf } from '../../shared/placement/placement.ts';
import type { HeldSnapshot, Placement } from '../../shared/placement/policy.ts';
import type { Source } from '../../shared/protocol/messages.ts';
import { instance, question } from './snapshots.ts';

const BLOCK = 4;
const [prefill, second] = [instance('p'), instance('q')];

/** A prompt of so many full blocks, of which a store has the first `numHeld`. */
function placed(numBlocks: number, numHeld: number, chunkBlocks: number): Placement {
  const asked = { ...question, numTokens: numBlocks * BLOCK + 1, numBlocks };
  const holder = { id: 's', address: 's:1', isInMemory: true, isOnDevice: false };
  const ranges: HeldSnapshot[] = numHeld > 0 ? [{ start: 0, end: numHeld, holders: [holder] }] : [];
  const terms = { maxSelfCompute: BLOCK, reason: 'the test says so' };
  const placement = placementOf('d', prefill, asked, { ranges, blockSize: BLOCK }, terms);
  return inPipeline(placement, asked, { ranges, blockSize: BLOCK }, { prefill, second, chunkBlocks, patienceMs: 70 });
}

const chunk = (address: string, start: number, end: number): Source => ({ address, start, end, isComputing: true });
const store = (end: number): Source => ({ address: 's:1', start: 0, end, isComputing: false });

test('chunks are computed by turns, the last one by the instance that the decode instance fetches from', () => {
  const { prefillSources, decodeSources, second: other } = placed(20, 3, 5);
  // [3, 8) q, [8, 13) p, [13, 18) q, [18, 20) p
  expect(prefillSources).toEqual([store(3), chunk('q:1', 3, 8), chunk('q:1', 13, 18)]);
  expect(other).toEqual({
    prefill: 'q/e',
    tokens: 10 * BLOCK,
    patienceMs: 70,
    sources: [store(3), chunk('p:1', 8, 13), chunk('p:1', 18, 20)],
  });
  expect(decodeSources).toEqual([store(3), chunk('p:1', 3, 20)]);
  expect(placed(15, 0, 5).prefillSources, 'of three chunks, two are its own').toEqual([chunk('q:1', 5, 10)]);
});

test('every block is computed by one of both, or held', () => {
  for (let numBlocks = 2; numBlocks < 40; numBlocks += 3) {
    for (const chunkBlocks of [1, 4, 7]) {
      for (const numHeld of [0, 1, numBlocks - 1]) {
        const { prefillSources, second: other } = placed(numBlocks, numHeld, chunkBlocks);
        const fetched = [prefillSources, other!.sources].map((sources) =>
          Array.from({ length: numBlocks }, (_, block) =>
            sources.filter(({ start, end }) => start <= block && block < end).map(({ isComputing }) => isComputing),
          ),
        );
        for (let block = 0; block < numBlocks; block++) {
          const [own, others] = fetched.map((by) => by[block]!);
          if (block < numHeld) expect([own, others]).toEqual([[false], [false]]);
          else expect([own!.length, others!.length].sort()).toEqual([0, 1]);
        }
        const numOthers = prefillSources.filter(({ isComputing }) => isComputing);
        expect(other!.tokens).toBe(numOthers.reduce((sum, { start, end }) => sum + end - start, 0) * BLOCK);
      }
    }
  }
});

test('the work of a prompt is divided between both, and each needs room for all blocks', () => {
  const asked = { numTokens: 41, numBlocks: 10, isEmbedding: false };
  const [whole, divided] = [undefined, { prefill: 'q', sources: [], tokens: 8, patienceMs: 1 }].map((other) =>
    placedWork({ prefill: 'p', heldTokens: 8, second: other }, asked, BLOCK),
  );
  expect(whole!.second).toBeUndefined();
  const { prompts } = whole!.prefill!;
  expect(divided!.second!.prompts).toEqual({ tokens: 8, pairs: prompts.pairs / 4, sequences: 1 });
  expect(divided!.prefill!.prompts).toEqual({ tokens: 24, pairs: prompts.pairs * 0.75, sequences: 1 });
  expect(divided!.second!.coming).toEqual(divided!.prefill!.coming);
  expect(divided!.decode).toEqual(whole!.decode);
});
