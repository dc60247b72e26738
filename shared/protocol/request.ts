/**
 * A client's request to the engines for one prompt, as penstock.proto declares it. The API makes one and the sampler reads it; the
 * code between lists none of its fields again.
 */
import { noScope } from '../kv/format.ts';
import { zeroSampling } from './generated/zero_sampling.ts';
import type { RequestMessage, SamplingMessage } from './messages.ts';

/** Sampling parameters of a request; penstock.proto describes each field. */
export type Sampling = SamplingMessage;

/** A complete request; over the wire, `sampling` and `scope` may be missing. */
export interface Request extends RequestMessage {
  readonly sampling: Sampling;
  readonly scope: NonNullable<RequestMessage['scope']>;
}

/**
 * Every parameter at its neutral value: greedy, no penalty, no bias, no log-probabilities. It is zero, as which a field is read that a
 * router of an earlier version does not send, but for these three.
 */
export const neutralSampling: Sampling = { ...zeroSampling, topP: 1, repetitionPenalty: 1, numLogprobs: -1 };

/** A request for `maxLength` tokens at most, `promptLength` of them the prompt, with every other parameter neutral. */
export function neutralRequest(promptLength: number, maxLength: number): Request {
  return {
    promptLength,
    maxLength,
    stopTokenIds: [],
    sampling: neutralSampling,
    scope: noScope,
    promptLogprobs: 0,
    constraint: null,
  };
}

/** Returns the request of a message, with neutral values for missing parts; undefined when the message has no request. */
export function requestOf(message: RequestMessage | null): Request | undefined {
  return message
    ? { ...message, sampling: message.sampling ?? neutralSampling, scope: message.scope ?? noScope }
    : undefined;
}

/** Returns the greatest number of alternatives requested for any token of the prompt or of the output. */
export function mostAlternatives({ sampling, promptLogprobs }: Request): number {
  return Math.max(sampling.numLogprobs, promptLogprobs - 1, 0);
}
