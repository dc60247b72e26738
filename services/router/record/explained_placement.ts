/** Predictions and prices of a request as `/api/requests` shows them. */
import type {
  Compared,
  PlacementPart,
  PlacementPrediction,
  PredictionParts,
  TargetParts,
} from '../../../shared/protocol/request_detail.ts';
import type { Explanation, Prediction, Rejection } from '../../../shared/placement/policy.ts';
import { inThousandths, rounded } from './report_json.ts';

/** Predicted and real values of one request; undefined where one of both is not known. */
export interface ComparedValues {
  /** Milliseconds from the decision to the first token. */
  readonly ttftMs: Compared | undefined;
  /** Mean milliseconds between two tokens. */
  readonly tbtMs: Compared | undefined;
  /** Prompt tokens that were not computed for the request. */
  readonly cachedTokens: Compared | undefined;
  readonly outputTokens: Compared | undefined;
}

/** Returns predicted and real values for JSON; null where one of both is not known. */
export function comparedJson({ ttftMs, tbtMs, cachedTokens, outputTokens }: ComparedValues): PredictionParts {
  const both = (value: Compared | undefined): Compared | null =>
    value ? { predicted: inThousandths(value.predicted), real: inThousandths(value.real) } : null;
  return {
    ttft_ms: both(ttftMs),
    tbt_ms: both(tbtMs),
    cached_tokens: both(cachedTokens),
    output_tokens: both(outputTokens),
  };
}

/** Returns why a request was refused for its targets, for JSON; null where it was not. */
export function rejectionJson(rejection: Rejection | undefined): TargetParts['rejection'] {
  if (!rejection) return null;
  return {
    reason: rejection.reason,
    retry_after_ms: rounded(rejection.retryAfterMs),
    prediction: predictionJson(rejection.prediction),
  };
}

/** Returns the prices and alternatives of a placement for JSON. */
export function explanationJson(explanation: Explanation): PlacementPart {
  const { policy, priceMs, parts, prediction, alternatives } = explanation;
  return {
    policy: policy ?? null,
    is_late: explanation.isLate ?? false,
    price_ms: rounded(priceMs),
    price_parts_ms: partsJson(parts),
    prediction: predictionJson(prediction),
    alternatives: alternatives.map((other) => ({
      decode: other.decode,
      prefill: other.prefill ?? null,
      ...(other.second === undefined ? {} : { second_prefill: other.second }),
      matched_blocks: other.run,
      queue_length: other.queueLength,
      price_ms: rounded(other.priceMs),
      price_parts_ms: partsJson(other.parts),
      prediction: predictionJson(other.prediction),
    })),
  };
}

function partsJson(parts: Explanation['parts']): Record<string, number | null> | null {
  if (!parts) return null;
  return Object.fromEntries(Object.entries(parts).map(([name, ms]) => [name, rounded(ms)]));
}

function predictionJson(prediction: Prediction | undefined): PlacementPrediction | null {
  if (!prediction) return null;
  const { ttftMs, waitMs, tbtMs, totalMs, cachedTokens } = prediction;
  return {
    ttft_ms: rounded(ttftMs),
    wait_ms: rounded(waitMs),
    tbt_ms: rounded(tbtMs),
    total_ms: rounded(totalMs),
    cached_tokens: cachedTokens,
  };
}
