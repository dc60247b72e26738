/** The price of one placement with its parts, and the weights that they have. */
import type { Prediction } from '../policy.ts';
import type { InstancePrice } from './instance_price.ts';
import type { PipelineSecond } from './pipeline_price.ts';

/** Weights of the parts of a price. */
export interface PriceWeights {
  /** Price of a millisecond of the answer, from the first token to the last. */
  readonly answer: number;
  /** Price of a millisecond that one generating sequence loses: without a target for the time between tokens, and with one, which engines keep. */
  readonly streams: number;
  readonly pacedStreams: number;
  /** Price of a millisecond of an instance's time, for each prompt that waits on an average instance. */
  readonly queued: number;
  /** Price of a millisecond beyond a target. */
  readonly late: number;
  /** Share of the TTFT target from which on a first token counts as late. */
  readonly soon: number;
  /** Price, in milliseconds, of using an instance for the other role's part. */
  readonly roleMs: number;
}

/**
 * Weights of the default policy: the time of this request, what others lose (half of that where a target bounds it), and ten times what goes
 * beyond a fifth of the target.
 * Chosen by replays of Mooncake's conversation trace near the load that 16 instances can just sustain.
 */
export const defaultWeights: PriceWeights = {
  answer: 1,
  streams: 1,
  pacedStreams: 0.5,
  queued: 1,
  late: 10,
  soon: 0.2,
  roleMs: 10,
};

/** One placement with the parts of its price, in ms. */
export interface PricedPlacement {
  readonly decode: InstancePrice;
  readonly prefill: InstancePrice | undefined;
  /** Present when the prompt is computed in a pipeline. */
  readonly second: PipelineSecond | undefined;
  /** Held blocks up to here are fetched. */
  readonly fetchTo: number;
  /** Tokens that are not computed for the request. */
  readonly cachedTokens: number;
  /** Sum of the parts ({@link partsOf}). */
  readonly priceMs: number;
  /** Predicted time to the first token, the waiting included. */
  readonly ttftMs: number;
  /** Time of `ttftMs` that the request waits for others: for device blocks, and for prompts that came before. */
  readonly waitMs: number;
  /** Price of the time from the first token to the last. */
  readonly answerMs: number;
  /** Predicted time between two tokens; no part of the price. */
  readonly tbtMs: number;
  /** Price of what others lose by the answer. */
  readonly streamsMs: number;
  /** Price of what others lose by the prompt. */
  readonly promptMs: number;
  /** Price of the time beyond targets. */
  readonly lateMs: number;
  /** Price of using instances for the other role's part. */
  readonly roleMs: number;
}

/** Returns the parts of a price by name, in ms. */
export function partsOf(priced: PricedPlacement): Readonly<Record<string, number>> {
  const { ttftMs, waitMs, answerMs, streamsMs, promptMs, lateMs, roleMs } = priced;
  return {
    ttft: ttftMs,
    of_which_wait: waitMs,
    answer: answerMs,
    lost_by_answer: streamsMs,
    lost_by_prompt: promptMs,
    late: lateMs,
    role: roleMs,
  };
}

/** Returns what a placement is expected to give. */
export function predictionOf(
  { ttftMs, waitMs, tbtMs, answerMs, cachedTokens }: PricedPlacement,
  { answer }: Pick<PriceWeights, 'answer'>,
): Prediction {
  return { ttftMs, waitMs, tbtMs, totalMs: ttftMs + (answer > 0 ? answerMs / answer : 0), cachedTokens };
}
