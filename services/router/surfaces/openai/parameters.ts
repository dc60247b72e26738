/**
 * Request bodies of the OpenAI API, as vLLM extends it. A documented parameter is honoured, or accepted at its neutral value (and
 * `null` always), or refused by name with what to do. A key that no document knows is ignored and named to the client.
 *
 * Pure functions of bytes and limits, so that a thread of its own can run them: what a client sends is judged here and nowhere
 * else.
 */
import type { z } from 'zod';
import { packSeed } from '../../../../shared/protocol/packing.ts';
import { readBias, readIds, readMessages, readPrompts } from '../../api/body_parts.ts';
import type { ParsedBody } from '../../api/body_kind.ts';
import type { GenerationBody } from '../../api/generation_body.ts';
import { check } from './body_check.ts';
import { readConstraint } from './constraint_wish.ts';
import { limitsOf, ParameterFailure, priorityOf, scopeOf, type BodyLimits } from '../../api/parameter_failure.ts';
import type { common } from './parameter_schemas.ts';
import { readTools, NO_TOOLS, type ToolWish } from './tools.ts';
import type { TemplateInput } from '../../../../shared/text/template_input.ts';
import { chatSchema, completionSchema, detokenizeSchema, MAX_SAMPLES, tokenizeSchema } from './parameter_schemas.ts';
import { samplingFieldsOf } from './sampling_parameters.ts';

/** Characters of all stop strings of a request together. The limit exists because each token's text is searched for every stop string. */
const MAX_STOP_CHARACTERS = 2_048;
/** Biases of one request, over all its prompts: each prompt's call carries them. */
const MAX_BIASES = 2 ** 19;
const NO_SEED = { seedLow: undefined, seedHigh: undefined };

/** Parsed parameters that chat and completions share. */
export interface CommonBody extends GenerationBody {
  readonly hasUsage: boolean;
  readonly hasContinuousUsage: boolean;
  readonly isReturningIds: boolean;
}

/** Parsed body of `/v1/chat/completions`. */
export interface ChatBody extends CommonBody {
  /** Messages and arguments of the chat template; no messages once they are encoded. */
  readonly template: TemplateInput;
  readonly tools: ToolWish;
  /** Whether the answer shows the reasoning (`include_reasoning`). */
  readonly includesReasoning: boolean;
}

/** Parsed body of `/v1/completions`, with one prompt or several as text or token ids. */
export interface CompletionBody extends CommonBody {
  readonly prompts: readonly (string | Uint32Array)[];
  readonly isEchoing: boolean;
  readonly hasSpecialTokens: boolean;
}

/** Parsed body of `/tokenize`: either `text` or `template` is set. */
export interface TokenizeBody extends ParsedBody {
  readonly text: string | undefined;
  readonly template: TemplateInput | undefined;
  readonly hasSpecialTokens: boolean;
  readonly hasStrings: boolean;
}

/** Parsed body of `/detokenize`. */
export interface DetokenizeBody extends ParsedBody {
  readonly tokens: Uint32Array;
}

type Common = Partial<z.infer<z.ZodObject<typeof common>>>;

function readCommon(body: Common, ignored: string[], numLogprobs: number, limits: BodyLimits): CommonBody {
  if (body.stream_options && !body.stream) {
    throw new ParameterFailure('stream_options: is only allowed when stream is true', 'stream_options');
  }
  if (body.prompt_logprobs !== undefined && body.stream) {
    throw new ParameterFailure('prompt_logprobs: are not available when stream is true', 'prompt_logprobs');
  }
  const outside = (body.stop_token_ids ?? []).filter((id) => id >= limits.vocabSize);
  if (outside.length > 0) {
    throw new ParameterFailure(
      `stop_token_ids: ${outside.join(', ')} are outside the vocabulary of ${limits.vocabSize}`,
      'stop_token_ids',
    );
  }
  const stops = [body.stop ?? []].flat();
  if (stops.reduce((sum, { length }) => sum + length, 0) > MAX_STOP_CHARACTERS) {
    throw new ParameterFailure(`stop: over ${MAX_STOP_CHARACTERS} characters in all`, 'stop');
  }
  const { tokens: biasTokens, values: biasValues } = readBias(body.logit_bias, limits.vocabSize);
  const hasUsage = body.stream_options?.include_usage === true;
  return {
    model: body.model,
    isStream: body.stream ?? false,
    hasUsage,
    hasContinuousUsage: hasUsage && body.stream_options?.continuous_usage_stats === true,
    sampling: {
      ...samplingFieldsOf(body),
      ...(body.seed === undefined ? NO_SEED : packSeed(body.seed)),
      biasTokens,
      biasValues,
      numLogprobs,
      minTokens: body.min_tokens ?? 0,
    },
    ...readSamples(body),
    stops,
    isStopIncluded: body.include_stop_str_in_output ?? false,
    stopTokenIds: body.stop_token_ids ?? [],
    maxTokens: body.max_tokens,
    isIgnoringEos: body.ignore_eos ?? false,
    isSkippingSpecial: body.skip_special_tokens ?? true,
    isReturningIds: body.return_token_ids ?? false,
    isNamingIds: body.return_tokens_as_token_ids ?? false,
    truncation:
      body.truncate_prompt_tokens === undefined
        ? undefined
        : { numTokens: body.truncate_prompt_tokens, side: body.truncation_side ?? 'left' },
    numPromptLogprobs: body.prompt_logprobs ?? -1,
    constraint: readConstraint(body, limits),
    requestId: body.request_id,
    priority: priorityOf(body.priority, limits, ignored),
    cacheScope: scopeOf(body.cache_salt, limits),
    ignored,
  };
}

