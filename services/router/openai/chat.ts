/** `/v1/chat/completions`. */
import type { SampledMessage } from '../../../shared/protocol/messages.ts';
import type { Generation } from '../relay/generation.ts';
import type { RequestRecord } from '../relay/request_log.ts';
import type { ApiContext } from './api_context.ts';
import { answerJson, finishedHeaders, generationOf, tokenNames, usageOf, type Usage } from './common.ts';
import { sendEvents } from './event_stream.ts';
import type { ChatBody } from './parameters.ts';
import { promptLogprobsJson, refuseTooMany } from './prompt_logprobs.ts';
import { prefillReported, runPrompt, type Piece } from './prompt_run.ts';
import type { RequestScope } from './request_scope.ts';

interface ChatLogprob {
  readonly token: string;
  readonly logprob: number;
  /** Null where no tokenizer says. */
  readonly bytes: readonly number[] | null;
  readonly top_logprobs: {
    readonly token: string;
    readonly logprob: number;
    readonly bytes: readonly number[] | null;
  }[];
}

export async function chat(all: ApiContext, scope: RequestScope): Promise<void> {
  const record = scope.open('/v1/chat/completions');
  const body = await all.bodies.read('chat', scope.body, scope.signal);
  const context = all.of(body.model);
  record.model = context.servedName;
  scope.named(body.requestId);
  const promptTokens = await context.codec.encodeChat(body.template, scope.signal);
  record.promptTokens = promptTokens.length;
  const generation = generationOf(context, body, promptTokens, body.maxTokens, 'messages');
  refuseTooMany(promptTokens.length * (1 + body.numPromptLogprobs), 'prompt_logprobs');
  const pieces = scope.own(runPrompt(context, record, generation, scope));
  const headers = (): Record<string, string> => finishedHeaders(record, body.ignored);
  if (!body.isStream) {
    const answer = await whole(context, body, record, pieces, generation, scope.signal);
    scope.answer(answer, headers());
    return;
  }
  const { clock, stalledReaderMs, sseKeepAliveMs: keepAliveMs } = context;
  const stream = scope.own(events(context, body, record, pieces, promptTokens, scope.signal));
  await sendEvents(stream, scope, { clock, stalledReaderMs, keepAliveMs, headers });
}

async function whole(
  context: ApiContext,
  body: ChatBody,
  record: RequestRecord,
  pieces: AsyncGenerator<Piece>,
  generation: Generation,
  signal: AbortSignal,
): Promise<string> {
  const text: string[] = [];
  const ids: number[] = [];
  const entries: string[] = [];
  let last: Piece | undefined;
  for await (const piece of pieces) {
    text.push(piece.text);
    ids.push(...piece.tokens.map(({ token }) => token));
    if (body.sampling.numLogprobs >= 0)
      entries.push(...(await logprobs(context, piece.tokens)).map((one) => JSON.stringify(one)));
    last = piece;
  }
  await prefillReported(record, context.clock, signal);
  const fields = {
    index: 0,
    message: { role: 'assistant', content: text.join(''), refusal: null },
    finish_reason: last?.finish ?? null,
    stop_reason: last?.stopReason ?? null,
    ...(body.isReturningIds ? { token_ids: ids } : {}),
  };
  return answerJson(
    frame(context, record, 'chat.completion'),
    [{ fields, logprobs: body.sampling.numLogprobs >= 0 ? `{"content":[${entries.join()}],"refusal":null}` : 'null' }],
    {
      usage: usageOf([record]),
      ...(body.isReturningIds ? { prompt_token_ids: Array.from(generation.promptTokens) } : {}),
    },
    body.numPromptLogprobs < 0
      ? ''
      : `,"prompt_logprobs":${await promptLogprobsJson(context, generation, body.numPromptLogprobs)}`,
  );
}

async function* events(
  context: ApiContext,
  body: ChatBody,
  record: RequestRecord,
  pieces: AsyncGenerator<Piece>,
  promptTokens: Uint32Array,
  signal: AbortSignal,
): AsyncGenerator {
  const head = frame(context, record, 'chat.completion.chunk');
  let numSent = 0;
  const usage = (): { usage?: Usage | null } =>
    body.hasUsage ? { usage: body.hasContinuousUsage ? usageOf([record], numSent) : null } : {};
  const chunk = (choice: Record<string, unknown>): Record<string, unknown> => ({
    ...head,
    choices: [{ index: 0, delta: {}, logprobs: null, finish_reason: null, ...choice }],
    ...usage(),
  });
  let isFirst = true;
  for await (const { text, tokens, numTokens, finish, stopReason } of pieces) {
    const idsOf = body.isReturningIds ? { token_ids: tokens.map(({ token }) => token) } : {};
    if (isFirst) {
      const ids = body.isReturningIds ? { prompt_token_ids: Array.from(promptTokens) } : {};
      yield { ...chunk({ delta: { role: 'assistant', content: '' } }), ...ids };
      isFirst = false;
    }
    numSent = numTokens;
    if (text !== '' || body.sampling.numLogprobs >= 0 || body.isReturningIds) {
      const content =
        body.sampling.numLogprobs >= 0 ? { content: await logprobs(context, tokens), refusal: null } : null;
      yield chunk({ delta: { content: text }, logprobs: content, ...idsOf });
    }
    if (finish) yield chunk({ finish_reason: finish, stop_reason: stopReason });
  }
  if (body.hasUsage) await prefillReported(record, context.clock, signal);
  if (body.hasUsage) yield { ...head, choices: [], usage: usageOf([record]) };
}

function frame({ servedName, clock }: ApiContext, record: RequestRecord, object: string): Record<string, unknown> {
  const id = `chatcmpl-${record.names.clientId ?? record.id}`;
  return { id, object, created: Math.floor(clock.wallMs() / 1_000), model: servedName };
}

async function logprobs(context: ApiContext, tokens: readonly SampledMessage[]): Promise<ChatLogprob[]> {
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
