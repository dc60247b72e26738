/** Shared by chat and completions: model name, sampling, usage, token names, headers. */
import type { SampledMessage, TokenConstraintMessage } from '../../../../shared/protocol/messages.ts';
import { given } from '../../../../shared/base/given.ts';
import { packSeed } from '../../../../shared/protocol/packing.ts';
import { neutralSampling, type Sampling } from '../../../../shared/protocol/request.ts';
import type { Generation } from '../../relay/generation.ts';
import type { LostTokens } from '../../../../shared/protocol/request_detail.ts';
import { RequestCounts } from '../../record/request_counts.ts';
import { SampleGroup } from '../../relay/sample_group.ts';
import type { RequestTrace } from '../../record/request_log.ts';
import type { TokenName } from '../../../../shared/text/text.ts';
import type { ApiContext } from '../../api/api_context.ts';
import { ParameterFailure } from '../../api/parameter_failure.ts';
import type { ChatBody, CompletionBody } from './parameters.ts';

/** Token counts of an answer, in OpenAI's form. */
export interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
  readonly prompt_tokens_details: { readonly cached_tokens: number } & LostTokens;
  /** Absent when the output is not parsed for reasoning. */
  readonly completion_tokens_details?: { readonly reasoning_tokens: number };
}

/**
 * Converts a body into a generation and checks its length against the model's limits. `maxTokens` undefined means as many as fit;
 * `param` is the field that holds the prompt.
 * @throws ParameterFailure when the prompt is empty, the context too long, or `min_tokens` above the maximum.
 */
export function generationOf(
  { facts, newSeed, maxModelLen, output }: ApiContext,
  body: ChatBody | CompletionBody,
  promptTokens: Uint32Array,
  maxTokens: number | undefined,
  param: 'messages' | 'prompt',
  constraint: TokenConstraintMessage | null,
): Generation {
  const mostLength = maxModelLen();
  const numPrompt = promptTokens.length;
  if (numPrompt === 0) throw new ParameterFailure('prompt: it has no tokens', 'prompt');
  const isPromptOnly = maxTokens === 0;
  const numNew = Math.max(1, maxTokens ?? 1);
  if (numPrompt + numNew > mostLength) {
    throw new ParameterFailure(
      `This model's maximum context length is ${mostLength} tokens. However, you requested ${numPrompt + numNew} tokens (${numPrompt} in the ${param}, ${numNew} in the completion). Please reduce the length of the ${param} or completion.`,
      param,
      'context_too_long',
    );
  }
  const maxLength = maxTokens === undefined ? mostLength : numPrompt + numNew;
  const { minTokens, numLogprobs } = body.sampling;
  if (minTokens > Math.max(1, maxLength - numPrompt)) {
    throw new ParameterFailure(
      `min_tokens: ${minTokens} is more than max_tokens allows, ${maxLength - numPrompt}`,
      'min_tokens',
    );
  }
  const isEchoing = 'isEchoing' in body && body.isEchoing;
  const stopTexts = output.stopTokens(body.stops);
  const numPromptTop = Math.max(body.numPromptLogprobs, isEchoing ? numLogprobs : -1);
  return {
    ...{ promptTokens, isPromptOnly, isOpenEnded: maxTokens === undefined },
    counts: new RequestCounts(numPrompt),
    // Tenants are reserved: every request has the empty one.
    origin: { tenant: '', priority: body.priority },
    request: {
      ...{ promptLength: numPrompt, maxLength, promptLogprobs: numPromptTop + 1, constraint },
      // With `ignore_eos` only the tokens that the request names itself end it.
      stopTokenIds: [...(body.isIgnoringEos ? [] : facts.eosTokenIds), ...body.stopTokenIds, ...stopTexts.keys()],
      sampling: toSampling(body, facts, newSeed),
      scope: { adapter: '', salt: body.cacheSalt },
    },
    promptLogprobs: numPromptTop < 0 ? undefined : [],
    text: { stops: body.stops, isStopIncluded: body.isStopIncluded, isSkippingSpecial: body.isSkippingSpecial },
    stopTexts,
    // Like vLLM, every stop token except the model's first end token is reported as the stop reason.
    ownStopTokenIds: [...(body.isIgnoringEos ? [] : facts.eosTokenIds.slice(1)), ...body.stopTokenIds].filter(
      (id) => body.isIgnoringEos || id !== facts.eosTokenIds[0],
    ),
  };
}

/**
 * Returns `count` samples of a prompt: sample i is the generation with its seed plus i. The first one's counts are those of the
 * prompt; the others count output only, and report nothing of the prompt.
 */
export function samplesOf(first: Generation, count: number, id: string): [Generation, ...Generation[]] {
  if (count === 1) return [first];
  const group = new SampleGroup(id, count);
  const { request } = first;
  const { seedLow, seedHigh } = request.sampling;
  const seed = (BigInt(seedHigh) << 32n) | BigInt(seedLow);
  const others = Array.from({ length: count - 1 }, (_, i): Generation => ({
    ...first,
    ...{ group, counts: new RequestCounts(0), promptLogprobs: undefined },
    request: {
      ...request,
      promptLogprobs: 0,
      sampling: { ...request.sampling, ...packSeed(seed + BigInt(i + 1)) },
    },
  }));
  return [{ ...first, group }, ...others];
}

