/** Bodies of `/v1/messages` and `/v1/messages/count_tokens`, as Anthropic documents them, read as the body of a chat. */
import { z } from 'zod';
import { given } from '../../../../shared/base/given.ts';
import { picked } from '../../../../shared/base/picked.ts';
import { limitsOf, type BodyLimits } from '../../api/parameter_failure.ts';
import { common, only } from '../openai/parameter_schemas.ts';
import { readMessages } from '../../api/body_parts.ts';
import { check } from '../openai/body_check.ts';
import { chatBodyOf, type ChatBody, type ChatFields } from '../openai/parameters.ts';
import { messageToolFields, readMessageTools } from './message_tools.ts';
import { readTurns } from './message_turns.ts';

const MAX_INT = 2 ** 31 - 1;
const MAX_STOPS = 16;

/** Schema of a parameter that changes no output here, whatever its value. */
const hint = z.unknown().optional().meta({ description: 'Changes no output' });

const block = { type: 'object', required: ['type'], properties: { type: { type: 'string' } } };
const content = { anyOf: [{ type: 'string' }, { type: 'array', items: block }] };
const messagesShape = {
  type: 'array',
  minItems: 1,
  items: {
    type: 'object',
    required: ['role', 'content'],
    properties: { role: { enum: ['user', 'assistant', 'system'] }, content },
  },
};

/** Parameters of both endpoints. */
const countFields = {
  model: z.string().optional(),
  messages: z.unknown().optional().meta(messagesShape),
  system: z.unknown().optional().meta(content),
  ...messageToolFields,
  thinking: z
    .looseObject({
      type: z.enum(['enabled', 'disabled', 'adaptive', 'between_tools'], 'enabled, disabled or adaptive'),
      budget_tokens: z.int().min(1).max(MAX_INT).nullish(),
      display: z.string().nullish(),
    })
    .optional(),
  output_config: z
    .looseObject({
      effort: z.string().nullish(),
      format: z
        .looseObject({
          type: z.literal('json_schema', 'only json_schema is supported'),
          schema: z.record(z.string(), z.unknown()),
        })
        .nullish(),
    })
    .optional(),
  mcp_servers: only([[]]),
  container: only([], 'null'),
  cache_control: hint,
  speed: hint,
  user_profile_id: hint,
  workspace_id: hint,
};

const messagesFields = {
  ...countFields,
  // A turn of a conversation that the server keeps has only its newest messages: without the others its answer is wrong.
  thread: only([], 'null'),
  max_tokens: z.int('a whole number from 1').min(1).max(MAX_INT),
  stop_sequences: z.array(z.string().min(1, 'cannot be an empty text')).max(MAX_STOPS).optional(),
  temperature: common.temperature,
  top_p: common.top_p,
  // Anthropic knows no -1; 0 turns it off.
  top_k: z.int().min(0).max(MAX_INT).optional(),
  stream: common.stream,
  metadata: hint,
  service_tier: hint,
  inference_geo: hint,
  diagnostics: hint,
};

/** Schema of a body of `/v1/messages`. Unknown keys are dropped. */
export const messagesSchema = z.object(messagesFields);
/** Schema of a body of `/v1/messages/count_tokens`. */
export const countSchema = z.object(countFields);

/** Reads a body of `/v1/messages`. @throws ParameterFailure naming what is not allowed, by its path */
export function readMessagesBody(bytes: Uint8Array, all: BodyLimits): ChatBody {
  const { body, ignored } = check(messagesSchema, bytes, all);
  const keys = picked(body, ['max_tokens', 'temperature', 'top_p', 'top_k', 'stream']);
  return chatOf(body, ignored, all, given({ ...keys, stop: body.stop_sequences }));
}

/** Reads a body of `/v1/messages/count_tokens`. @throws ParameterFailure like {@link readMessagesBody} */
export function readCountBody(bytes: Uint8Array, all: BodyLimits): ChatBody {
  const { body, ignored } = check(countSchema, bytes, all);
  return chatOf(body, ignored, all, {});
}

/** Names of chats for how long a model reasons; Anthropic's highest ones are the highest of chats. */
const efforts: Readonly<Record<string, string>> = { xhigh: 'high', max: 'high' };

function chatOf(
  { model, messages, system, thinking, output_config: output, ...more }: z.infer<typeof countSchema>,
  ignored: readonly string[],
  all: BodyLimits,
  keys: ChatFields,
): ChatBody {
  const { maxModelLen } = limitsOf(all, model);
  const leftOut: string[] = [];
  const { messages: turns, isContinuing } = readTurns(system, messages, maxModelLen, leftOut);
  const { chat: tools, skipped } = readMessageTools(more);
  const { effort, format } = output ?? {};
  const notHonoured = thinking?.budget_tokens ? ['thinking.budget_tokens'] : [];
  return chatBodyOf(
    {
      ...keys,
      ...tools,
      ...(model === undefined ? {} : { model }),
      ...(isContinuing ? { continue_final_message: true } : {}),
      ...(thinking ? { chat_template_kwargs: { enable_thinking: isThinking(thinking.type) } } : {}),
      ...(thinking?.display === 'omitted' ? { include_reasoning: false } : {}),
      ...(effort ? { reasoning_effort: (Object.hasOwn(efforts, effort) ? efforts[effort] : undefined) ?? effort } : {}),
      ...(format ? { response_format: { type: 'json_schema', json_schema: { schema: format.schema } } } : {}),
    },
    readMessages(turns, maxModelLen, leftOut),
    [...ignored, ...skipped, ...notHonoured, ...leftOut],
    all,
  );
}

function isThinking(type: string): boolean {
  return type === 'enabled' || type === 'adaptive';
}
