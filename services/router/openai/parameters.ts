/**
 * Request bodies of the OpenAI API, as vLLM extends it. A parameter is honoured, or accepted at its neutral value, or refused
 * by name; nothing is ignored.
 */
import { z } from 'zod';
import { Failure } from '../../../shared/base/failure.ts';
import type { GenerationDefaults } from '../../../shared/model/model_folder.ts';
import type { SamplingMessage } from '../../../shared/protocol/messages.ts';

/** Not supported but at this value. */
const only = (neutral: readonly unknown[], what = JSON.stringify(neutral[0])): z.ZodType =>
  z
    .unknown()
    .refine((value) => neutral.some((allowed) => JSON.stringify(allowed) === JSON.stringify(value)), {
      message: `is not supported; leave it out or set it to ${what}`,
    })
    .optional();

const tokenId = z.int().nonnegative();

/** The sum of what both endpoints take. */
const common = {
  model: z.string().nullish(),
  stream: z.boolean().nullish(),
  stream_options: z
    .strictObject({ include_usage: z.boolean().nullish(), include_obfuscation: z.literal(false).nullish() })
    .nullish(),
  temperature: z.number().min(0).max(2).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  top_k: z.int().min(-1).nullish(),
  min_p: z.number().min(0).max(1).nullish(),
  seed: z.int().nullish(),
  stop: z.union([z.string().min(1), z.array(z.string().min(1)).max(16)]).nullish(),
  stop_token_ids: z.array(tokenId).max(64).nullish(),
  max_tokens: z.int().min(1).nullish(),
  presence_penalty: z.number().min(-2).max(2).nullish(),
  frequency_penalty: z.number().min(-2).max(2).nullish(),
  repetition_penalty: z.number().gt(0).max(10).nullish(),
  logit_bias: z.record(z.string().regex(/^\d+$/, 'keys are token ids'), z.number().min(-100).max(100)).nullish(),
  return_token_ids: z.boolean().nullish(),
  ignore_eos: z.boolean().nullish(),
  user: z.string().nullish(),
  n: only([1, null]),
  response_format: only([{ type: 'text' }, null]),
  store: only([false, null]),
  metadata: z.record(z.string(), z.string()).nullish(),
  service_tier: only(['auto', 'default', null]),
};

const textPart = z.strictObject({ type: z.literal('text', 'only text parts are supported'), text: z.string() });
const message = z.strictObject({
  role: z.enum(['system', 'developer', 'user', 'assistant']),
  content: z.union([z.string(), z.array(textPart)], 'only text is supported: a string, or parts of type "text"'),
  name: only([null], 'null'),
  refusal: only([null]),
  tool_calls: only([[], null]),
  function_call: only([null]),
  audio: only([null]),
  annotations: only([[], null]),
});

const chatSchema = z.strictObject({
  ...common,
  messages: z.array(message).min(1),
  max_completion_tokens: z.int().min(1).nullish(),
  logprobs: z.boolean().nullish(),
  top_logprobs: z.int().min(0).max(20).nullish(),
  tools: only([[], null]),
  tool_choice: only(['none', 'auto', null]),
  functions: only([[], null]),
  function_call: only(['none', 'auto', null]),
  parallel_tool_calls: z.boolean().nullish(),
  modalities: only([['text'], null]),
  audio: only([null]),
  prediction: only([null]),
  reasoning_effort: only([null]),
  web_search_options: only([null]),
  add_generation_prompt: only([true, null]),
});

const completionSchema = z.strictObject({
  ...common,
  prompt: z.union(
    [
      z.string(),
      z.array(z.string()).min(1).max(256),
      z.array(tokenId).min(1),
      z.array(z.array(tokenId).min(1)).min(1).max(256),
    ],
    'a text, a list of token ids, or 1 to 256 of either; none empty',
  ),
  logprobs: z.int().min(0).max(20).nullish(),
  echo: only([false, null]),
  best_of: only([1, null]),
  suffix: only(['', null], 'null'),
  add_special_tokens: z.boolean().nullish(),
});

export type ChatBody = z.infer<typeof chatSchema>;
export type CompletionBody = z.infer<typeof completionSchema>;

/** A refused parameter: which one, for the `param` of the error object. */
export class ParameterFailure extends Failure {
  readonly param: string | null;

  constructor(message: string, param: string | null) {
    super('invalid_request', message);
    this.param = param;
  }
}

function reader<T>(schema: z.ZodType<T>): (body: unknown) => T {
  return (body) => {
    const result = schema.safeParse(body);
    if (result.success) return result.data;
    const [issue] = result.error.issues;
    if (issue?.code === 'unrecognized_keys') {
      const param = [...issue.path, issue.keys[0]].join('.');
      throw new ParameterFailure(`${param} is not supported`, param);
    }
    const param = issue?.path.join('.') ?? null;
    throw new ParameterFailure(`${param || 'the body'}: ${issue?.message ?? 'invalid'}`, param || null);
  };
}

function streaming<T extends { stream?: boolean | null | undefined; stream_options?: unknown }>(
  read: (body: unknown) => T,
): (body: unknown) => T {
  return (body) => {
    const parsed = read(body);
    if (parsed.stream_options && !parsed.stream) {
      throw new ParameterFailure('stream_options: is only allowed when stream is true', 'stream_options');
    }
    return parsed;
  };
}

export const readChatBody = streaming(reader(chatSchema));
export const readCompletionBody = streaming(reader(completionSchema));

export const readTokenizeBody = reader(
  z.strictObject({
    model: z.string().nullish(),
    prompt: z.string().optional(),
    messages: z.array(message).min(1).optional(),
    add_special_tokens: z.boolean().nullish(),
    add_generation_prompt: z.boolean().nullish(),
  }),
);

export const readDetokenizeBody = reader(z.strictObject({ model: z.string().nullish(), tokens: z.array(tokenId) }));

/** Parts joined; roles as templates know them. */
export function plainMessages(messages: ChatBody['messages']): { role: string; content: string }[] {
  return messages.map(({ role, content }) => ({
    role: role === 'developer' ? 'system' : role,
    content: typeof content === 'string' ? content : content.map(({ text }) => text).join(''),
  }));
}

/** `seed` is drawn by the caller when the request names none. */
export function toSampling(
  body: Omit<ChatBody | CompletionBody, 'logprobs' | 'messages' | 'prompt'>,
  defaults: GenerationDefaults,
  drawSeed: () => number,
  numLogprobs: number,
  vocabSize: number,
): SamplingMessage {
  const bias = Object.entries(body.logit_bias ?? {}).map(([token, value]): [number, number] => [Number(token), value]);
  const outside = bias.find(([token]) => token >= vocabSize);
  if (outside)
    throw new ParameterFailure(
      `logit_bias: token ${outside[0]} is outside the vocabulary of ${vocabSize}`,
      'logit_bias',
    );
  const topK = body.top_k ?? defaults.topK ?? 0;
  return {
    temperature: body.temperature ?? defaults.temperature ?? 1,
    topP: body.top_p ?? defaults.topP ?? 1,
    topK: Math.max(0, topK),
    minP: body.min_p ?? defaults.minP ?? 0,
    presencePenalty: body.presence_penalty ?? 0,
    frequencyPenalty: body.frequency_penalty ?? 0,
    repetitionPenalty: body.repetition_penalty ?? defaults.repetitionPenalty ?? 1,
    biasTokens: bias.map(([token]) => token),
    biasValues: bias.map(([, value]) => value),
    seed: body.seed ?? drawSeed(),
    numLogprobs,
  };
}
