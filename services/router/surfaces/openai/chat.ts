/** `/v1/chat/completions`. */
import { chatKind } from './body_kinds.ts';
import { Failure } from '../../../../shared/base/failure.ts';
import type { SampledMessage } from '../../../../shared/protocol/messages.ts';
import type { CallForm, TextRule } from '../../../../shared/text/grammar/text_rule.ts';
import type { Generation } from '../../relay/generation.ts';
import type { RequestTrace } from '../../record/request_log.ts';
import type { ReadPromptBody } from '../../api/prompt_tools.ts';
import type { ApiContext } from '../../api/api_context.ts';
import { messageOf } from '../../../../shared/text/answer_message.ts';
import { chunkDelta } from './chat_delta.ts';
import { respond, startSamples, type AnswerFormat, type PromptRun } from './choices.ts';
import { generationOf, tokenNames } from './common.ts';
import type { ConstraintWish } from './constraint_wish.ts';
import { constraintOf } from './constraints.ts';
import type { ChatBody } from './parameters.ts';
import { ParsedChoice, type ParsedOutput } from './parsed_choice.ts';
import { refuseTooMany } from './prompt_logprobs.ts';
import type { AnswerDelta } from '../../api/prompt_run.ts';
import type { RequestScope } from '../../api/request_scope.ts';
import { toolRule } from './tool_grammar.ts';
import { schemasOf } from './tools.ts';
import { truncated } from './truncation.ts';

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

/** Answers `/v1/chat/completions`, whole or streamed. @throws Failure when the request is refused or cannot be finished. */
export async function chat(all: ApiContext, scope: RequestScope): Promise<void> {
  const trace = scope.open('/v1/chat/completions');
  const bodyBytes = scope.body.bytes.length;
  const read = await all.bodies.readPrompts(chatKind, scope.body, all.of(undefined), scope.signal);
  await answerChat(all, scope, trace, bodyBytes, read);
}

/** Answers a chat whose body of `bodyBytes` has been read. @throws Failure when the request is refused or cannot be finished. */
export async function answerChat(
  all: ApiContext,
  scope: RequestScope,
  trace: RequestTrace,
  bodyBytes: number,
  read: ReadPromptBody<ChatBody>,
): Promise<void> {
  const { context, runs, parser } = await startChat(all, scope, trace, bodyBytes, read);
  await respond(context, scope, read.body, runs, chatFormat(context, read.body, parser));
}

/** A chat under way. */
export interface StartedChat {
  /** Context of the model that answers. */
  readonly context: ApiContext;
  /** One run per sample. */
  readonly runs: readonly [PromptRun, ...PromptRun[]];
  /** Creates the parser of a choice's text; undefined when all of it is content. */
  readonly parser: (generation: Generation) => ParsedChoice | undefined;
}

/**
 * Starts a chat whose body of `bodyBytes` has been read, in the form of any endpoint. With `isCapped` an output for which the context
 * has no room is shortened to what fits; without it, it is refused. @throws Failure when the request is refused
 */
export async function startChat(
  all: ApiContext,
  scope: RequestScope,
  trace: RequestTrace,
  bodyBytes: number,
  { body, prompts, prefix, failure }: Omit<ReadPromptBody<ChatBody>, 'body'> & { readonly body: ChatBody },
  isCapped = false,
): Promise<StartedChat> {
  const context = all.of(body.model);
  trace.model = context.servedName;
  scope.named(body.requestId);
  if (failure) throw new Failure(failure.code, failure.message);
  const { maxTokens, truncation } = body;
  const [encoded] = prompts ?? [];
  const prompt = encoded
    ? { ids: encoded, prefix: prefix ?? '' }
    : await context.codec.chatPrompt(body.template, bodyBytes, scope.signal, {
        ...{ cutSide: truncation?.side, isShared: body.cacheSalt === '' },
      });
  const limits = { maxModelLen: context.maxModelLen(), maxTokens, usualTokens: 1 };
  const promptTokens = truncated(prompt.ids, truncation, limits);
  trace.promptTokens = promptTokens.length;
  const calls = toolRule(body.tools, context.output.rules.callForm, body.constraint?.rule);
  const constraint = await constraintOf(
    context,
    chatConstraint(context, body, calls, prompt.prefix),
    body.numSamples,
    scope,
  );
  const generation = parsedGeneration(
    context,
    body,
    generationOf(
      context,
      body,
      promptTokens,
      isCapped ? capped(maxTokens, limits, promptTokens) : maxTokens,
      'messages',
      constraint,
    ),
  );
  refuseTooMany(promptTokens.length * (1 + body.numPromptLogprobs), 'prompt_logprobs');
  const runs = startSamples(context, scope, { trace, generation, echo: undefined }, body.numSamples);
  return { context, runs, parser: parserOf(context, body, prompt.prefix, calls?.form) };
}

function parserOf(
  { output, newId }: ApiContext,
  body: ChatBody,
  prefix: string,
  enforced: CallForm | undefined,
): StartedChat['parser'] {
  const { tools } = body;
  return ({ counts }) => {
    const parser = output.parser({
      ...{ enforced, prefix, newId, tools: schemasOf(tools), isParallel: tools.isParallel },
      hasTools: hasTools(body),
    });
    return parser && new ParsedChoice(parser, counts, output.hasReasoning);
  };
}

