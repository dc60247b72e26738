/** Expected length of an answer: what the relay knows of a request becomes features of the length predictor. */
import type { LengthFeatures, LengthPredictor } from '../conductor/length_predictor.ts';
import type { InFlightRequest } from './in_flight_request.ts';

type Features = Pick<InFlightRequest, 'generation' | 'trace' | 'chain' | 'tokens'>;
/** A request before it is placed, with the endpoint that it was sent to, and whether a grammar holds its answer. */
interface Unplaced extends Pick<InFlightRequest, 'generation' | 'chain'> {
  readonly endpoint: string;
  readonly isConstrained: boolean;
}

/** Returns the tokens that the request is expected to generate from now on, at least 1. */
export function expectedTokens(lengths: LengthPredictor, request: Features): number {
  const { generation, tokens, trace } = request;
  const numDone = tokens.length - generation.promptTokens.length;
  if (generation.isPromptOnly) return 1;
  const predicted = lengths.predict(featuresOf(placed(request)));
  // Only the first prediction is compared with the answer: later ones know a part of it.
  if (numDone === 0 && trace.record.expected.outputTokens === undefined)
    trace.emit({ kind: 'expected', outputTokens: predicted });
  return Math.max(1, Math.round(predicted) - numDone);
}

/** Returns the tokens that a request which is only looked up would be expected to generate, at least 1. */
export function expectedAtStart(lengths: LengthPredictor, request: Unplaced): number {
  return request.generation.isPromptOnly ? 1 : Math.max(1, Math.round(lengths.predict(featuresOf(request))));
}

/** Learns from the answer of a request that has ended in any way; one without any token teaches nothing. */
export function learnLength(lengths: LengthPredictor, request: Features): void {
  const { generation, tokens, trace } = request;
  const outputTokens = tokens.length - generation.promptTokens.length;
  if (outputTokens === 0 || generation.isPromptOnly) return;
  const outcome = trace.record.counts.attempts.at(-1)?.outcome;
  const isCut = outputTokens >= maxTokensOf(request) || (outcome !== 'finished' && outcome !== 'stopped');
  lengths.learn(featuresOf(placed(request)), outputTokens, isCut);
}

function maxTokensOf({ generation }: Pick<Features, 'generation'>): number {
  return Math.max(1, generation.request.maxLength - generation.promptTokens.length);
}

function placed({ generation, chain, trace }: Features): Unplaced {
  const { endpoint } = trace.record;
  return { generation, chain, endpoint, isConstrained: Boolean(generation.request.constraint) };
}

function featuresOf(request: Unplaced): LengthFeatures {
  const { generation, chain, endpoint, isConstrained } = request;
  return {
    tenant: generation.origin.tenant,
    kind: `${endpoint}${isConstrained ? ' constrained' : ''}`,
    // Prompts of one application begin with the same block.
    template: chain.keys.subarray(0, 2).join(','),
    promptTokens: generation.promptTokens.length,
    maxTokens: maxTokensOf(request),
  };
}
