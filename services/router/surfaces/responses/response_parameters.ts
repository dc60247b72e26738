/** Bodies of `/v1/responses`, read as bodies of a chat and what the answer says besides it. */
import { z } from 'zod';
import { given } from '../../../../shared/base/given.ts';
import { keysOf, picked } from '../../../../shared/base/picked.ts';
import { check } from '../openai/body_check.ts';
import { limitsOf, ParameterFailure, type BodyLimits } from '../../api/parameter_failure.ts';
import { chatSchema, only } from '../openai/parameter_schemas.ts';
import { chatBodyOf, type ChatBody, type ChatFields } from '../openai/parameters.ts';
import { distributionSchemas, penaltySchemas } from '../openai/sampling_parameters.ts';
import { messagesOf, readInput, type ChatItem } from './response_input.ts';
import { inputShape } from './response_shapes.ts';
import { readResponseTools, responseToolFields, type NamedTool } from './response_tools.ts';

const INCLUDABLE = [
  'message.output_text.logprobs',
  'reasoning.encrypted_content',
  'file_search_call.results',
  'web_search_call.results',
  'web_search_call.action.sources',
  'message.input_image.image_url',
  'computer_call_output.output.image_url',
  'code_interpreter_call.outputs',
] as const;
const MAX_METADATA = 16;
const MAX_ID_CHARACTERS = 128;
const MAX_TOP_LOGPROBS = 20;
const MAX_INT = 2 ** 31 - 1;

const format = z.looseObject({ type: z.string(), schema: z.record(z.string(), z.unknown()).nullish() });
const text = z.string().optional();
const hint = z.unknown().optional().meta({ description: 'Changes no output' });

/** Characters of the parameters that an answer repeats, but instructions (P1): they are kept with it, and cost no token of a prompt. */
const MAX_REPEATED = 1 << 20;

/** Parameters that a chat has under the same names; of several wrong values, the first in this order is refused. */
const sameAsChats = [
  'model',
  'stream',
  ...keysOf(distributionSchemas),
  'seed',
  'stop',
  'stop_token_ids',
  'min_tokens',
  'ignore_eos',
  ...keysOf(penaltySchemas),
  'logit_bias',
  'skip_special_tokens',
  'request_id',
  'cache_salt',
  'priority',
  'chat_template_kwargs',
  'structured_outputs',
] as const;

/** Schema of a body: what OpenAI documents, and those parameters of chats that sample. Unknown keys are dropped. */
export const responseSchema = z.object({
  ...picked(chatSchema.shape, sameAsChats),
  ...responseToolFields,
  input: z.unknown().optional().meta(inputShape),
  instructions: text,
  max_output_tokens: z.int().min(1).max(MAX_INT).optional(),
  text: z.looseObject({ format: format.nullish(), verbosity: z.string().nullish() }).optional(),
  reasoning: z.looseObject({ effort: z.string().nullish(), summary: z.string().nullish() }).optional(),
  previous_response_id: z.string().min(1).max(MAX_ID_CHARACTERS).optional(),
  store: z.boolean().optional(),
  metadata: z
    .record(z.string().max(64), z.string().max(512))
    .refine((pairs) => Object.keys(pairs).length <= MAX_METADATA, `at most ${MAX_METADATA} pairs`)
    .optional(),
  include: z.array(z.enum(INCLUDABLE)).optional(),
  top_logprobs: z.int().min(0).max(MAX_TOP_LOGPROBS).optional(),
  truncation: z.enum(['auto', 'disabled']).optional(),
  stream_options: z.looseObject({ include_obfuscation: z.boolean().nullish() }).optional(),
  user: text,
  safety_identifier: text,
  prompt_cache_key: text,
  prompt_cache_options: hint,
  prompt_cache_retention: hint,
  service_tier: hint,
  max_tool_calls: hint,
  client_metadata: hint,
  background: only([false]),
  conversation: only([], 'null'),
  prompt: only([], 'null'),
  context_management: only([[]], 'null'),
  moderation: only([], 'null'),
});

/** Wishes of a request for its answer, besides its chat. */
interface ResponseWish {
  /** Items of the input; empty when they are neither stored nor lack others. */
  readonly items: readonly ChatItem[];
  readonly instructions: string | undefined;
  /** The answer that is continued. */
  readonly previousId: string | undefined;
  /** Whether the conversation has stored parts, which the body only names: its chat has no messages yet. */
  readonly isContinuing: boolean;
  readonly isStored: boolean;
  readonly hasLogprobs: boolean;
  /** The request's tools, by the name of their function. */
  readonly tools: Readonly<Record<string, NamedTool>>;
  /** Path of each tool of the chat in the body. */
  readonly toolPaths: readonly string[];
  /** Fields of the answer that repeat the request. */
  readonly repeated: Readonly<Record<string, unknown>>;
}

/** Parsed body of `/v1/responses`. */
export interface ResponseBody extends ChatBody {
  readonly response: ResponseWish;
}

type Fields = z.infer<typeof responseSchema>;

