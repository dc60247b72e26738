/** `/v1/completions`: prompts as text or token ids, one or several. */
import type { CallFor } from '../../../../shared/base/call_queue.ts';
import { scopeNumber } from '../../../../shared/kv/format.ts';
import type { AnswerWriters } from '../../api/answer_writer.ts';
import type { ApiContext } from '../../api/api_context.ts';
import { constraintOf } from '../../api/constraints.ts';
import { generationOf } from '../../api/new_generation.ts';
import { refuseTooMany } from '../../api/prompt_logprobs.ts';
import { reserveTokens } from '../../api/reserved_tokens.ts';
import { startSamples, type PromptRun } from '../../api/samples.ts';
import type { Surface, SurfaceRequest } from '../../api/surface.ts';
import { truncated } from '../../api/truncation.ts';
import { completionKind } from './body_kinds.ts';
import { choiceWriters, type AnswerFormat } from './choices.ts';
import { completionLogprobs, LogprobLists, type Logprobs } from './completion_logprobs.ts';
import { openaiErrors } from './errors.ts';
import { openaiEvents } from './events.ts';
import { completionSchema } from './parameter_schemas.ts';
import type { CompletionBody } from './parameters.ts';

/** New tokens when a request names no number: OpenAI's default for this endpoint. */
export const DEFAULT_MAX_TOKENS = 16;

/** `/v1/completions`, for one prompt or several, whole or streamed. */
export const completionSurface: Surface<CompletionBody> = {
  // The second path is llama.cpp's.
  paths: ['/v1/completions', '/completions'],
  kind: completionKind,
  counts: 'generation',
  operation: 'text_completion',
  errors: openaiErrors,
  events: openaiEvents,
  describe: {
    summary: 'Continues texts or token ids, as JSON, or with `stream` as server-sent events',
    schemas: { Completion: completionSchema },
  },
  answer: answerCompletion,
};

/** Returns the writers of a completion's answer. @throws Failure when the request is refused */
export async function answerCompletion(request: SurfaceRequest<CompletionBody>): Promise<AnswerWriters> {
  const { context, body } = request;
  const [first, ...others] = await startAll(request);
  if (!first) throw new Error('a completion has at least one prompt');
  return choiceWriters({ context, body, runs: [first, ...others] }, completionFormat(body));
}

/** Checks every prompt before any is placed: a run starts when its first delta is requested. */
async function startAll(request: SurfaceRequest<CompletionBody>): Promise<PromptRun[]> {
  const { context, scope, body, prompts, openPrompt, trace: first } = request;
  const runs: PromptRun[] = [];
  const numPrompts = (prompts ?? body.prompts).length;
  const constraint = await constraintOf(context, body.constraint, body.numSamples * numPrompts, scope);
  let numAsked = 0;
  for (const [i, prompt] of (prompts ?? body.prompts).entries()) {
    const trace = runs.length === 0 ? first : openPrompt();
    const whole = await encoded(context, body, prompt, scope);
    const room = { maxModelLen: context.maxModelLen(), maxTokens: body.maxTokens, usualTokens: DEFAULT_MAX_TOKENS };
    const promptTokens = truncated(whole, body.truncation, room);
    const maxTokens =
      body.maxTokens ?? Math.max(1, Math.min(DEFAULT_MAX_TOKENS, room.maxModelLen - promptTokens.length));
    trace.emit({ kind: 'read', facts: { model: context.servedName, promptTokens: promptTokens.length } });
    const generation = {
      ...generationOf(request, promptTokens, maxTokens, 'prompt', constraint),
      isFromIds: typeof body.prompts[i] !== 'string',
    };
    numAsked += promptTokens.length * generation.request.promptLogprobs;
    refuseTooMany(numAsked, body.numPromptLogprobs < 0 ? 'echo' : 'prompt_logprobs');
    const shown = promptTokens.length < whole.length ? promptTokens : body.prompts[i];
    const echo = body.isEchoing ? shown : undefined;
    runs.push(...startSamples(context, scope, { trace, generation, echo }, body.numSamples));
  }
  const firsts = runs.filter(({ trace, first: own }) => trace === own.trace);
  await reserveTokens(context, scope, firsts, body.numSamples);
  return runs;
}

async function encoded(
  { codec }: ApiContext,
  { hasSpecialTokens, truncation, cacheScope }: CompletionBody,
  prompt: string | Uint32Array,
  asking: CallFor,
): Promise<Uint32Array> {
  return typeof prompt === 'string'
    ? codec.encode(prompt, hasSpecialTokens, asking, {
        cutSide: truncation?.side,
        answerScope: scopeNumber(cacheScope),
      })
    : prompt;
}

function completionFormat(body: CompletionBody): AnswerFormat<Logprobs> {
  const { isReturningIds, sampling } = body;
  const promptIds = (promptTokens: Uint32Array): object =>
    isReturningIds ? { prompt_token_ids: Array.from(promptTokens) } : {};
  return {
    idPrefix: 'cmpl-',
    object: { answer: 'text_completion', chunk: 'text_completion' },
    logprobs: ({ tokens, nameOf, offsetOf }) => completionLogprobs(tokens, nameOf, offsetOf, sampling.numLogprobs),
    logprobList: () => new LogprobLists(),
    choice: ({ index, text, ids, finish, stopReason, matchedStop }, promptTokens) => ({
      index,
      text,
      finish_reason: finish,
      stop_reason: stopReason,
      matched_stop: matchedStop,
      prompt_token_ids: isReturningIds ? Array.from(promptTokens) : null,
      token_ids: isReturningIds ? ids : null,
    }),
    rest: () => ({}),
    hasPromptLogprobsInChoice: true,
    plain: ({ text, finish }) => (finish || text === '' || isReturningIds ? undefined : { kind: 'content', text }),
    chunks({ index, text, ids, finish, stopReason, matchedStop, isFirst }, logprobs, promptTokens) {
      const isEmpty = text === '' && finish === undefined && logprobs === null && !isReturningIds;
      if (isEmpty) return [];
      const choice = {
        index,
        text,
        logprobs,
        finish_reason: finish ?? null,
        stop_reason: finish ? stopReason : null,
        matched_stop: finish ? matchedStop : null,
        ...(isReturningIds && ids ? { token_ids: ids } : {}),
        ...(isFirst ? promptIds(promptTokens) : {}),
      };
      return [{ choice }];
    },
  };
}
