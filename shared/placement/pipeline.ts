/**
 * Two prefill instances that compute one long prompt in a pipeline: they take its chunks by turns, and each begins a layer of its chunk
 * when the other's blocks of that layer have come.
 *
 *   held ───► chunk 0 ───► chunk 1 ───► chunk 2 ───► chunk 3
 *             second       prefill      second       prefill: the last one is its own, and the decode instance fetches from it
 */
import type { Source } from '../protocol/messages.ts';
import { deviceMatchOf, fetchPlan } from './fetch_plan.ts';
import { upTo } from './placement.ts';
import type { ClusterSnapshot, InstanceSnapshot, Placement, Question } from './policy.ts';

/** The two instances of a pipeline, and how they divide a prompt. */
export interface PipelineTerms {
  /** The instance that computes the last chunk. */
  readonly prefill: InstanceSnapshot;
  readonly second: InstanceSnapshot;
  /** Blocks of a chunk, which both compute in one step. */
  readonly chunkBlocks: number;
  /** Milliseconds after which one of them no longer waits for the other, and computes all that is left. */
  readonly patienceMs: number;
  /** Held blocks up to here are fetched; undefined: every held block is fetched. */
  readonly fetchTo?: number | undefined;
}

/** Returns a placement with a prefill instance, whose blocks are now computed by turns with a second one. */
export function inPipeline(
  placement: Placement,
  { numBlocks }: Pick<Question, 'numBlocks'>,
  { ranges: held, blockSize }: Pick<ClusterSnapshot, 'ranges' | 'blockSize'>,
  { prefill, second, chunkBlocks, patienceMs, fetchTo }: PipelineTerms,
): Placement {
  const first = Math.ceil(placement.heldTokens / blockSize);
  const numChunks = Math.ceil((numBlocks - first) / chunkBlocks);
  const chunks = Array.from({ length: numChunks }, (_, i) => {
    const start = first + i * chunkBlocks;
    return { start, end: Math.min(start + chunkBlocks, numBlocks), isComputing: true };
  });
  const isOfSecond = (i: number): boolean => (numChunks - 1 - i) % 2 === 1;
  const chunksOf = ({ address }: InstanceSnapshot, isSecond: boolean): Source[] =>
    chunks.flatMap((chunk, i) => (isOfSecond(i) === isSecond ? [{ address, ...chunk }] : []));
  const heldBy = ({ id }: InstanceSnapshot): readonly Source[] =>
    upTo(fetchPlan(held, deviceMatchOf(held, id)), fetchTo);
  const ofSecond = chunksOf(second, true);
  return {
    ...placement,
    prefillSources: [...placement.prefillSources, ...ofSecond],
    second: {
      prefill: second.id,
      sources: [...heldBy(second), ...chunksOf(prefill, false)],
      tokens: ofSecond.reduce((sum, { start, end }) => sum + end - start, 0) * blockSize,
      patienceMs,
    },
  };
}