/** @throws ParameterFailure for whatever is not allowed, by its path in the body */
export function readResponseBody(bytes: Uint8Array, all: BodyLimits): ResponseBody {
  const { body, ignored } = check(responseSchema, bytes, all);
  const tools = readResponseTools(body.tools, body.tool_choice);
  const isStored = body.store ?? true;
  const items = readInput(body.input, limitsOf(all, body.model).maxModelLen, ignored);
  const isContinuing = body.previous_response_id !== undefined || items.some(({ message }) => !message);
  const messages = isContinuing ? [] : messagesOf(items, body.instructions);
  if (!isContinuing && messages.length === 0)
    throw new ParameterFailure('input: a text, or at least one item', 'input');
  const hasLogprobs = (body.include ?? []).includes('message.output_text.logprobs') || (body.top_logprobs ?? 0) > 0;
  const fields = chatFields(body, hasLogprobs);
  const repeated = repeatedOf(body);
  if (JSON.stringify({ ...repeated, instructions: null }).length > MAX_REPEATED) {
    const message = `tools: with the parameters that an answer repeats they are over ${MAX_REPEATED} characters; send fewer`;
    throw new ParameterFailure(message, 'tools');
  }
  try {
    const names = [...ignored, ...tools.ignored];
    return {
      ...chatBodyOf({ ...fields, ...tools.fields }, messages, names, all),
      response: {
        items: isStored || isContinuing ? items : [],
        instructions: body.instructions,
        previousId: body.previous_response_id,
        isContinuing,
        isStored,
        hasLogprobs,
        tools: tools.named,
        toolPaths: tools.paths,
        repeated,
      },
    };
  } catch (error) {
    throw asResponseError(error, tools.paths);
  }
}

/** Returns the parameters of a chat that say the same, but for tools and messages. */
function chatFields(body: Fields, hasLogprobs: boolean): ChatFields {
  const { text: wished, reasoning, truncation, top_logprobs: numTop } = body;
  return given({
    ...picked(body, sameAsChats),
    max_completion_tokens: body.max_output_tokens,
    parallel_tool_calls: body.parallel_tool_calls,
    reasoning_effort: reasoning?.effort ?? undefined,
    response_format: responseFormat(wished?.format ?? undefined),
    truncate_prompt_tokens: truncation === 'auto' ? -1 : undefined,
    ...(hasLogprobs ? { logprobs: true, top_logprobs: numTop ?? 0 } : {}),
  });
}

function responseFormat(wished: z.infer<typeof format> | undefined): ChatFields['response_format'] {
  if (wished?.type !== 'json_schema') return wished && { type: wished.type };
  const { schema, strict } = wished;
  if (schema === undefined || schema === null) {
    throw new ParameterFailure(
      'text.format.schema: is missing; send {"type": "json_schema", "name": …, "schema": {…}}',
      'text.format.schema',
    );
  }
  return { type: 'json_schema', json_schema: { schema, ...(typeof strict === 'boolean' ? { strict } : {}) } };
}

function repeatedOf(body: Fields): ResponseWish['repeated'] {
  return {
    instructions: body.instructions ?? null,
    max_output_tokens: body.max_output_tokens ?? null,
    max_tool_calls: body.max_tool_calls ?? null,
    metadata: body.metadata ?? {},
    parallel_tool_calls: body.parallel_tool_calls ?? true,
    previous_response_id: body.previous_response_id ?? null,
    prompt_cache_key: body.prompt_cache_key ?? null,
    reasoning: { effort: null, summary: null, ...body.reasoning },
    safety_identifier: body.safety_identifier ?? null,
    store: body.store ?? true,
    text: { ...body.text, format: body.text?.format ?? { type: 'text' } },
    tool_choice: body.tool_choice ?? 'auto',
    tools: body.tools ?? [],
    top_logprobs: body.top_logprobs ?? 0,
    truncation: body.truncation ?? 'disabled',
    user: body.user ?? null,
  };
}

/** Paths in a chat's body, and those in this one. */
const renamed: readonly (readonly [chat: RegExp, own: string])[] = [
  [/^response_format(\.json_schema)?/, 'text.format'],
  [/^tool_choice\.function/, 'tool_choice'],
  [/^(messages|prompt)(\.\d+)*/, 'input'],
  [/^max_(completion_)?tokens/, 'max_output_tokens'],
  [/^truncate_prompt_tokens/, 'truncation'],
];

/** Returns an error of a chat with the path that its parameter has in the body. Others are returned as they are. */
export function asResponseError(error: unknown, toolPaths: readonly string[]): unknown {
  if (!(error instanceof ParameterFailure) || error.param === null) return error;
  const { param, message, code } = error;
  const inTools = param.replace(/^tools\.(\d+)\.function/, (whole, index) => toolPaths[Number(index)] ?? whole);
  const own = renamed.reduce((path, [chat, name]) => path.replace(chat, name), inTools);
  if (own === param) return error;
  return new ParameterFailure(message.startsWith(param) ? own + message.slice(param.length) : message, own, code);
}
