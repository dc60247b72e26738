/**
 * Every parameter that the OpenAI API or vLLM documents, by endpoint: what is honoured with its range, what is accepted at its
 * neutral value only, and what changes nothing here. A key that is in none of these tables no document knows.
 */
import { z } from 'zod';
import { constraintFields } from './constraint_wish.ts';
import { isNeutral } from '../../api/neutral_value.ts';
import { biasShape, messagesShape, promptShape, tokensShape } from './parameter_shapes.ts';
import { distributionSchemas, penaltySchemas } from './sampling_parameters.ts';
import { toolFields } from './tools.ts';

/** Schema of a parameter that is accepted at its neutral values only; the error names `what` as the value to send. */
export const only = (neutral: readonly unknown[], what = JSON.stringify(neutral[0])): z.ZodType =>
  z
    .unknown()
    .refine((value) => isNeutral(value, neutral), {
      message: `is not supported; leave it out or set it to ${what}`,
    })
    .optional()
    .meta({ enum: [...neutral, null], description: `Not supported; accepted as ${what}` });

/** Schema of a parameter that changes no output here, whatever its value. */
const hint = z.unknown().optional().meta({ description: 'Changes no output' });
const on = z.boolean().optional();
const MAX_INT = 2 ** 31 - 1;
const MAX_STOPS = 16;
const MAX_STOP_TOKENS = 64;
const MAX_LOGPROBS = 20;
/** Upper bound of the samples of one request, over all its prompts. */
export const MAX_SAMPLES = 256;

const stop = z.string().min(1, 'cannot be an empty string');
const count = z.int().min(1).max(MAX_INT).optional();

/** Names the bounds as vLLM's errors do, in which clients look for them. */
const SEED_BOUNDS = 'a whole number, greater_than_equal -2^63 and less_than_equal 2^63 - 1';

function isSeed(value: bigint): boolean {
  return value === BigInt.asIntN(64, value);
}

/** Parameters of both chat and completions. Of several wrong values in a body, the first in this order is refused. */
export const common = {
  model: z.string().optional(),
  stream: on,
  stream_options: z
    .object({ include_usage: z.boolean().nullish(), continuous_usage_stats: z.boolean().nullish() })
    .optional(),
  ...distributionSchemas,
  // parseJson returns a seed that a double cannot hold as a bigint.
  seed: z
    .preprocess(
      (value) => (Number.isInteger(value) ? BigInt(value as number) : value),
      z.bigint('a whole number from -2^63 to 2^63 - 1').refine(isSeed, SEED_BOUNDS),
    )
    .optional()
    .meta({ type: 'integer' }),
  stop: z
    .union([stop, z.array(stop).max(MAX_STOPS)], `one text, or a list of at most ${MAX_STOPS}, none of them empty`)
    .optional(),
  stop_token_ids: z.array(z.int().nonnegative()).max(MAX_STOP_TOKENS).optional(),
  include_stop_str_in_output: on,
  min_tokens: z.int().min(0).max(MAX_INT).optional(),
  max_tokens: count,
  ...penaltySchemas,
  logit_bias: z.unknown().optional().meta(biasShape),
  return_token_ids: on,
  ignore_eos: on,
  skip_special_tokens: on,
  add_special_tokens: on,
  request_id: z
    .string()
    .regex(/^[\w.:-]{1,128}$/, 'letters, digits and _ . : -, at most 128')
    .optional(),
  n: z.int().min(1).max(MAX_SAMPLES).optional(),
  ...constraintFields,
  use_beam_search: only([false]),
  length_penalty: only([1]),
  priority: z.int().min(-MAX_INT).max(MAX_INT).optional().meta({
    description:
      'Lower first among requests of one tenant: in the queue of an instance, and in the router while instances are full. Who waits rises',
  }),
  spaces_between_special_tokens: only([true]),
  truncate_prompt_tokens: z
    .int()
    .min(-1)
    .max(MAX_INT)
    .refine((count) => count !== 0, '-1 for what fits the context, or a whole number from 1')
    .optional(),
  truncation_side: z.enum(['left', 'right']).optional(),
  prompt_logprobs: z.int().min(0).max(MAX_LOGPROBS).optional(),
  prompt_embeds: only([[]], 'null'),
  logprob_token_ids: only([], 'null'),
  structural_tag: only(['', {}], 'null'),
  return_assistant_tokens_mask: only([false]),
  best_of: z.int().min(1).max(MAX_SAMPLES).optional(),
  guided_decoding_backend: hint,
  guided_whitespace_pattern: hint,
  logits_processors: only([[]]),
  return_tokens_as_token_ids: on,
  return_token_offsets: only([false]),
  routed_experts_prompt_start: only([0]),
  repetition_detection: only([], 'null'),
  thinking_token_budget: only([-1], 'null'),
  stream_interval: only([1]),
  watermarking: only([false]),
  cache_salt: z.string().min(1, 'a text that is not empty').max(1_024).optional(),
  kv_transfer_params: only([], 'null'),
  ec_transfer_params: only([], 'null'),
  vllm_xargs: only([{}]),
  moderation: only([], 'null'),
  user: hint,
  store: hint,
  metadata: hint,
  service_tier: hint,
  prompt_cache_key: hint,
  prompt_cache_options: hint,
  prompt_cache_retention: hint,
  safety_identifier: hint,
  session_id: hint,
  return_mm_kwargs: hint,
  return_prompt_text: only([false]),
};