function readSamples(body: Common): Pick<CommonBody, 'numChoices' | 'numSamples'> {
  const numChoices = body.n ?? 1;
  const numSamples = body.best_of ?? numChoices;
  if (numSamples < numChoices)
    throw new ParameterFailure(`best_of: ${numSamples} is less than n, ${numChoices}`, 'best_of');
  if (numSamples > numChoices && body.stream)
    throw new ParameterFailure('best_of: over n is not available when stream is true', 'best_of');
  return { numChoices, numSamples };
}

/** @throws ParameterFailure for more samples of so many prompts than the tenant of the request may have in one */
function refuseManySamples(
  { n, best_of: bestOf }: Pick<Common, 'n' | 'best_of'>,
  { numSamples }: Pick<CommonBody, 'numSamples'>,
  numPrompts: number,
  { maxSamples = Infinity }: BodyLimits,
): void {
  if (numSamples * numPrompts <= maxSamples) return;
  const name = numSamples === 1 ? 'prompt' : (bestOf ?? 0) > (n ?? 1) ? 'best_of' : 'n';
  const prompts = numPrompts === 1 ? '' : ` for each of ${numPrompts} prompts`;
  throw new ParameterFailure(
    `${name}: ${numSamples === 1 ? 'a sample' : `${numSamples} samples`}${prompts} are more than ${maxSamples}, the limit of a request of this API key`,
    name,
  );
}

function refuseMinOverMax({ sampling: { minTokens }, maxTokens }: Pick<CommonBody, 'sampling' | 'maxTokens'>): void {
  if (maxTokens !== undefined && minTokens > maxTokens) {
    throw new ParameterFailure(`min_tokens: ${minTokens} is more than max_tokens, ${maxTokens}`, 'min_tokens');
  }
}

function templateOf(
  body: Pick<
    z.infer<typeof chatSchema>,
    'add_generation_prompt' | 'continue_final_message' | 'chat_template_kwargs' | 'add_special_tokens'
  > & { readonly reasoning_effort?: string | undefined },
  messages: TemplateInput['messages'],
  { tools }: ToolWish,
): TemplateInput {
  const isContinuing = body.continue_final_message ?? false;
  if (isContinuing && body.add_generation_prompt) {
    throw new ParameterFailure(
      'continue_final_message: cannot be true together with add_generation_prompt; set one of them to false',
      'continue_final_message',
    );
  }
  return {
    messages,
    addGenerationPrompt: body.add_generation_prompt ?? !isContinuing,
    continueFinalMessage: isContinuing,
    addSpecialTokens: body.add_special_tokens ?? false,
    kwargs: {
      ...(body.reasoning_effort === undefined ? {} : { reasoning_effort: body.reasoning_effort }),
      ...body.chat_template_kwargs,
    },
    tools,
  };
}

function refuseManyBiases({ sampling: { biasTokens } }: CommonBody, numSamples: number): void {
  if (biasTokens.length * numSamples <= MAX_BIASES) return;
  throw new ParameterFailure(
    `logit_bias: ${biasTokens.length} entries for ${numSamples} prompts and samples are more than ${MAX_BIASES}`,
    'logit_bias',
  );
}

