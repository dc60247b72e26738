/** The generation that a body asks for: its parameters checked against the model, and the samples of its prompt. */
import { given } from '../../../shared/base/given.ts';
import type { TokenConstraintMessage } from '../../../shared/protocol/messages.ts';
import { packSeed } from '../../../shared/protocol/packing.ts';
import { neutralSampling, type Sampling } from '../../../shared/protocol/request.ts';
import type { Generation } from '../relay/generation.ts';
import { SampleGroup } from '../relay/sample_group.ts';
import type { ApiContext } from './api_context.ts';
import type { Caller } from '../access/caller.ts';
import type { GenerationBody } from './generation_body.ts';
import { ParameterFailure } from './parameter_failure.ts';

/** A request that asks for tokens. */
interface GenerationRequest {
  readonly context: Pick<ApiContext, 'facts' | 'newSeed' | 'maxModelLen' | 'output'>;
  readonly scope: Asking;
  readonly body: GenerationBody;
}

/**
 * Converts a body into a generation and checks its length against the model's limits. `maxTokens` undefined means as many as fit;
 * `param` is the field that holds the prompt.
 * @throws ParameterFailure when the prompt is empty, the context too long, or `min_tokens` above the maximum.
 */
export function generationOf(
  { context, scope, body }: GenerationRequest,
  promptTokens: Uint32Array,
  maxTokens: number | undefined,
  param: string,
  constraint: TokenConstraintMessage | null,
): Generation {
  const { facts, newSeed, maxModelLen, output } = context;
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
  const { isEchoing = false } = body;
  const stopTexts = output.stopTokens(body.stops);
  const numPromptTop = Math.max(body.numPromptLogprobs, isEchoing ? numLogprobs : -1);
  return {
    promptTokens,
    isPromptOnly,
    isOpenEnded: maxTokens === undefined,
    origin: originOf(scope, body),
    request: {
      promptLength: numPrompt,
      maxLength,
      promptLogprobs: numPromptTop + 1,
      constraint,
      // With `ignore_eos` only the tokens that the request names itself end it.
      stopTokenIds: [...(body.isIgnoringEos ? [] : facts.eosTokenIds), ...body.stopTokenIds, ...stopTexts.keys()],
      sampling: toSampling(body, facts, newSeed),
      scope: body.cacheScope,
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

/** Who asks: a RequestScope, of which a look-up has only the caller. */
interface Asking {
  readonly caller: Caller;
  readonly client?: string;
}

/** Returns whose request it is, and with which priority it is served: above other tenants only as far as its caller may. */
export function originOf(
  { caller, client = '' }: Asking,
  { priority }: Pick<GenerationBody, 'priority'>,
): Generation['origin'] {
  const { tenant, weight = 1, maxPriority = 0 } = caller;
  const precedence = Math.max(0, Math.min(maxPriority, -priority));
  return {
    tenant,
    priority,
    ...(tenant === '' && client !== '' ? { client } : {}),
    ...(weight === 1 ? {} : { weight }),
    ...(precedence > 0 ? { precedence } : {}),
  };
}

/**
 * Returns `count` samples of a prompt: sample i is the generation with its seed plus i. The others report nothing
 * of the prompt.
 */
export function samplesOf(first: Generation, count: number, id: string): [Generation, ...Generation[]] {
  if (count === 1) return [first];
  const group = new SampleGroup(id, count);
  const { request } = first;
  const { seedLow, seedHigh } = request.sampling;
  const seed = (BigInt(seedHigh) << 32n) | BigInt(seedLow);
  const others = Array.from({ length: count - 1 }, (_, i): Generation => ({
    ...first,
    group,
    promptLogprobs: undefined,
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
  { sampling, numChoices, numSamples }: GenerationBody,
  { defaults, vocabSize }: ApiContext['facts'],
  newSeed: () => number,
): Sampling {
  const seed = sampling.seedLow === undefined ? packSeed(BigInt(newSeed())) : {};
  const wish: Sampling = { ...neutralSampling, temperature: 1, ...seed, ...given(defaults), ...given(sampling) };
  return {
    ...wish,
    // A top_k of the whole vocabulary cuts nothing: 0 turns it off.
    topK: wish.topK < 0 || wish.topK >= vocabSize ? 0 : wish.topK,
    // The best samples are those of the highest log-probability, whether or not the client asks for it.
    numLogprobs: numSamples > numChoices ? Math.max(0, wish.numLogprobs) : wish.numLogprobs,
  };
}