const templateKwargs = z.record(z.string(), z.unknown()).optional();

/** Chat parameters without effect here, which both endpoints accept at neutral values, or as hints. */
const ofChats = {
  chat_template: only(['']),
  documents: only([[]]),
  tools: only([[], '']),
  tool_choice: only(['none', 'auto']),
  functions: only([[]]),
  function_call: only(['none', 'auto']),
  parallel_tool_calls: hint,
  audio: only([], 'null'),
  prediction: only([], 'null'),
  verbosity: hint,
  include_reasoning: hint,
  web_search_options: only([], 'null'),
  media_io_kwargs: only([{}]),
  mm_processor_kwargs: only([{}]),
};

const chatFields = {
  ...common,
  messages: z.unknown().optional().meta(messagesShape),
  echo: only([false]),
  max_completion_tokens: count,
  logprobs: on,
  top_logprobs: z.int().min(0).max(MAX_LOGPROBS).optional(),
  add_generation_prompt: on,
  continue_final_message: on,
  chat_template_kwargs: templateKwargs,
  reasoning_effort: z.string().optional(),
  modalities: only([['text'], []]),
  ...ofChats,
  ...toolFields,
  include_reasoning: on,
};

const completionFields = {
  ...common,
  prompt: z.unknown().optional().meta(promptShape),
  logprobs: z.int().min(0).max(MAX_LOGPROBS).optional(),
  // Zero requests the prompt alone, with `echo` or `prompt_logprobs`.
  max_tokens: z.int().min(0).max(MAX_INT).optional(),
  echo: on,
  suffix: only(['']),
  ...ofChats,
  // Chat parameters: a prompt has no messages, so only values without effect are accepted.
  add_generation_prompt: only([false, true]),
  continue_final_message: only([false]),
  chat_template_kwargs: only([{}]),
  reasoning_effort: only([], 'null'),
};

const tokenizeFields = {
  model: z.string().optional(),
  prompt: z.string().optional(),
  messages: z.unknown().optional().meta(messagesShape),
  add_special_tokens: on,
  add_generation_prompt: on,
  continue_final_message: on,
  return_token_strs: on,
  chat_template_kwargs: templateKwargs,
  chat_template: only([], 'null'),
  tools: toolFields.tools,
  media_io_kwargs: only([{}]),
  mm_processor_kwargs: only([{}]),
};

const detokenizeFields = { model: z.string().optional(), tokens: z.unknown().optional().meta(tokensShape) };

/** Schema of a chat body: each known parameter with its allowed values. Unknown keys are dropped. */
export const chatSchema = z.object(chatFields);
/** Schema of a completion body, as {@link chatSchema}. */
export const completionSchema = z.object(completionFields);
/** Schema of a `/tokenize` body. */
export const tokenizeSchema = z.object(tokenizeFields);
/** Schema of a `/detokenize` body. */
export const detokenizeSchema = z.object(detokenizeFields);
