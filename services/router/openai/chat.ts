/** `/v1/chat/completions`. */
import { Failure } from '../../../shared/base/failure.ts';
import type { SampledMessage } from '../../../shared/protocol/messages.ts';
import type { ApiContext } from './api_context.ts';
import { respond, startSamples, type AnswerFormat } from './choices.ts';
import { generationOf, tokenNames } from './common.ts';
import { constraintOf } from './constraints.ts';
import type { ChatBody } from './parameters.ts';
import { refuseTooMany } from './prompt_logprobs.ts';
import type { RequestScope } from './request_scope.ts';

interface ChatLogprob {
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

/** Answers `/v1/chat/completions`, whole or streamed. @throws Failure when the request is refused or cannot be finished. */
export async function chat(all: ApiContext, scope: RequestScope): Promise<void> {
  const trace = scope.open('/v1/chat/completions');
  const bodyBytes = scope.body.bytes.length;
  const { body, prompts, failure } = await all.bodies.readPrompts('chat', scope.body, all.of(undefined), scope.signal);
  const context = all.of(body.model);
  trace.model = context.servedName;
  scope.named(body.requestId);
  if (failure) throw new Failure(failure.code, failure.message);
  const promptTokens = prompts?.[0] ?? (await context.codec.encodeChat(body.template, bodyBytes, scope.signal));
  trace.promptTokens = promptTokens.length;
  const constraint = await constraintOf(context, body.constraint, scope.signal);
  const generation = generationOf(context, body, promptTokens, body.maxTokens, 'messages', constraint);
  refuseTooMany(promptTokens.length * (1 + body.numPromptLogprobs), 'prompt_logprobs');
  const runs = startSamples(context, scope, { trace, generation, echo: undefined }, body.numSamples);
  await respond(context, scope, body, runs, chatFormat(context, body));
}

function chatFormat(context: ApiContext, { isReturningIds }: ChatBody): AnswerFormat<readonly ChatLogprob[]> {
  const promptIds = (promptTokens: Uint32Array): object =>
    isReturningIds ? { prompt_token_ids: Array.from(promptTokens) } : {};
  const chunkOf = (index: number, choice: Record<string, unknown>): Record<string, unknown> => {
    return { index, delta: {}, logprobs: null, finish_reason: null, ...choice };
  };
  return {
    idPrefix: 'chatcmpl-',
    object: { collect: 'chat.completion', chunk: 'chat.completion.chunk' },
    logprobs: (tokens) => chatLogprobs(context, tokens),
    logprobList() {
      const entries: string[] = [];
      return {
        add: (more) => entries.push(...more.map((one) => JSON.stringify(one))),
        json: () => `{"content":[${entries.join()}],"refusal":null}`,
      };
    },
    choice: ({ index, text, ids, finish, stopReason }) => ({
      index,
      message: { role: 'assistant', content: text, refusal: null },
      ...{ finish_reason: finish, stop_reason: stopReason },
      ...(isReturningIds ? { token_ids: ids } : {}),
    }),
    rest: (promptTokens) => ({ ...promptIds(promptTokens) }),
    hasPromptLogprobsInChoice: false,
    chunks({ index, text, ids, logprobs, finish, stopReason, isFirst }, promptTokens) {
      const chunk = (choice: Record<string, unknown>): Record<string, unknown> => chunkOf(index, choice);
      const role = { delta: { role: 'assistant', content: '' } };
      const first = { choice: chunk(role), beside: promptIds(promptTokens), isOpening: true };
      const hasContent = text !== '' || logprobs !== null || isReturningIds;
      const content = logprobs && { content: logprobs, refusal: null };
      const more = isReturningIds ? { token_ids: ids } : {};
      return [
        ...(isFirst ? [first] : []),
        ...(hasContent ? [{ choice: chunk({ delta: { content: text }, logprobs: content, ...more }) }] : []),
        ...(finish ? [{ choice: chunk({ finish_reason: finish, stop_reason: stopReason }) }] : []),
      ];
    },
  };
}

async function chatLogprobs(context: ApiContext, tokens: readonly SampledMessage[]): Promise<ChatLogprob[]> {
  const nameOf = await tokenNames(context, tokens);
  const entry = (id: number): { token: string; bytes: readonly number[] | null } => {
    const { text, escaped, bytes } = nameOf(id);
    return { token: text ?? escaped, bytes: context.codec.hasTokenizer ? bytes : null };
  };
  return tokens.map(({ token, logprob, topTokens, topLogprobs }) => ({
    ...entry(token),
    logprob: logprob[0] ?? 0,
    top_logprobs: topTokens.map((top, i) => ({ ...entry(top), logprob: topLogprobs[i] ?? 0 })),
  }));
}
