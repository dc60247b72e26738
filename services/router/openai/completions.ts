/** `/v1/completions`: prompts as text or token ids, one or several. */
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { TokenMessage } from '../../../shared/protocol/messages.ts';
import { checkModel, finishedHeaders, stopsOf, stopTokensOf, usageOf } from './common.ts';
import { abortOnDisconnect, sendEvents } from './event_stream.ts';
import { readCompletionBody, toSampling, type CompletionBody } from './parameters.ts';
import { merge, openRecord, startPrompt, type ApiContext, type Piece, type PromptRun } from './prompt_run.ts';

/** OpenAI's default for this endpoint. */
const DEFAULT_MAX_TOKENS = 16;

interface Job {
  readonly run: PromptRun;
  readonly promptTokens: readonly number[];
}

export async function completions(context: ApiContext, request: FastifyRequest, reply: FastifyReply): Promise<unknown> {
  const body = readCompletionBody(request.body);
  checkModel(context, body.model);
  const signal = abortOnDisconnect(request, reply);
  const records: ReturnType<typeof openRecord>[] = [];
  try {
    const jobs: Job[] = [];
    for (const prompt of promptsOf(body)) {
      const record = openRecord(context, '/v1/completions');
      records.push(record);
      const promptTokens =
        typeof prompt === 'string' ? await context.codec.encode(prompt, body.add_special_tokens ?? true) : prompt;
      const { folder, drawSeed } = context;
      const job = {
        promptTokens,
        sampling: toSampling(body, folder.defaults, drawSeed, body.logprobs ?? -1, folder.config.vocabSize),
        maxTokens:
          body.max_tokens ?? Math.max(1, Math.min(DEFAULT_MAX_TOKENS, context.maxModelLen() - promptTokens.length)),
        stops: stopsOf(body.stop),
        stopTokenIds: stopTokensOf(context, body),
      };
      jobs.push({ promptTokens, run: startPrompt(context, record, job, signal) });
    }
    const [first] = jobs;
    if (body.stream && first) {
      await sendEvents(reply, events(context, body, jobs), () => finishedHeaders(first.run.record), signal);
      return undefined;
    }
    return await whole(context, body, jobs, reply);
  } catch (error) {
    for (const record of records) context.requests.close(record, signal.aborted ? 'cancelled' : 'failed', 'error');
    throw error;
  }
}

function promptsOf({ prompt }: CompletionBody): (string | number[])[] {
  if (typeof prompt === 'string') return [prompt];
  return typeof prompt[0] === 'number' ? [prompt as number[]] : (prompt as (string | number[])[]);
}

async function whole(
  context: ApiContext,
  body: CompletionBody,
  jobs: readonly Job[],
  reply: FastifyReply,
): Promise<unknown> {
  const outputs = jobs.map(() => ({ text: '', tokens: [] as TokenMessage[], finish: undefined as Piece['finish'] }));
  for await (const { index, piece } of merge(jobs.map(({ run }) => run))) {
    const output = outputs[index];
    if (!output) continue;
    output.text += piece.text;
    output.tokens.push(...piece.tokens);
    output.finish = piece.finish ?? output.finish;
  }
  const [first] = jobs;
  if (first) void reply.headers(finishedHeaders(first.run.record));
  const choices = await Promise.all(
    outputs.map(async ({ text, tokens, finish }, index) => ({
      index,
      text,
      logprobs: typeof body.logprobs === 'number' ? await logprobs(context, tokens, 0) : null,
      finish_reason: finish ?? null,
      ...(body.return_token_ids
        ? { prompt_token_ids: jobs[index]?.promptTokens, token_ids: tokens.map(({ id }) => id) }
        : {}),
    })),
  );
  return { ...frame(context, jobs), choices, usage: usageOf(jobs.map(({ run }) => run.record)) };
}

async function* events(context: ApiContext, body: CompletionBody, jobs: readonly Job[]): AsyncGenerator {
  const hasUsage = body.stream_options?.include_usage === true;
  const head = frame(context, jobs);
  const textLengths = jobs.map(() => 0);
  const hasBegun = jobs.map(() => false);
  for await (const { index, piece } of merge(jobs.map(({ run }) => run))) {
    const { text, tokens, finish } = piece;
    const isSilent = text === '' && finish === undefined && typeof body.logprobs !== 'number' && !body.return_token_ids;
    if (isSilent) continue;
    const choice = {
      index,
      text,
      logprobs: typeof body.logprobs === 'number' ? await logprobs(context, tokens, textLengths[index] ?? 0) : null,
      finish_reason: finish ?? null,
      ...(body.return_token_ids ? { token_ids: tokens.map(({ id }) => id) } : {}),
      ...(body.return_token_ids && !hasBegun[index] ? { prompt_token_ids: jobs[index]?.promptTokens } : {}),
    };
    hasBegun[index] = true;
    textLengths[index] = (textLengths[index] ?? 0) + text.length;
    yield { ...head, choices: [choice], ...(hasUsage ? { usage: null } : {}) };
  }
  if (hasUsage) yield { ...head, choices: [], usage: usageOf(jobs.map(({ run }) => run.record)) };
}

function frame({ servedName, clock }: ApiContext, jobs: readonly Job[]): Record<string, unknown> {
  const id = `cmpl-${jobs[0]?.run.record.id}`;
  return { id, object: 'text_completion', created: Math.floor(clock.wallMs() / 1_000), model: servedName };
}

/** Four parallel lists, as this endpoint has them; without a tokenizer a token's name is `token_id:N`. */
async function logprobs(context: ApiContext, tokens: readonly TokenMessage[], textOffset: number): Promise<unknown> {
  const ids = [...new Set(tokens.flatMap(({ id, topIds }) => [id, ...topIds]))];
  const texts = await context.codec.decode(
    ids.map((id) => [id]),
    false,
  );
  const nameOf = (id: number): string =>
    context.codec.hasTokenizer ? (texts[ids.indexOf(id)] ?? '') : `token_id:${id}`;
  let offset = textOffset;
  return {
    tokens: tokens.map(({ id }) => nameOf(id)),
    token_logprobs: tokens.map(({ logprob }) => logprob[0] ?? null),
    // The chosen token is always there, besides the best ones.
    top_logprobs: tokens.map(({ id, logprob, topIds, topLogprobs }) => {
      const best = topIds.map((top, i): [string, number | undefined] => [nameOf(top), topLogprobs[i]]);
      return Object.fromEntries([...best, [nameOf(id), logprob[0]]]);
    }),
    text_offset: tokens.map(({ id }) => {
      const at = offset;
      offset += context.codec.hasTokenizer ? nameOf(id).length : 0;
      return at;
    }),
  };
}
