/** `/v1/completions`: prompts as text or token ids, one or several. */
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { TokenMessage } from '../../../shared/protocol/messages.ts';
import { checkModel, finishedHeaders, jobOf, tokenNames, usageOf, type Usage } from './common.ts';
import { sendEvents } from './event_stream.ts';
import type { CompletionBody } from './parameters.ts';
import { merge, startPrompt, type ApiContext, type Piece, type PromptRun } from './prompt_run.ts';
import { inScope, type RequestScope } from './request_scope.ts';

/** OpenAI's default for this endpoint. */
const DEFAULT_MAX_TOKENS = 16;

interface Job {
  readonly run: PromptRun;
  readonly promptTokens: readonly number[];
}

export function completions(context: ApiContext, request: FastifyRequest, reply: FastifyReply): Promise<unknown> {
  return inScope(context, request, reply, async (scope) => {
    const body = await context.bodies.read('completion', request.body as Buffer, scope.signal);
    checkModel(context, body.model);
    scope.names = { ...scope.names, clientId: scope.names.clientId ?? body.requestId };
    const jobs = await startAll(context, body, scope);
    const headers = (): Record<string, string> => (jobs[0] ? finishedHeaders(jobs[0].run.record, body.ignored) : {});
    if (!body.isStream) {
      const answer = await whole(context, body, jobs);
      void reply.headers(headers());
      return answer;
    }
    const { clock, stalledReaderMs } = context;
    await sendEvents(reply, scope.own(events(context, body, jobs)), scope, {
      ...{ clock, stalledReaderMs, headers },
    });
    return undefined;
  });
}

/** Every prompt is checked before any is placed. */
async function startAll(context: ApiContext, body: CompletionBody, scope: RequestScope): Promise<Job[]> {
  const jobs: Job[] = [];
  for (const prompt of body.prompts) {
    const record = scope.open('/v1/completions');
    const promptTokens =
      typeof prompt === 'string'
        ? await context.codec.encode(prompt, body.hasSpecialTokens, scope.signal)
        : Array.from(prompt);
    const maxTokens =
      body.maxTokens ?? Math.max(1, Math.min(DEFAULT_MAX_TOKENS, context.maxModelLen() - promptTokens.length));
    const job = { promptTokens, maxTokens, ...jobOf(context, body) };
    const run = startPrompt(context, record, job, scope.signal);
    scope.own(run.pieces);
    jobs.push({ promptTokens, run });
  }
  return jobs;
}

async function whole(context: ApiContext, body: CompletionBody, jobs: readonly Job[]): Promise<unknown> {
  const outputs = jobs.map(() => ({
    text: [] as string[],
    tokens: [] as TokenMessage[],
    last: undefined as Piece | undefined,
  }));
  for await (const { index, piece } of merge(jobs.map(({ run }) => run))) {
    const output = outputs[index];
    if (!output) continue;
    output.text.push(piece.text);
    output.tokens.push(...piece.tokens);
    output.last = piece;
  }
  const choices = await Promise.all(
    outputs.map(async ({ text, tokens, last }, index) => ({
      index,
      text: text.join(''),
      logprobs: body.numLogprobs >= 0 ? await logprobs(context, tokens, 0) : null,
      finish_reason: last?.finish ?? null,
      stop_reason: last?.stopReason ?? null,
      ...(body.isReturningIds
        ? { prompt_token_ids: jobs[index]?.promptTokens, token_ids: tokens.map(({ id }) => id) }
        : {}),
    })),
  );
  return { ...frame(context, jobs), choices, usage: usageOf(jobs.map(({ run }) => run.record)) };
}

async function* events(context: ApiContext, body: CompletionBody, jobs: readonly Job[]): AsyncGenerator {
  const head = frame(context, jobs);
  const textLengths = jobs.map(() => 0);
  const hasBegun = jobs.map(() => false);
  const usage = (index: number): { usage?: Usage | null } => {
    const record = jobs[index]?.run.record;
    return body.hasUsage ? { usage: body.hasContinuousUsage && record ? usageOf([record]) : null } : {};
  };
  for await (const { index, piece } of merge(jobs.map(({ run }) => run))) {
    const { text, tokens, finish, stopReason } = piece;
    if (text === '' && finish === undefined && body.numLogprobs < 0 && !body.isReturningIds) continue;
    const choice = {
      index,
      text,
      logprobs: body.numLogprobs >= 0 ? await logprobs(context, tokens, textLengths[index] ?? 0) : null,
      finish_reason: finish ?? null,
      stop_reason: finish ? stopReason : null,
      ...(body.isReturningIds ? { token_ids: tokens.map(({ id }) => id) } : {}),
      ...(body.isReturningIds && !hasBegun[index] ? { prompt_token_ids: jobs[index]?.promptTokens } : {}),
    };
    hasBegun[index] = true;
    textLengths[index] = (textLengths[index] ?? 0) + text.length;
    yield { ...head, choices: [choice], ...usage(index) };
  }
  if (body.hasUsage) yield { ...head, choices: [], usage: usageOf(jobs.map(({ run }) => run.record)) };
}

function frame({ servedName, clock }: ApiContext, jobs: readonly Job[]): Record<string, unknown> {
  const record = jobs[0]?.run.record;
  const id = `cmpl-${record?.names.clientId ?? record?.id}`;
  return { id, object: 'text_completion', created: Math.floor(clock.wallMs() / 1_000), model: servedName };
}

/** Four parallel lists, as this endpoint has them. */
async function logprobs(context: ApiContext, tokens: readonly TokenMessage[], textOffset: number): Promise<unknown> {
  const nameOf = await tokenNames(context, tokens);
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