/** Returns the constraints of a chat's answer: its rule is for what comes behind the reasoning. */
function chatConstraint(
  { output }: ApiContext,
  { constraint }: ChatBody,
  calls: TextRule | undefined,
  prefix: string,
): ConstraintWish | undefined {
  const rule = calls ?? constraint?.rule;
  if (!rule) return constraint;
  return {
    allowedTokenIds: undefined,
    badWords: [],
    ...constraint,
    rule: { ...rule, ...output.rules.frame(prefix) },
  };
}

/** Returns the new tokens that are asked for, at most what the context has room for, and at least one. */
function capped(
  maxTokens: number | undefined,
  { maxModelLen }: { readonly maxModelLen: number },
  { length }: Uint32Array,
): number | undefined {
  return maxTokens === undefined ? undefined : Math.max(1, Math.min(maxTokens, maxModelLen - length));
}

function hasTools({ tools: { tools } }: ChatBody): boolean {
  return tools.length > 0;
}

/** Makes the markers of the output's format visible in its text, where a parser reads them. */
function parsedGeneration({ output }: ApiContext, body: ChatBody, generation: Generation): Generation {
  const hiddenTokens = body.isSkippingSpecial ? output.hiddenTokens(hasTools(body)) : undefined;
  return { ...generation, text: { ...generation.text, hiddenTokens } };
}

/** Returns the reason for which a choice has ended: one that stops with calls has ended for them. */
function finishOf(finish: AnswerDelta['finish'] | null, parsed: ParsedOutput | undefined): string | null {
  return finish === 'stop' && parsed?.hasCalls === true ? 'tool_calls' : (finish ?? null);
}

type ChatDelta = Parameters<AnswerFormat<readonly ChatLogprob[]>['chunks']>[0];

const noMessageParts = { annotations: null, audio: null, function_call: null, tool_calls: null };

function chatFormat(
  context: ApiContext,
  body: ChatBody,
  parser: StartedChat['parser'],
): AnswerFormat<readonly ChatLogprob[]> {
  const { isReturningIds, isNamingIds, includesReasoning } = body;
  const promptIds = (promptTokens: Uint32Array): object =>
    isReturningIds ? { prompt_token_ids: Array.from(promptTokens) } : {};
  return {
    idPrefix: 'chatcmpl-',
    object: { answer: 'chat.completion', chunk: 'chat.completion.chunk' },
    parser,
    logprobs: (tokens) => chatLogprobs(context, tokens, isNamingIds),
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
      ...{ finish_reason: finishOf(finish, parsed), stop_reason: stopReason, matched_stop: matchedStop },
      token_ids: isReturningIds ? ids : null,
    }),
    rest: (promptTokens) => ({
      ...{ service_tier: null, moderation: null },
      prompt_token_ids: isReturningIds ? Array.from(promptTokens) : null,
    }),
    hasPromptLogprobsInChoice: false,
    chunks: (delta, promptTokens) => chatChunks(delta, body, promptIds(promptTokens)),
  };
}

/** Returns the chunks of a choice's next text; `beside` goes with the first one. */
function chatChunks(
  { index, text, ids, logprobs, finish, stopReason, matchedStop, isFirst, parsed }: ChatDelta,
  { isReturningIds, includesReasoning }: ChatBody,
  beside: object,
): ReturnType<AnswerFormat<readonly ChatLogprob[]>['chunks']> {
  const chunk = (choice: Record<string, unknown>): Record<string, unknown> => {
    return { index, delta: {}, logprobs: null, finish_reason: null, ...choice };
  };
  const role = { delta: { role: 'assistant', content: '' } };
  const first = { choice: chunk(role), beside, isOpening: true };
  const pieces = (parsed?.pieces ?? (text === '' ? [] : [{ kind: 'content', text }])).filter(
    ({ kind }) => includesReasoning || kind !== 'reasoning',
  );
  const deltas = pieces.map((piece) => chunkDelta(piece));
  // Log-probabilities and ids of the tokens are sent once, with or without a text.
  if (deltas.length === 0 && (logprobs !== null || isReturningIds)) deltas.push({ content: '' });
  const more = {
    logprobs: logprobs && { content: logprobs, refusal: null },
    ...(isReturningIds ? { token_ids: ids } : {}),
  };
  const ending = {
    finish_reason: finishOf(finish ?? null, parsed),
    ...{ stop_reason: stopReason, matched_stop: matchedStop },
  };
  return [
    ...(isFirst ? [first] : []),
    ...deltas.map((delta, i) => ({ choice: chunk({ delta, ...(i === 0 ? more : {}) }) })),
    ...(finish ? [{ choice: chunk(ending) }] : []),
  ];
}

/** Returns the log-probabilities of tokens; `isNamingIds`: their names are `token_id:N`. */
export async function chatLogprobs(
  context: ApiContext,
  tokens: readonly SampledMessage[],
  isNamingIds: boolean,
): Promise<ChatLogprob[]> {
  const nameOf = await tokenNames(context, tokens, isNamingIds);
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
