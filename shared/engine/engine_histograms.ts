/** Histograms of one engine: tokens of its steps, and how long its device blocks stay. */
import { BucketCounts, type BucketState } from '../base/bucket_counts.ts';
import type { Clock } from '../base/clock.ts';
import { iterationBuckets, type ResidencyState } from '../protocol/engine_histograms.ts';
import { BlockResidency } from './block_residency.ts';
import type { StepRows } from './step.ts';
import { tokensOf } from './step_tokens.ts';

/** Counts what steps and device blocks do, since the engine's start. */
export class EngineHistograms {
  /** Follows the blocks of the engine's pool. */
  readonly blocks: BlockResidency;
  readonly #iterationTokens = new BucketCounts(iterationBuckets);

  constructor(numBlocks: number, clock: Clock) {
    this.blocks = new BlockResidency(numBlocks, clock);
  }

  /** Records a step that has returned. One without tokens, such as a copy of blocks, is none to vLLM. */
  stepped(rows: readonly StepRows[]): void {
    const numTokens = tokensOf(rows);
    if (numTokens > 0) this.#iterationTokens.observe(numTokens);
  }

  get iterationTokens(): BucketState {
    return this.#iterationTokens.state;
  }

  /** How long device blocks stay; the same object until that changes. */
  get residency(): ResidencyState {
    return this.blocks.state;
  }
}
