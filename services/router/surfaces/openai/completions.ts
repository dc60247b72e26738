/** `/v1/completions`: prompts as text or token ids, one or several. */
import { completionKind } from './body_kinds.ts';
import { Failure } from '../../../../shared/base/failure.ts';
import type { RequestTrace } from '../../record/request_log.ts';
import type { ReadPromptBody } from '../../api/prompt_tools.ts';
import type { ApiContext } from '../../api/api_context.ts';
import { respond, startSamples, type AnswerFormat, type PromptRun } from './choices.ts';
import { generationOf } from './common.ts';
import { constraintOf } from './constraints.ts';
import { completionLogprobs, LogprobLists, type Logprobs } from './completion_logprobs.ts';
import type { CompletionBody } from './parameters.ts';
import { refuseTooMany } from './prompt_logprobs.ts';
import type { RequestScope } from '../../api/request_scope.ts';
import { truncated } from './truncation.ts';

/** New tokens when a request names no number: OpenAI's default for this endpoint. */
export const DEFAULT_MAX_TOKENS = 16;

/**
 * Answers `/v1/completions` for one prompt or several, whole or streamed. @throws Failure when the request is refused or cannot be
 * finished.
 */
export async function completions(all: ApiContext, scope: RequestScope): Promise<void> {
  const trace = scope.open('/v1/completions');
  const read = await all.bodies.readPrompts(completionKind, scope.body, all.of(undefined), scope.signal);
  await answerCompletion(all, scope, trace, read);
}

/** Answers a completion whose body has been read. @throws Failure when the request is refused or cannot be finished. */
export async function answerCompletion(
  all: ApiContext,
  scope: RequestScope,
  trace: RequestTrace,
  { body, prompts, failure }: ReadPromptBody<CompletionBody>,
): Promise<void> {
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
  prompts: readonly Uint32Array[] | undefined,
  scope: RequestScope,
  first: RequestTrace,
): Promise<PromptRun[]> {
  const runs: PromptRun[] = [];
  const numPrompts = (prompts ?? body.prompts).length;
  const constraint = await constraintOf(context, body.constraint, body.numSamples * numPrompts, scope);
  let numAsked = 0;
  for (const [i, prompt] of (prompts ?? body.prompts).entries()) {
    const trace = runs.length === 0 ? first : scope.open('/v1/completions');
    const whole = await encoded(context, body, prompt, scope.signal);
    const room = { maxModelLen: context.maxModelLen(), maxTokens: body.maxTokens, usualTokens: DEFAULT_MAX_TOKENS };
    const promptTokens = truncated(whole, body.truncation, room);
    const maxTokens =
      body.maxTokens ?? Math.max(1, Math.min(DEFAULT_MAX_TOKENS, room.maxModelLen - promptTokens.length));
    trace.model = context.servedName;
    trace.promptTokens = promptTokens.length;
    const generation = {
      ...generationOf(context, body, promptTokens, maxTokens, 'prompt', constraint),
      isFromIds: typeof body.prompts[i] !== 'string',
    };
    numAsked += promptTokens.length * generation.request.promptLogprobs;
    refuseTooMany(numAsked, body.numPromptLogprobs < 0 ? 'echo' : 'prompt_logprobs');
    const shown = promptTokens.length < whole.length ? promptTokens : body.prompts[i];
    const echo = body.isEchoing ? shown : undefined;
    runs.push(...startSamples(context, scope, { trace, generation, echo }, body.numSamples));
  }
  return runs;
}

async function encoded(
  { codec }: ApiContext,
  { hasSpecialTokens, truncation, cacheSalt }: CompletionBody,
  prompt: string | Uint32Array,
  signal: AbortSignal,
): Promise<Uint32Array> {
  return typeof prompt === 'string'
    ? codec.encode(prompt, hasSpecialTokens, signal, { cutSide: truncation?.side, isShared: cacheSalt === '' })
    : prompt;
}

function completionFormat(context: ApiContext, body: CompletionBody): AnswerFormat<Logprobs> {
  const { isReturningIds, isNamingIds, sampling } = body;
  const promptIds = (promptTokens: Uint32Array): object =>
    isReturningIds ? { prompt_token_ids: Array.from(promptTokens) } : {};
  return {
    idPrefix: 'cmpl-',
    object: { answer: 'text_completion', chunk: 'text_completion' },
    logprobs: (tokens, offsetOf) =>
      completionLogprobs(context, tokens, offsetOf, { numTop: sampling.numLogprobs, isNamingIds }),
    logprobList: () => new LogprobLists(),
    choice: ({ index, text, ids, finish, stopReason, matchedStop }, promptTokens) => ({
      ...{ index, text, finish_reason: finish, stop_reason: stopReason, matched_stop: matchedStop },
      prompt_token_ids: isReturningIds ? Array.from(promptTokens) : null,
      token_ids: isReturningIds ? ids : null,
    }),
    rest: () => ({}),
    hasPromptLogprobsInChoice: true,
    chunks({ index, text, ids, logprobs, finish, stopReason, matchedStop, isFirst }, promptTokens) {
      const isEmpty = text === '' && finish === undefined && logprobs === null && !isReturningIds;
      if (isEmpty) return [];
      const choice = {
        ...{ index, text, logprobs, finish_reason: finish ?? null },
        ...{ stop_reason: finish ? stopReason : null, matched_stop: finish ? matchedStop : null },
        ...(isReturningIds && ids ? { token_ids: ids } : {}),
        ...(isFirst ? promptIds(promptTokens) : {}),
      };
      return [{ choice }];
    },
  };
}