/** @throws ParameterFailure for whatever is not allowed, by name. */
export function readChatBody(bytes: Uint8Array, all: BodyLimits): ChatBody {
  const { body, ignored } = check(chatSchema, bytes, all, 'chat');
  return chatBodyOf(body, readMessages(body.messages, limitsOf(all, body.model).maxModelLen, ignored), ignored, all);
}

/** Parameters of a chat, checked each for itself. */
export type ChatFields = Partial<z.infer<typeof chatSchema>>;

/**
 * Returns a chat of checked parameters and messages, for a body of any form. @throws ParameterFailure for parameters that do not go
 * together, by their names at chats
 */
export function chatBodyOf(
  body: ChatFields,
  messages: TemplateInput['messages'],
  ignored: string[],
  all: BodyLimits,
): ChatBody {
  const limits = limitsOf(all, body.model);
  if ((body.top_logprobs ?? 0) > 0 && !body.logprobs) {
    throw new ParameterFailure('top_logprobs: needs logprobs to be true', 'top_logprobs');
  }
  const tools = readTools(body);
  const read = {
    ...readCommon(body, ignored, body.logprobs ? (body.top_logprobs ?? 0) : -1, limits),
    maxTokens: body.max_completion_tokens ?? body.max_tokens,
    template: templateOf(body, messages, tools),
    tools,
    includesReasoning: body.include_reasoning ?? true,
  };
  refuseMinOverMax(read);
  refuseManySamples(body, read, 1, limits);
  refuseManyBiases(read, read.numSamples);
  return read;
}

/** @throws ParameterFailure for whatever is not allowed, by name. */
export function readCompletionBody(bytes: Uint8Array, all: BodyLimits): CompletionBody {
  const { body, ignored } = check(completionSchema, bytes, all, 'completion');
  const limits = limitsOf(all, body.model);
  const read = {
    ...readCommon(body, ignored, body.logprobs ?? -1, limits),
    // A prompt that is cut may be longer than the context.
    prompts: readPrompts(body.prompt, body.truncate_prompt_tokens ? { ...limits, maxModelLen: Infinity } : limits),
    hasSpecialTokens: body.add_special_tokens ?? true,
    isEchoing: body.echo ?? false,
  };
  if (read.maxTokens === 0 && !read.isEchoing && read.numPromptLogprobs < 0) {
    throw new ParameterFailure(
      'max_tokens: 0 goes with echo or prompt_logprobs; without them at least 1',
      'max_tokens',
    );
  }
  refuseMinOverMax(read);
  refuseManySamples(body, read, read.prompts.length, limits);
  const numSamples = read.numSamples * read.prompts.length;
  if (read.numSamples > 1 && numSamples > MAX_SAMPLES) {
    const name = body.best_of === undefined ? 'n' : 'best_of';
    throw new ParameterFailure(
      `${name}: ${read.numSamples} for each of ${read.prompts.length} prompts are more than ${MAX_SAMPLES} in all`,
      name,
    );
  }
  refuseManyBiases(read, numSamples);
  return read;
}

/** @throws ParameterFailure for whatever is not allowed, by name. */
export function readTokenizeBody(bytes: Uint8Array, all: BodyLimits): TokenizeBody {
  const { body, ignored } = check(tokenizeSchema, bytes, all);
  const limits = limitsOf(all, body.model);
  if ((body.prompt === undefined) === (body.messages === undefined)) {
    throw new ParameterFailure('prompt: give either prompt or messages', 'prompt');
  }
  const tools = body.tools === undefined ? NO_TOOLS : readTools({ tools: body.tools });
  return {
    model: body.model,
    text: body.prompt,
    template:
      body.messages === undefined
        ? undefined
        : templateOf(body, readMessages(body.messages, limits.maxModelLen, ignored), tools),
    hasSpecialTokens: body.add_special_tokens ?? true,
    hasStrings: body.return_token_strs ?? false,
    ignored,
  };
}

/** @throws ParameterFailure for whatever is not allowed, by name. */
export function readDetokenizeBody(bytes: Uint8Array, all: BodyLimits): DetokenizeBody {
  const { body, ignored } = check(detokenizeSchema, bytes, all);
  const limits = limitsOf(all, body.model);
  const { tokens } = body;
  if (!Array.isArray(tokens) && !(tokens instanceof Uint32Array))
    throw new ParameterFailure('tokens: a list of token ids', 'tokens');
  return { model: body.model, tokens: readIds(tokens as readonly unknown[] | Uint32Array, limits, 'tokens'), ignored };
}
