/** Options of an engine. */
import type { KvSpec } from '../kv/kv_spec.ts';
import type { EngineEvent } from './engine_events.ts';
import type { OrderLimits } from './queued_sequences.ts';
import type { QueueOrderName } from './queue_order.ts';
import type { StepTerms } from './scheduler.ts';
import type { StepTimes } from './step_budget.ts';
import type { SubmissionOptions } from './step_submission.ts';
import type { Grammars } from './token_constraint.ts';

/** Sizes, limits and callbacks of an engine. */
export interface EngineOptions {
  readonly spec: KvSpec;
  readonly numBlocks: number;
  readonly chunkTokens: number;
  readonly maxNumSeqs: number;
  readonly maxWaiting: number;
  /** Blocks of a prompt between two saved states, for a model with recurrent layers; {@link stateIntervalOf} by default. */
  readonly stateInterval?: number | undefined;
  /** Order of the queue; first come first by default. */
  readonly queueOrder?: QueueOrderName | undefined;
  /** Whether tenants share the engine fairly, above the order of the queue (fair_order.ts); true by default. */
  readonly fairShares?: boolean | undefined;
  /** Called with the milliseconds that the rows of a sequence take of a step when they are submitted. */
  readonly onCharged?: OrderLimits['onCharged'];
  /**
   * Most milliseconds of a step while sequences wait for tokens: prompt rows may not lengthen it further. 0: two and a half times the
   * duration of a step without prompt rows.
   */
  readonly stepMs: number;
  /** Most milliseconds between two tokens of a sequence, which `stepMs` overrides; 0 by default: not stated. */
  readonly tbtTargetMs?: number | undefined;
  /** Times of the warm-up's steps, with which the pace of steps starts. */
  readonly firstSteps?: readonly StepTimes[];
  readonly emit: (event: EngineEvent) => void;
  readonly exportEarly?: SubmissionOptions['exportEarly'];
  readonly keepBlocks?: StepTerms['keepBlocks'];
  readonly hasDeliveries?: StepTerms['hasDeliveries'];
  /** Opens the grammars of outputs; without it, requests with a grammar are refused. */
  readonly grammars?: Grammars | undefined;
  /**
   * Called when `step` has something to do although nothing was submitted: a group of samples has waited long enough, or a mask of
   * allowed tokens has come, or failed to.
   */
  readonly onReady?: () => void;
}

/** Most blocks between two saved states of a prompt, unless told otherwise. */
const MAX_STATE_INTERVAL = 16;

/**
 * Returns the blocks between two saved states of a prompt: a power of two, so that a state takes about four times the bytes of the blocks
 * before it, and at most MAX_STATE_INTERVAL blocks are computed again because no state was saved.
 */
export function stateIntervalOf({ state, payloadBytes }: KvSpec): number {
  const blocks = (state?.payloadBytes ?? 0) / Math.max(1, payloadBytes) / 4;
  return Math.min(MAX_STATE_INTERVAL, 2 ** Math.max(0, Math.ceil(Math.log2(Math.max(1, blocks)))));
}
