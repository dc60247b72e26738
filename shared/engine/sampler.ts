/**
 * Turns a request's sampling options into sample parameters (defined in kernels/sampling.ts), and derives the logit adjustments of
 * the next token from a sequence's tokens so far.
 *
 * Penalties follow vLLM: repetition over prompt and output, presence and frequency over output. Reported log-probabilities are those
 * of the raw logits.
 */
import { MAX_CANDIDATES, type DeviceSampleParams, type SampleResult } from '../../kernels/device.ts';
import {
  FORBIDDEN,
  IN_PROMPT,
  minWeightOf,
  penaltiesOf,
  scaleOf,
  fixedLogitOf,
  type SampleParams,
  type Penalties,
} from '../../kernels/sampling.ts';
import type { SampledMessage } from '../protocol/messages.ts';
import type { Request, Sampling } from '../protocol/request.ts';
import { randomAt } from './philox.ts';

/** Most alternatives that a request may ask for per token. */
export const MAX_ALTERNATIVES = MAX_CANDIDATES;

/** A token list, with the prompt length and the stop tokens of its request. */
export interface Context extends Pick<Request, 'promptLength' | 'stopTokenIds'> {
  readonly tokens: ArrayLike<number>;
}

/** Fields of the sampling by what reads them. */
type PenaltyFields = Pick<Sampling, 'presencePenalty' | 'frequencyPenalty' | 'repetitionPenalty'>;
type DistributionFields = Pick<Sampling, 'temperature' | 'topP' | 'topK' | 'minP' | 'seedLow' | 'seedHigh'>;
type AdjustmentFields = PenaltyFields & Pick<Sampling, 'biasTokens' | 'biasValues' | 'minTokens'>;
type ReportFields = Pick<Sampling, 'numLogprobs'>;

function hasPenalties({ presencePenalty, frequencyPenalty, repetitionPenalty }: PenaltyFields): boolean {
  return presencePenalty !== 0 || frequencyPenalty !== 0 || repetitionPenalty !== 1;
}

const NO_RANDOM: SampleParams['random'] = [0, 0];

/** Sample parameters of one sequence; only the random number differs from token to token. */
export class SequenceSampling {
  readonly params: Sampling;
  readonly #key: readonly [low: number, high: number];
  readonly #constant: Omit<SampleParams, 'random'>;

  constructor(params: DistributionFields & AdjustmentFields & ReportFields) {
    // Does not compile while the message has a field that none of the types above lists.
    this.params = params;
    const { temperature, topP, topK, minP, presencePenalty, frequencyPenalty, repetitionPenalty } = params;
    const penalties: Penalties | undefined = hasPenalties(params)
      ? penaltiesOf(repetitionPenalty, presencePenalty, frequencyPenalty)
      : undefined;
    this.#key = [params.seedLow, params.seedHigh];
    this.#constant = {
      log2Scale: temperature === 0 ? undefined : scaleOf(Math.LOG2E / temperature),
      minWeight: minWeightOf(minP),
      topK,
      topP: topP >= 1 ? 0 : Math.max(1, Math.min(2 ** 32 - 1, Math.round(topP * 2 ** 32))),
      penalties,
    };
  }

  /** Returns the parameters for sampling the token at this absolute position. */
  at(position: number): SampleParams {
    const { log2Scale, minWeight, topK, topP, penalties } = this.#constant;
    return { log2Scale, minWeight, topK, topP, penalties, random: this.#random(position) };
  }

  /**
   * Returns the parameters for a device that samples the token at `position` into `slot`. Builds one object without copies, because
   * this runs for every token.
   */
  requestAt(
    position: number,
    slot: number,
    biasPage: number | undefined,
    countsPage: number | undefined,
    allowedTokens: Uint32Array | undefined,
  ): DeviceSampleParams {
    const { log2Scale, minWeight, topK, topP, penalties } = this.#constant;
    const random = this.#random(position);
    return { log2Scale, minWeight, topK, topP, penalties, random, slot, biasPage, countsPage, allowedTokens };
  }

  #random(position: number): SampleParams['random'] {
    return this.#constant.log2Scale ? randomAt(this.#key, position) : NO_RANDOM;
  }
}

