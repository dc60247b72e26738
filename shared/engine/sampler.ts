/**
 * What sampling is: pure functions on the CPU. A device that samples plain cases itself agrees with them.
 *
 *   raw logits ─► bias ─► penalties ─► no stop token before min_tokens ─► (greedy: the best; ties to the smaller id)
 *                                  └─► ÷ temperature ─► min_p ─► top_k ─► top_p ─► inverse CDF at philox(seed, position)
 *
 * Penalties as vLLM has them: repetition over prompt and output, presence and frequency over output. Reported
 * log-probabilities are those of the raw logits.
 */
import { MAX_CANDIDATES, type SampleRequest, type SampleResult } from '../../kernels/device.ts';
import { uniformAt } from './philox.ts';

export interface SamplingParams {
  /** 0 is greedy. */
  readonly temperature: number;
  readonly topP: number;
  /** 0 is all. */
  readonly topK: number;
  readonly minP: number;
  readonly presencePenalty: number;
  readonly frequencyPenalty: number;
  readonly repetitionPenalty: number;
  readonly logitBias: readonly (readonly [token: number, bias: number])[];
  readonly seed: number;
  /** Alternatives reported with each token; -1 reports no log-probability at all. */
  readonly numLogprobs: number;
  /** Before so many output tokens none of the context's stop tokens is sampled. */
  readonly minTokens: number;
}

export interface SampledToken {
  readonly token: number;
  /** Present when asked for: ln p of the token, and of the best ones, descending. */
  readonly logprob?: number;
  readonly top?: readonly (readonly [token: number, logprob: number])[];
}

/** The tokens so far; those from `promptLength` on are output. */
export interface Context {
  readonly tokens: ArrayLike<number>;
  readonly promptLength: number;
  readonly stopTokenIds: readonly number[];
}

type Adjustment = ReadonlyMap<number, (logit: number) => number>;

/** What is wanted of a row, wherever that is. */
export type Wanted = Omit<SampleRequest, 'row'>;

/** What the device must return so that {@link sample} can decide exactly. */
export function sampleRequest(params: SamplingParams, context: Context): Wanted {
  const adjusted = [...adjustments(params, context).keys()];
  const isGreedy = params.temperature === 0;
  // The winner is an adjusted token, or the best of those that are not: it is among the best (adjusted + 1).
  const numNeeded = adjusted.length + (isGreedy ? 1 : params.topK);
  const numCandidates = Math.max(numNeeded, params.numLogprobs, 1);
  const isRowNeeded = (!isGreedy && params.topK === 0) || numCandidates > MAX_CANDIDATES;
  return {
    numCandidates: isRowNeeded ? Math.max(1, params.numLogprobs) : numCandidates,
    askedTokens: isRowNeeded ? [] : adjusted,
    isFullRowWanted: isRowNeeded,
  };
}

/** `position` is the absolute position the token will have. */
export function sample(params: SamplingParams, context: Context, request: Wanted, result: SampleResult): SampledToken {
  const raw = rawLogits(request, result);
  const adjust = adjustments(params, context);
  const scored: [token: number, logit: number][] = [];
  for (const [token, logit] of raw) scored.push([token, adjust.get(token)?.(logit) ?? logit]);
  const token = params.temperature === 0 ? best(scored) : draw(params, scored, context.tokens.length);
  if (params.numLogprobs < 0) return { token };
  const logprobOf = (logit: number): number => logit - result.logSumExp;
  return {
    token,
    logprob: logprobOf(raw.get(token) ?? NaN),
    top: Array.from({ length: params.numLogprobs }, (_, i): [number, number] => [
      result.candidateIds[i] ?? 0,
      logprobOf(result.candidateLogits[i] ?? NaN),
    ]),
  };
}

function rawLogits(request: Wanted, result: SampleResult): Map<number, number> {
  const raw = new Map<number, number>();
  if (result.fullRow) {
    result.fullRow.forEach((logit, token) => raw.set(token, logit));
    return raw;
  }
  result.candidateIds.forEach((token, i) => raw.set(token, result.candidateLogits[i] ?? NaN));
  request.askedTokens.forEach((token, i) => raw.set(token, result.askedLogits[i] ?? NaN));
  return raw;
}

/** Per token that bias or penalties touch: its new logit. */
function adjustments(params: SamplingParams, { tokens, promptLength, stopTokenIds }: Context): Adjustment {
  const { presencePenalty, frequencyPenalty, repetitionPenalty } = params;
  const bias = new Map(params.logitBias);
  const outputCounts = new Map<number, number>();
  const seen = new Set<number>();
  if (repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0) {
    for (let i = repetitionPenalty === 1 ? promptLength : 0; i < tokens.length; i++) {
      const token = tokens[i] ?? 0;
      seen.add(token);
      if (i >= promptLength) outputCounts.set(token, (outputCounts.get(token) ?? 0) + 1);
    }
  }
  const adjust = new Map<number, (logit: number) => number>();
  for (const token of new Set([...bias.keys(), ...seen])) {
    const count = outputCounts.get(token) ?? 0;
    adjust.set(token, (logit) => {
      let value = logit + (bias.get(token) ?? 0);
      if (seen.has(token)) value = value > 0 ? value / repetitionPenalty : value * repetitionPenalty;
      return value - frequencyPenalty * count - (count > 0 ? presencePenalty : 0);
    });
  }
  if (tokens.length - promptLength < params.minTokens) {
    for (const token of stopTokenIds) adjust.set(token, () => -Infinity);
  }
  return adjust;
}

function best(scored: readonly (readonly [number, number])[]): number {
  let [winner, highest] = [-1, -Infinity];
  for (const [token, logit] of scored) {
    if (winner < 0 || logit > highest || (logit === highest && token < winner)) [winner, highest] = [token, logit];
  }
  return winner;
}

function draw(params: SamplingParams, scored: [number, number][], position: number): number {
  const { temperature, topP, topK, minP, seed } = params;
  const highest = scored.reduce((max, [, logit]) => Math.max(max, logit), -Infinity);
  let weighted = scored.map(([token, logit]): [number, number] => [token, Math.exp((logit - highest) / temperature)]);
  // A token that cannot be is none, whatever rounding says of the last one's share.
  weighted = weighted.filter(([, weight]) => weight > 0 && weight >= minP);
  // Where nothing is cut any order will do, as long as it is the same for everyone: that of ids.
  const isCut = topK > 0 || topP < 1;
  weighted.sort(isCut ? (a, b) => b[1] - a[1] || a[0] - b[0] : (a, b) => a[0] - b[0]);
  if (topK > 0) weighted = weighted.slice(0, topK);
  if (topP < 1) weighted = nucleus(weighted, topP);
  let rest = uniformAt(seed, position) * weighted.reduce((sum, [, weight]) => sum + weight, 0);
  for (const [token, weight] of weighted) {
    rest -= weight;
    if (rest < 0) return token;
  }
  return weighted.at(-1)?.[0] ?? best(scored);
}

/** The smallest head whose probability reaches topP; never empty. */
function nucleus(weighted: [number, number][], topP: number): [number, number][] {
  const limit = topP * weighted.reduce((sum, [, weight]) => sum + weight, 0);
  let sum = 0;
  const end = weighted.findIndex(([, weight]) => (sum += weight) >= limit);
  return end < 0 ? weighted : weighted.slice(0, end + 1);
}
