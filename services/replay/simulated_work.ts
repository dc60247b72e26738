/** The work of a simulated instance, as its heartbeats carry it. */
import { MAX_ENDS, pairsOf, type InstanceWork } from '../../shared/protocol/instance_work.ts';
import type { BlockPool } from '../../shared/engine/block_pool.ts';
import type { EngineSizes } from './replay_engine.ts';
import type { SimulatedSequence } from './simulated_sequence.ts';
import type { SimulatedSteps } from './simulated_steps.ts';

/** State of an instance from which its work is counted. */
export interface WorkState {
  readonly pool: BlockPool;
  readonly steps: SimulatedSteps;
  readonly sizes: EngineSizes;
  readonly waiting: readonly SimulatedSequence[];
  readonly prompts: readonly SimulatedSequence[];
  readonly generating: readonly SimulatedSequence[];
  /** Tokens of KV that one step of those that generate reads. */
  readonly contextTokens: number;
  /** Returns how many leading blocks of a waiting sequence are on the device, or computed by a sequence before it. */
  readonly hitBlocks: (sequence: SimulatedSequence) => number;
}

/** Returns the work of an instance now. */
export function workOf(engine: WorkState): InstanceWork {
  const { pool, steps, sizes, generating } = engine;
  const { hardware, blockTokens } = sizes;
  const prompts = { tokens: 0, pairs: 0, sequences: 0 };
  const coming = { sequences: 0, contextTokens: 0 };
  let waitingBlocks = 0;
  const add = (sequence: SimulatedSequence, rows: number): void => {
    if (rows > 0) {
      prompts.tokens += rows;
      prompts.pairs += pairsOf(sequence.length - rows, rows);
      prompts.sequences++;
    }
    if (sequence.options.kind === 'prefill') return;
    coming.sequences++;
    coming.contextTokens += sequence.length;
  };
  for (const sequence of engine.waiting) {
    add(sequence, waitingRows(sequence, engine));
    waitingBlocks += Math.ceil(sequence.length / blockTokens);
  }
  for (const sequence of engine.prompts) add(sequence, sequence.promptRows);
  return {
    step: steps.step,
    chunkTokens: sizes.chunkTokens,
    maxNumSeqs: hardware.maxRows,
    pacedStepMs: steps.pacedMs,
    prompts,
    coming,
    generating: { sequences: generating.length, contextTokens: engine.contextTokens },
    numBlocks: pool.numBlocks,
    freeBlocks: pool.numAvailable,
    waitingBlocks,
    blockBytes: hardware.kvBytesPerToken * blockTokens,
    promptsMs: prompts.tokens * steps.step.rowMs + prompts.pairs * steps.step.pairMs,
    ends: endsOf(engine),
  };
}

/** Returns the rows that a waiting sequence will have, less those of blocks that it will hit. */
function waitingRows(sequence: SimulatedSequence, { sizes, hitBlocks }: WorkState): number {
  const { length, promptRows, options } = sequence;
  // Blocks are looked up only where hits of all of them would leave fewer rows.
  if (length - options.hashes.length * sizes.blockTokens >= promptRows) return promptRows;
  return Math.min(promptRows, length - hitBlocks(sequence) * sizes.blockTokens);
}

function endsOf({ generating, steps }: WorkState): InstanceWork['ends'] {
  if (generating.length === 0) return [];
  const tokenMs = steps.tokenMs;
  const left = generating
    .map(({ options, generated, blocks }) => ({
      ms: Math.max(1, options.expectedTokens - generated) * tokenMs,
      blocks: blocks.length,
    }))
    .sort((a, b) => a.ms - b.ms);
  const ends: { ms: number; sequences: number; blocks: number }[] = [];
  let blocks = 0;
  for (const [i, one] of left.entries()) {
    blocks += one.blocks;
    if (Math.floor((i * MAX_ENDS) / left.length) === Math.floor(((i + 1) * MAX_ENDS) / left.length)) continue;
    ends.push({ ms: one.ms, sequences: i + 1, blocks });
  }
  return ends;
}
