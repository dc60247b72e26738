/** Work that a placement brings to its instances, for the time until their heartbeats count it. */
import { pairsOf } from '../protocol/instance_work.ts';
import type { PlacedWork } from './open_placements.ts';
import type { Placement, Question } from './policy.ts';

/** Work that one placement brings to each of its instances. */
export interface PlacementWork {
  readonly decode: PlacedWork;
  /** Undefined where the placement has no prefill instance. */
  readonly prefill: PlacedWork | undefined;
  /** Present for a pipeline. */
  readonly second?: PlacedWork | undefined;
}

/**
 * Returns the work of a placement: the prefill instance computes the full blocks that nobody holds, the decode instance the rest and
 * then the output. Without a prefill instance the decode instance computes all; an embedding generates nothing. A second prefill
 * instance computes some of the blocks, which are taken to be spread evenly over the prompt.
 */
export function placedWork(
  { prefill, second, heldTokens }: { readonly prefill: unknown } & Pick<Placement, 'heldTokens' | 'second'>,
  { numTokens, numBlocks, isEmbedding }: Pick<Question, 'numTokens' | 'numBlocks' | 'isEmbedding'>,
  blockSize: number,
): PlacementWork {
  const numFull = numBlocks * blockSize;
  const start = Math.min(heldTokens, numTokens);
  const hasPrefill = prefill !== undefined;
  const filled = promptsOf(start, Math.max(start, numFull));
  const secondShare = second && filled.tokens > 0 ? second.tokens / filled.tokens : 0;
  const blocks = { sequences: 0, contextTokens: 0, blocks: numBlocks };
  return {
    decode: {
      prompts: promptsOf(hasPrefill ? Math.max(start, numFull) : start, numTokens),
      coming: {
        ...(isEmbedding ? { sequences: 0, contextTokens: 0 } : { sequences: 1, contextTokens: numTokens }),
        // The block of the first output token is needed too.
        blocks: Math.ceil((numTokens + (isEmbedding ? 0 : 1)) / blockSize),
      },
    },
    prefill: hasPrefill ? { prompts: shareOf(filled, 1 - secondShare), coming: blocks } : undefined,
    ...(second ? { second: { prompts: shareOf(filled, secondShare), coming: blocks } } : {}),
  };
}

/** Returns the work of a further sample, which starts from the blocks of another one on its instance. */
export function sampleWork(numTokens: number): PlacedWork {
  return {
    prompts: { tokens: 0, pairs: 0, sequences: 0 },
    coming: { sequences: 1, contextTokens: numTokens, blocks: 1 },
  };
}

function shareOf({ tokens, pairs, sequences }: PlacedWork['prompts'], share: number): PlacedWork['prompts'] {
  return { tokens: tokens * share, pairs: pairs * share, sequences };
}

/** Returns the rows [start, end) of one prompt as work. */
function promptsOf(start: number, end: number): PlacedWork['prompts'] {
  const tokens = end - start;
  return { tokens, pairs: pairsOf(start, tokens), sequences: tokens > 0 ? 1 : 0 };
}
