/** `/v1/completions`: prompts as text or token ids, one or several. */
import { Failure } from '../../../shared/base/failure.ts';
import type { RequestTrace } from '../relay/request_log.ts';
import type { ApiContext } from './api_context.ts';
import { respond, startSamples, type AnswerFormat, type PromptRun } from './choices.ts';
import { generationOf } from './common.ts';
import { constraintOf } from './constraints.ts';
import { completionLogprobs, LogprobLists, type Logprobs } from './completion_logprobs.ts';
import type { CompletionBody } from './parameters.ts';
import { refuseTooMany } from './prompt_logprobs.ts';
import type { RequestScope } from './request_scope.ts';

/** OpenAI's default for this endpoint. */
const DEFAULT_MAX_TOKENS = 16;

/**
 * Answers `/v1/completions` for one prompt or several, whole or streamed. @throws Failure when the request is refused or cannot be
 * finished.
 */
export async function completions(all: ApiContext, scope: RequestScope): Promise<void> {
  const trace = scope.open('/v1/completions');
  const { body, prompts, failure } = await all.bodies.readPrompts(
    'completion',
    scope.body,
    all.of(undefined),
    scope.signal,
  );
  const context = all.of(body.model);
  scope.named(body.requestId);
  if (failure) throw new Failure(failure.code, failure.message);
  const [first, ...others] = await startAll(context, body, prompts, scope, trace);
  if (first) await respond(context, scope, body, [first, ...others], completionFormat(context, body));
}

/** Checks every prompt before any is placed: a run starts when its first delta is requested. */
async function startAll(
  context: ApiContext,
  body: CompletionBody,
  encoded: readonly Uint32Array[] | undefined,
  scope: RequestScope,
  first: RequestTrace,
): Promise<PromptRun[]> {
  const runs: PromptRun[] = [];
  const constraint = await constraintOf(context, body.constraint, scope.signal);
  let numAsked = 0;
  for (const [i, prompt] of (encoded ?? body.prompts).entries()) {
    const trace = runs.length === 0 ? first : scope.open('/v1/completions');
    const promptTokens =
      typeof prompt === 'string' ? await context.codec.encode(prompt, body.hasSpecialTokens, scope.signal) : prompt;
    const maxTokens =
      body.maxTokens ?? Math.max(1, Math.min(DEFAULT_MAX_TOKENS, context.maxModelLen() - promptTokens.length));
    trace.model = context.servedName;
    trace.promptTokens = promptTokens.length;
    const generation = generationOf(context, body, promptTokens, maxTokens, 'prompt', constraint);
    numAsked += promptTokens.length * generation.request.promptLogprobs;
    refuseTooMany(numAsked, body.numPromptLogprobs < 0 ? 'echo' : 'prompt_logprobs');
    const echo = body.isEchoing ? body.prompts[i] : undefined;
    runs.push(...startSamples(context, scope, { trace, generation, echo }, body.numSamples));
  }
  return runs;
}

function completionFormat(context: ApiContext, body: CompletionBody): AnswerFormat<Logprobs> {
  const { isReturningIds, sampling } = body;
  const promptIds = (promptTokens: Uint32Array): object =>
    isReturningIds ? { prompt_token_ids: Array.from(promptTokens) } : {};
  return {
    idPrefix: 'cmpl-',
    object: { collect: 'text_completion', chunk: 'text_completion' },
    logprobs: (tokens, offsetOf) => completionLogprobs(context, tokens, offsetOf, sampling.numLogprobs),
    logprobList: () => new LogprobLists(),
    choice: ({ index, text, ids, finish, stopReason }, promptTokens) => ({
      ...{ index, text, finish_reason: finish, stop_reason: stopReason },
      ...promptIds(promptTokens),
      ...(isReturningIds ? { token_ids: ids } : {}),
    }),
    rest: () => ({}),
    hasPromptLogprobsInChoice: true,
    chunks({ index, text, ids, logprobs, finish, stopReason, isFirst }, promptTokens) {
      const isEmpty = text === '' && finish === undefined && logprobs === null && !isReturningIds;
      if (isEmpty) return [];
      const choice = {
        ...{ index, text, logprobs, finish_reason: finish ?? null, stop_reason: finish ? stopReason : null },
        ...(isReturningIds && ids ? { token_ids: ids } : {}),
        ...(isFirst ? promptIds(promptTokens) : {}),
      };
      return [{ choice }];
    },
  };
}
