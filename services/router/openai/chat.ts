/** `/v1/chat/completions`. */
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { TokenMessage } from '../../../shared/protocol/messages.ts';
import type { RequestRecord } from '../request_log.ts';
import { abortOnDisconnect, sendEvents } from './event_stream.ts';
import { checkModel, finishedHeaders, stopsOf, stopTokensOf, usageOf, type Usage } from './common.ts';
import { ParameterFailure, plainMessages, readChatBody, toSampling, type ChatBody } from './parameters.ts';
import { openRecord, startPrompt, type ApiContext, type Piece } from './prompt_run.ts';

interface ChatLogprob {
  readonly token: string;
  readonly logprob: number;
  readonly bytes: number[];
  readonly top_logprobs: { readonly token: string; readonly logprob: number; readonly bytes: number[] }[];
}

export async function chat(context: ApiContext, request: FastifyRequest, reply: FastifyReply): Promise<unknown> {
  const body = readChatBody(request.body);
  checkModel(context, body.model);
  if ((body.top_logprobs ?? 0) > 0 && !body.logprobs) {
    throw new ParameterFailure('top_logprobs: needs logprobs to be true', 'top_logprobs');
  }
  const signal = abortOnDisconnect(request, reply);
  const record = openRecord(context, '/v1/chat/completions');
  let run: ReturnType<typeof startPrompt>;
  try {
    const promptTokens = await context.codec.encodeChat(plainMessages(body.messages), true);
    const numLogprobs = body.logprobs ? (body.top_logprobs ?? 0) : -1;
    const { folder, drawSeed } = context;
    const job = {
      promptTokens,
      sampling: toSampling(body, folder.defaults, drawSeed, numLogprobs, folder.config.vocabSize),
      maxTokens: body.max_completion_tokens ?? body.max_tokens ?? undefined,
      stops: stopsOf(body.stop),
      stopTokenIds: stopTokensOf(context, body),
    };
    run = startPrompt(context, record, job, signal);
    if (body.stream) {
      await sendEvents(
        reply,
        events(context, body, record, run.pieces, promptTokens),
        () => finishedHeaders(record),
        signal,
      );
      return undefined;
    }
    return await whole(context, body, record, run.pieces, promptTokens, reply);
  } catch (error) {
    context.requests.close(record, signal.aborted ? 'cancelled' : 'failed', 'error');
    throw error;
  }
}

async function whole(
  context: ApiContext,
  body: ChatBody,
  record: RequestRecord,
  pieces: AsyncGenerator<Piece>,
  promptTokens: readonly number[],
  reply: FastifyReply,
): Promise<unknown> {
  let text = '';
  let finish: Piece['finish'];
  const tokens: TokenMessage[] = [];
  for await (const piece of pieces) {
    text += piece.text;
    tokens.push(...piece.tokens);
    finish = piece.finish ?? finish;
  }
  void reply.headers(finishedHeaders(record));
  return {
    ...frame(context, record, 'chat.completion'),
    choices: [
      {
        index: 0,
        message: { role: 'assistant', content: text, refusal: null },
        logprobs: body.logprobs ? { content: await logprobs(context, tokens), refusal: null } : null,
        finish_reason: finish ?? null,
        ...(body.return_token_ids ? { token_ids: tokens.map(({ id }) => id) } : {}),
      },
    ],
    usage: usageOf([record]),
    ...(body.return_token_ids ? { prompt_token_ids: promptTokens } : {}),
  };
}

async function* events(
  context: ApiContext,
  body: ChatBody,
  record: RequestRecord,
  pieces: AsyncGenerator<Piece>,
  promptTokens: readonly number[],
): AsyncGenerator {
  const hasUsage = body.stream_options?.include_usage === true;
  const head = frame(context, record, 'chat.completion.chunk');
  const chunk = (choices: unknown[], usage: Usage | null = null): unknown => ({
    ...head,
    choices,
    ...(hasUsage ? { usage } : {}),
  });
  let isFirst = true;
  for await (const { text, tokens, finish } of pieces) {
    const idsOf = body.return_token_ids ? { token_ids: tokens.map(({ id }) => id) } : {};
    if (isFirst) {
      const opening = { index: 0, delta: { role: 'assistant', content: '' }, logprobs: null, finish_reason: null };
      yield { ...(chunk([opening]) as object), ...(body.return_token_ids ? { prompt_token_ids: promptTokens } : {}) };
      isFirst = false;
    }
    if (text !== '' || body.logprobs || body.return_token_ids) {
      const content = body.logprobs ? { content: await logprobs(context, tokens), refusal: null } : null;
      yield chunk([{ index: 0, delta: { content: text }, logprobs: content, finish_reason: null, ...idsOf }]);
    }
    if (finish) yield chunk([{ index: 0, delta: {}, logprobs: null, finish_reason: finish }]);
  }
  if (hasUsage) yield chunk([], usageOf([record]));
}

function frame({ servedName, clock }: ApiContext, record: RequestRecord, object: string): Record<string, unknown> {
  return { id: `chatcmpl-${record.id}`, object, created: Math.floor(clock.wallMs() / 1_000), model: servedName };
}

async function logprobs(context: ApiContext, tokens: readonly TokenMessage[]): Promise<ChatLogprob[]> {
  const ids = [...new Set(tokens.flatMap(({ id, topIds }) => [id, ...topIds]))];
  const texts = await context.codec.decode(
    ids.map((id) => [id]),
    false,
  );
  const nameOf = (id: number): { token: string; bytes: number[] } => {
    const token = context.codec.hasTokenizer ? (texts[ids.indexOf(id)] ?? '') : `token_id:${id}`;
    return { token, bytes: [...Buffer.from(token)] };
  };
  return tokens.map(({ id, logprob, topIds, topLogprobs }) => ({
    ...nameOf(id),
    logprob: logprob[0] ?? 0,
    top_logprobs: topIds.map((top, i) => ({ ...nameOf(top), logprob: topLogprobs[i] ?? 0 })),
  }));
}