/** Merges sampling parameters: the client's over the model's defaults over OpenAI's. A seed is generated when the client names none. */
function toSampling(
  { sampling, numChoices, numSamples }: ChatBody | CompletionBody,
  { defaults, vocabSize }: ApiContext['facts'],
  newSeed: () => number,
): Sampling {
  const seed = sampling.seedLow === undefined ? packSeed(BigInt(newSeed())) : {};
  const wish: Sampling = { ...neutralSampling, temperature: 1, ...seed, ...given(defaults), ...sampling };
  return {
    ...wish,
    // A top_k of the whole vocabulary cuts nothing: 0 turns it off.
    topK: wish.topK < 0 || wish.topK >= vocabSize ? 0 : wish.topK,
    // The best samples are those of the highest log-probability, whether or not the client asks for it.
    numLogprobs: numSamples > numChoices ? Math.max(0, wish.numLogprobs) : wish.numLogprobs,
  };
}

/**
 * Returns the usage of all prompts of a request; tokens that were not computed for the request count as cached. `part`: for usage during a
 * stream, one choice and how many of its tokens were sent; they replace the output counts of all.
 */
export function usageOf(
  all: readonly RequestCounts[],
  part?: { readonly counts: RequestCounts; readonly numTokens: number },
): Usage {
  const total = (value: (counts: RequestCounts) => number): number =>
    all.reduce((sum, counts) => sum + value(counts), 0);
  const prompt = total(({ promptTokens }) => promptTokens);
  const completion = part?.numTokens ?? total(({ outputTokens }) => outputTokens);
  const outputs = part ? [part.counts] : all;
  const isParsed = outputs.some(({ reasoningTokens }) => reasoningTokens !== undefined);
  const reasoning = outputs.reduce((sum, { reasoningTokens = 0 }) => sum + reasoningTokens, 0);
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    prompt_tokens_details: { cached_tokens: total(({ tokens }) => tokens.cached), ...lostOf(all) },
    ...(isParsed ? { completion_tokens_details: { reasoning_tokens: Math.min(reasoning, completion) } } : {}),
  };
}

/** Returns the lost cache hits of all prompts, with the position of the first of them that has any. */
function lostOf(all: readonly RequestCounts[]): LostTokens {
  const losses = all.map(({ lost }) => lost).filter(({ lost_tokens: numLost = 0 }) => numLost > 0);
  const numLost = losses.reduce((sum, { lost_tokens: own = 0 }) => sum + own, 0);
  return losses[0] ? { ...losses[0], lost_tokens: numLost } : {};
}

/**
 * Returns a look-up of the names of all tokens in the log-probabilities. With `isNamingIds` a token's text is `token_id:N`; without a
 * tokenizer too, and its bytes are unknown.
 */
export async function tokenNames(
  { codec }: ApiContext,
  tokens: readonly SampledMessage[],
  isNamingIds = false,
): Promise<(token: number) => TokenName> {
  if (!codec.hasTokenizer) return idAsName;
  const nameOf = await codec.names(tokens.flatMap(({ token, topTokens }) => [token, ...topTokens]));
  return isNamingIds ? (id) => ({ ...nameOf(id), text: `token_id:${id}` }) : nameOf;
}

function idAsName(id: number): TokenName {
  const name = `token_id:${id}`;
  return { bytes: [], text: name, escaped: '', name, isAdded: false };
}

/**
 * Returns a whole answer as JSON text. The log-probabilities of a choice are text already, made token by token as they arrived:
 * thousands of tokens at once would stop every other stream.
 */
export function answerJson(
  envelope: Readonly<Record<string, unknown>>,
  choices: readonly {
    readonly fields: Readonly<Record<string, unknown>>;
    readonly logprobs: string;
    readonly promptLogprobs?: string;
  }[],
  rest: Readonly<Record<string, unknown>>,
  restJson = '',
): string {
  const inner = (fields: Readonly<Record<string, unknown>>): string => JSON.stringify(fields).slice(1, -1);
  const list = choices.map(
    ({ fields, logprobs, promptLogprobs }) =>
      `{${inner(fields)},"logprobs":${logprobs}${promptLogprobs === undefined ? '' : `,"prompt_logprobs":${promptLogprobs}`}}`,
  );
  return `{${inner(envelope)},"choices":[${list.join()}],${inner(rest)}${restJson}}`;
}

/** Longest value of the `x-penstock-ignored` header, in characters; the rest is cut. */
const MAX_IGNORED_CHARACTERS = 1_024;

/** Returns the `x-penstock-ignored` header with the names of ignored keys; empty when there are none. */
export function ignoredHeaders(ignored: readonly string[]): Record<string, string> {
  if (ignored.length === 0) return {};
  const names = ignored.map((name) => name.replaceAll(/[^\x21-\x2b\x2d-\x7e]/g, '?')).join(', ');
  return { 'x-penstock-ignored': names.slice(0, MAX_IGNORED_CHARACTERS) };
}

/**
 * Headers of a finished answer: request id, a one-line summary of where the request ran (of the first prompt when there are several),
 * and ignored keys.
 */
export function finishedHeaders(trace: RequestTrace, ignored: readonly string[]): Record<string, string> {
  return {
    'x-request-id': trace.names.clientId ?? trace.id,
    'x-penstock-request': trace.header(),
    ...ignoredHeaders(ignored),
  };
}