const NOTHING: readonly (readonly [number, number])[] = [];

/** Logit biases and token counts for a sequence's next sample, from logit bias, penalties and min_tokens; updated token by token. */
export class LogitAdjustments {
  bias: Int32Array<ArrayBuffer> | undefined;
  counts: Uint32Array<ArrayBuffer> | undefined;
  readonly #stops: readonly number[];
  readonly #biases: ReadonlyMap<number, number>;
  /** Position from which on stop tokens may be sampled. */
  readonly #stopsFrom: number;
  #hasStops: boolean;

  /** Builds the arrays that the parameters need, of `vocab` values each. */
  constructor(params: AdjustmentFields, { tokens, promptLength, stopTokenIds }: Context, vocab: number) {
    const { biasTokens, biasValues } = params;
    this.#biases = new Map(biasTokens.map((token, i) => [token, fixedLogitOf(biasValues[i] ?? 0)]));
    this.#stopsFrom = promptLength + params.minTokens;
    this.#stops = stopTokenIds.filter((token) => token < vocab);
    this.#hasStops = tokens.length >= this.#stopsFrom;
    // Stop tokens need a bias only while min_tokens forbids them, and only when they are in the vocabulary.
    if (this.#biases.size > 0 || (!this.#hasStops && this.#stops.length > 0)) {
      this.bias = new Int32Array(vocab);
      for (const [token, bias] of this.#biases) if (token < vocab) this.bias[token] = bias;
      if (!this.#hasStops) for (const token of this.#stops) this.bias[token] = FORBIDDEN;
    }
    if (hasPenalties(params)) {
      this.counts = new Uint32Array(vocab);
      const isPromptSeen = params.repetitionPenalty !== 1;
      for (let i = 0; i < tokens.length; i++) {
        if (i >= promptLength) this.counts[tokens[i]!]!++;
        else if (isPromptSeen) this.counts[tokens[i]!]! |= IN_PROMPT;
      }
    }
  }

  /**
   * Returns the bias entries that change with the token at `position`: the stop tokens, once, when min_tokens is reached, or before
   * when the output must end.
   */
  changesAt(position: number, mustEnd: boolean): readonly (readonly [token: number, bias: number])[] {
    if (this.#hasStops || (position < this.#stopsFrom && !mustEnd)) return NOTHING;
    this.#hasStops = true;
    const changes = this.#stops.map((token): [number, number] => [token, this.#biases.get(token) ?? 0]);
    if (this.bias) for (const [token, bias] of changes) this.bias[token] = bias;
    return changes;
  }

  /** Drops the arrays, because the device's pages hold them from here on. */
  forget(): void {
    this.bias = undefined;
    this.counts = undefined;
  }

  /** Counts a token of the output. */
  count(token: number): void {
    if (this.counts) this.counts[token]!++;
  }
}

/** How many of the best logits a device is to return with a token. */
export function numCandidatesOf({ numLogprobs }: ReportFields): number {
  return numLogprobs < 0 ? 0 : Math.max(1, numLogprobs);
}

/** The token at `position`, with the log-probabilities that were asked for; `logit` is the token's own. */
export function sampledToken(
  { numLogprobs }: ReportFields,
  position: number,
  token: number,
  logit: number,
  result: SampleResult,
): SampledMessage {
  if (numLogprobs >= 0) return reportedToken(numLogprobs, position, token, logit, result);
  return { token, position, logprob: NOTHING_ASKED, topTokens: NOTHING_ASKED, topLogprobs: NOTHING_ASKED };
}

const NOTHING_ASKED: readonly number[] = [];

/** A token with its log-probability, and those of the best `numTop`. */
export function reportedToken(
  numTop: number,
  position: number,
  token: number,
  logit: number,
  { candidateIds, candidateLogits, logSumExp }: SampleResult,
): SampledMessage {
  return {
    token,
    position,
    logprob: [logit - logSumExp],
    topTokens: Array.from({ length: numTop }, (_, i) => candidateIds[i] ?? 0),
    topLogprobs: Array.from({ length: numTop }, (_, i) => (candidateLogits[i] ?? NaN) - logSumExp),
  };
}
