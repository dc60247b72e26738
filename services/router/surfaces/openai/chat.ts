/** `/v1/chat/completions`. */
import type { ParsedDelta } from '../../api/parsed_deltas.ts';
import type { AnswerWriters } from '../../api/answer_writer.ts';
import type { ApiContext } from '../../api/api_context.ts';
import { piecesOf, type ParsedOutput } from '../../api/parsed_choice.ts';
import type { Surface, SurfaceRequest } from '../../api/surface.ts';
import { messageOf } from '../../../../shared/text/answer_message.ts';
import { chatKind } from './body_kinds.ts';
import { chunkDelta } from './chat_delta.ts';
import { choiceWriters, type AnswerFormat, type ChoiceChunk, type DeltaLogprobs } from './choices.ts';
import { openaiErrors } from './errors.ts';
import { openaiEvents } from './events.ts';
import { chatSchema } from './parameter_schemas.ts';
import type { ChatBody } from './parameters.ts';
import { startChat } from './start_chat.ts';

/** Log-probability of a token, with its alternatives, as chats write it. */
export interface ChatLogprob {
  readonly token: string;
  readonly logprob: number;
  /** UTF-8 bytes of the token; null when the model has no tokenizer. */
  readonly bytes: readonly number[] | null;
  readonly top_logprobs: {
    readonly token: string;
    readonly logprob: number;
    readonly bytes: readonly number[] | null;
  }[];
}

/** `/v1/chat/completions`, whole or streamed. */
export const chatSurface: Surface<ChatBody> = {
  // The second path is llama.cpp's.
  paths: ['/v1/chat/completions', '/chat/completions'],
  kind: chatKind,
  counts: 'generation',
  operation: 'chat',
  errors: openaiErrors,
  events: openaiEvents,
  describe: {
    summary: 'Answers a chat as JSON, or with `stream` as server-sent events',
    schemas: { Chat: chatSchema },
  },
  answer: answerChat,
};

/** Returns the writers of a chat's answer. @throws Failure when the request is refused */
export async function answerChat(request: SurfaceRequest<ChatBody>): Promise<AnswerWriters> {
  const chat = await startChat(request);
  return choiceWriters(chat, chatFormat(chat.context, chat.body));
}

/** Returns the reason for which a choice has ended: one that stops with calls has ended for them. */
function finishOf(finish: ParsedDelta['finish'] | null, parsed: ParsedOutput | undefined): string | null {
  return finish === 'stop' && parsed?.hasCalls === true ? 'tool_calls' : (finish ?? null);
}

const noMessageParts = { annotations: null, audio: null, function_call: null, tool_calls: null };

function chatFormat(context: ApiContext, body: ChatBody): AnswerFormat<readonly ChatLogprob[]> {
  const { isReturningIds, includesReasoning } = body;
  const promptIds = (promptTokens: Uint32Array): object =>
    isReturningIds ? { prompt_token_ids: Array.from(promptTokens) } : {};
  return {
    idPrefix: 'chatcmpl-',
    object: { answer: 'chat.completion', chunk: 'chat.completion.chunk' },
    logprobs: (part) => chatLogprobs(context, part),
    logprobList() {
      const entries: string[] = [];
      return {
        add: (more) => entries.push(...more.map((one) => JSON.stringify(one))),
        json: () => `{"content":[${entries.join()}],"refusal":null}`,
      };
    },
    // Keys without a value are null where the official Python client has them, so that its objects and raw answers have the same keys.
    choice: ({ index, text, ids, finish, stopReason, matchedStop, parsed }) => ({
      index,
      message: { ...noMessageParts, ...messageOf(parsed?.pieces ?? [{ kind: 'content', text }], includesReasoning) },
      finish_reason: finishOf(finish, parsed),
      stop_reason: stopReason,
      matched_stop: matchedStop,
      token_ids: isReturningIds ? ids : null,
    }),
    rest: (promptTokens) => ({
      service_tier: null,
      moderation: null,
      prompt_token_ids: isReturningIds ? Array.from(promptTokens) : null,
    }),
    hasPromptLogprobsInChoice: false,
    plain(part) {
      if (part.finish || part.isFirst || isReturningIds) return undefined;
      const [piece, second] = piecesOf(part);
      if (second || piece?.kind === 'call') return undefined;
      return piece?.kind === 'reasoning' && !includesReasoning ? undefined : piece;
    },
    chunks: (part, logprobs, promptTokens) => chatChunks(part, logprobs, body, promptIds(promptTokens)),
  };
}

/** Returns the chunks of a choice's next text; `fields` goes with the first one. */
function chatChunks(
  { index, text, ids, finish, stopReason, matchedStop, isFirst, parsed }: ParsedDelta,
  logprobs: readonly ChatLogprob[] | null,
  { isReturningIds, includesReasoning }: ChatBody,
  fields: object,
): readonly ChoiceChunk[] {
  const chunk = (choice: Record<string, unknown>): Record<string, unknown> => {
    return { index, delta: {}, logprobs: null, finish_reason: null, ...choice };
  };
  const role = { delta: { role: 'assistant', content: '' } };
  const first = { choice: chunk(role), fields, isOpening: true };
  const pieces = piecesOf({ parsed, text }).filter(({ kind }) => includesReasoning || kind !== 'reasoning');
  const deltas = pieces.map((piece) => chunkDelta(piece));
  // Log-probabilities and ids of the tokens are sent once, with or without a text.
  if (deltas.length === 0 && (logprobs !== null || isReturningIds)) deltas.push({ content: '' });
  const more = {
    logprobs: logprobs && { content: logprobs, refusal: null },
    ...(isReturningIds ? { token_ids: ids } : {}),
  };
  const ending = {
    finish_reason: finishOf(finish ?? null, parsed),
    stop_reason: stopReason,
    matched_stop: matchedStop,
  };
  return [
    ...(isFirst ? [first] : []),
    ...deltas.map((delta, i) => ({ choice: chunk({ delta, ...(i === 0 ? more : {}) }) })),
    ...(finish ? [{ choice: chunk(ending) }] : []),
  ];
}

/** Returns the log-probabilities of tokens. */
export function chatLogprobs({ codec }: Pick<ApiContext, 'codec'>, { tokens, nameOf }: DeltaLogprobs): ChatLogprob[] {
  const entry = (id: number): { token: string; bytes: readonly number[] | null } => {
    const { text, escaped, bytes } = nameOf(id);
    return { token: text ?? escaped, bytes: codec.hasTokenizer ? bytes : null };
  };
  return tokens.map(({ token, logprob, topTokens, topLogprobs }) => ({
    ...entry(token),
    logprob: logprob[0] ?? 0,
    top_logprobs: topTokens.map((top, i) => ({ ...entry(top), logprob: topLogprobs[i] ?? 0 })),
  }));
}
