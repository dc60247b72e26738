/** Times on one instance, as its own fit of step times and its work predict them. */
import { pairsOf, stepMs, type InstanceWork } from '../../protocol/instance_work.ts';
import type { InstanceSnapshot } from '../policy.ts';

/**
 * Ratio of a step with prompt rows to one without, assumed while an instance reports no paced step time (AUTO_FACTOR in
 * shared/engine/step_budget.ts).
 */
const UNPACED_FACTOR = 2.5;
/** Rows of prompts that a paced step has at least, as ROW_UNIT in shared/engine/prompt_time.ts. */
const LEAST_ROWS = 4;
/** Least share of a paced step that its prompts get, however many sequences generate with them. */
const MIN_PROMPT_SHARE = 0.02;

/** Predicted times of one instance for one question. */
export class InstancePrice {
  readonly instance: InstanceSnapshot;
  readonly work: InstanceWork;
  /** Milliseconds of a step in which only the sequences that generate now have rows; 0 when none does. */
  readonly tokenMs: number;
  /** Milliseconds of a step with rows of prompts; 0 when nothing generates. */
  readonly pacedMs: number;
  /** Milliseconds until the prompts that are there are computed. */
  readonly queueMs: number;

  constructor(instance: InstanceSnapshot, work: InstanceWork) {
    this.instance = instance;
    this.work = work;
    const { generating, prompts, step, pacedStepMs } = work;
    const { sequences } = generating;
    this.tokenMs =
      sequences === 0
        ? 0
        : stepMs(step, { rows: sequences, pairs: 0, contextTokens: generating.contextTokens, sequences });
    this.pacedMs = sequences === 0 ? 0 : Math.max(pacedStepMs || UNPACED_FACTOR * this.tokenMs, this.tokenMs);
    this.queueMs = this.promptMs(prompts.tokens, prompts.pairs);
  }

  /** Milliseconds that rows of prompts add to steps, without what each step takes anyway. */
  rowsMs(rows: number, pairs: number): number {
    return this.work.step.rowMs * rows + this.work.step.pairMs * pairs;
  }

  /** Milliseconds in which rows of prompts are computed, with the sequences that generate here now. */
  promptMs(rows: number, pairs: number): number {
    if (rows <= 0) return 0;
    const rowsMs = this.rowsMs(rows, pairs);
    if (this.pacedMs === 0) return Math.ceil(rows / this.work.chunkTokens) * this.work.step.constantMs + rowsMs;
    const leastMs = LEAST_ROWS * this.work.step.rowMs;
    const leastShare = Math.max(leastMs / (this.tokenMs + leastMs) || 0, MIN_PROMPT_SHARE);
    const share = Math.max(1 - this.tokenMs / this.pacedMs, leastShare);
    // Steps of which prompts get the least share take longer than they are paced.
    const mixedMs = share < 1 ? Math.max(this.pacedMs, this.tokenMs / (1 - share)) : this.pacedMs;
    // Prompts that end within a step lengthen only that step.
    return rowsMs < share * mixedMs ? this.tokenMs + rowsMs : rowsMs / share;
  }

  /** Milliseconds of the prompt's rows after `from` tokens, `count` of them. */
  ownMs(from: number, count: number): number {
    return this.promptMs(count, pairsOf(from, count));
  }

  /** Milliseconds that a sequence of `contextTokens` adds to each step in which it has a row. */
  addedMs(contextTokens: number): number {
    const { rowMs, contextMs, sequenceMs } = this.work.step;
    return rowMs + sequenceMs + contextMs * contextTokens;
  }

  /** Milliseconds between two tokens of a sequence of `contextTokens` that generates alone. */
  leastGapMs(contextTokens: number): number {
    return this.work.step.constantMs + this.addedMs(contextTokens);
  }

  /**
   * Gap between two tokens, in ms, for a sequence of `contextTokens` placed here now: with the sequences that have not ended by `startMs`
   * and those that will generate. `prompts`: whether prompt rows share the steps.
   */
  gapMs(contextTokens: number, prompts: boolean, startMs = 0): number {
    const { step, generating, coming, pacedStepMs, ends } = this.work;
    const numEnded = Math.min(ends.findLast(({ ms }) => ms <= startMs)?.sequences ?? 0, generating.sequences);
    const numLeft = generating.sequences - numEnded;
    const sequences = numLeft + coming.sequences + 1;
    const leftContext = numLeft === 0 ? 0 : (generating.contextTokens * numLeft) / generating.sequences;
    const context = leftContext + coming.contextTokens + contextTokens;
    const tokenMs = stepMs(step, { rows: sequences, pairs: 0, contextTokens: context, sequences });
    return prompts ? Math.max(pacedStepMs || UNPACED_FACTOR * tokenMs, tokenMs) : tokenMs;
  }

  /** Milliseconds until the device has `blocks` for one more sequence; Infinity when no end is expected that frees them. */
  roomMs(blocks: number): number {
    const { freeBlocks, waitingBlocks, ends, maxNumSeqs, generating, coming, prompts } = this.work;
    const lack = blocks + waitingBlocks - freeBlocks;
    const tooMany = generating.sequences + Math.max(coming.sequences, prompts.sequences) + 1 - maxNumSeqs;
    if (lack <= 0 && tooMany <= 0) return 0;
    const end = ends.find((one) => one.blocks >= lack && one.sequences >= tooMany);
    return end?.ms ?? Infinity;
  }
}
