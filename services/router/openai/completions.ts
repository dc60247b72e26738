/** `/v1/completions`: prompts as text or token ids, one or several. */
import type { Generation } from '../relay/generation.ts';
import type { RequestRecord } from '../relay/request_log.ts';
import { numCharactersOf } from '../text/text_stream.ts';
import type { ApiContext } from './api_context.ts';
import { answerJson, finishedHeaders, generationOf, usageOf, type Usage } from './common.ts';
import { completionLogprobs, LogprobLists, PromptOffsets, type Logprobs } from './completion_logprobs.ts';
import { sendEvents } from './event_stream.ts';
import type { CompletionBody } from './parameters.ts';
import { merge, prefillReported, runPrompt, type Piece } from './prompt_run.ts';
import { inSlices, promptLogprobsJson, promptTextOf, promptTokensOf, refuseTooMany } from './prompt_logprobs.ts';
import type { RequestScope } from './request_scope.ts';

/** OpenAI's default for this endpoint. */
const DEFAULT_MAX_TOKENS = 16;

/** One prompt of the request, under way. */
interface Run {
  readonly record: RequestRecord;
  readonly prompt: string | Uint32Array;
  readonly generation: Generation;
  readonly pieces: AsyncGenerator<Piece>;
}

export async function completions(all: ApiContext, scope: RequestScope): Promise<void> {
  const first = scope.open('/v1/completions');
  const body = await all.bodies.read('completion', scope.body, scope.signal);
  const context = all.of(body.model);
  scope.named(body.requestId);
  const runs = await startAll(context, body, scope, first);
  const headers = (): Record<string, string> => finishedHeaders(first, body.ignored);
  if (!body.isStream) {
    const answer = await whole(context, body, runs, scope.signal);
    scope.answer(answer, headers());
    return;
  }
  const { clock, stalledReaderMs, sseKeepAliveMs: keepAliveMs } = context;
  await sendEvents(scope.own(events(context, body, runs, scope.signal)), scope, {
    ...{ clock, stalledReaderMs, keepAliveMs, headers },
  });
}

/** Every prompt is checked before any is placed: a run begins when its first piece is asked for. */
async function startAll(
  context: ApiContext,
  body: CompletionBody,
  scope: RequestScope,
  first: RequestRecord,
): Promise<Run[]> {
  const runs: Run[] = [];
  let numAsked = 0;
  for (const prompt of body.prompts) {
    const record = runs.length === 0 ? first : scope.open('/v1/completions');
    const promptTokens =
      typeof prompt === 'string' ? await context.codec.encode(prompt, body.hasSpecialTokens, scope.signal) : prompt;
    const maxTokens =
      body.maxTokens ?? Math.max(1, Math.min(DEFAULT_MAX_TOKENS, context.maxModelLen() - promptTokens.length));
    record.model = context.servedName;
    record.promptTokens = promptTokens.length;
    const generation = generationOf(context, body, promptTokens, maxTokens, 'prompt');
    numAsked += promptTokens.length * generation.request.promptLogprobs;
    refuseTooMany(numAsked, body.numPromptLogprobs < 0 ? 'echo' : 'prompt_logprobs');
    const pieces = scope.own(runPrompt(context, record, generation, scope));
    runs.push({ record, prompt, generation, pieces });
  }
  return runs;
}

async function whole(
  context: ApiContext,
  body: CompletionBody,
  runs: readonly Run[],
  signal: AbortSignal,
): Promise<string> {
  const outputs = runs.map(() => ({
    text: [] as string[],
    ids: [] as number[],
    lists: new LogprobLists(),
    /** Characters of the prompt, where it is a part of the text. */
    numEchoed: 0,
    promptLogprobs: undefined as string | undefined,
    last: undefined as Piece | undefined,
  }));
  for await (const { index, piece } of merge(runs.map(({ pieces }) => pieces))) {
    const output = outputs[index];
    const run = runs[index];
    if (!output || !run) continue;
    if (!output.last) {
      const echoed = body.isEchoing ? await promptTextOf(context, run.prompt, signal) : '';
      output.text.push(echoed);
      output.numEchoed = numCharactersOf(echoed);
      if (body.isEchoing && body.sampling.numLogprobs >= 0) {
        const offsets = new PromptOffsets(echoed);
        for (const slice of inSlices(promptTokensOf(run.generation))) {
          output.lists.add(
            await completionLogprobs(context, slice, (name) => offsets.next(name), body.sampling.numLogprobs),
          );
          await context.clock.turn();
        }
      }
      if (body.numPromptLogprobs >= 0)
        output.promptLogprobs = await promptLogprobsJson(context, run.generation, body.numPromptLogprobs);
    }
    output.text.push(piece.text);
    output.ids.push(...piece.tokens.map(({ token }) => token));
    if (body.sampling.numLogprobs >= 0)
      output.lists.add(
        await completionLogprobs(
          context,
          piece.tokens,
          () => output.numEchoed + piece.offset,
          body.sampling.numLogprobs,
        ),
      );
    output.last = piece;
  }
  for (const { record } of runs) await prefillReported(record, context.clock, signal);
  const choices = outputs.map(({ text, ids, lists, promptLogprobs, last }, index) => ({
    fields: {
      index,
      text: text.join(''),
      finish_reason: last?.finish ?? null,
      stop_reason: last?.stopReason ?? null,
      ...(body.isReturningIds
        ? { prompt_token_ids: Array.from(runs[index]?.generation.promptTokens ?? []), token_ids: ids }
        : {}),
    },
    logprobs: body.sampling.numLogprobs >= 0 ? lists.json() : 'null',
    ...(promptLogprobs === undefined ? {} : { promptLogprobs }),
  }));
  return answerJson(frame(context, runs), choices, { usage: usageOf(runs.map(({ record }) => record)) });
}

async function* events(
  context: ApiContext,
  body: CompletionBody,
  runs: readonly Run[],
  signal: AbortSignal,
): AsyncGenerator {
  const head = frame(context, runs);
  const numEchoed = runs.map(() => 0);
  const numSent = runs.map(() => 0);
  const hasBegun = runs.map(() => false);
  const usage = (index: number): { usage?: Usage | null } => {
    const record = runs[index]?.record;
    return body.hasUsage ? { usage: body.hasContinuousUsage && record ? usageOf([record], numSent[index]) : null } : {};
  };
  for await (const { index, piece } of merge(runs.map(({ pieces }) => pieces))) {
    const { text, tokens, finish, stopReason, offset } = piece;
    const run = runs[index];
    if (body.isEchoing && run && !hasBegun[index]) {
      const echoed = await promptTextOf(context, run.prompt, signal);
      const ids = body.isReturningIds
        ? { prompt_token_ids: Array.from(run.generation.promptTokens), token_ids: [] }
        : {};
      const chunk = (text: string, lists: Logprobs | null, more: object): object => ({
        ...{ ...head, ...usage(index) },
        choices: [{ index, text, logprobs: lists, finish_reason: null, stop_reason: null, ...more }],
      });
      hasBegun[index] = true;
      numEchoed[index] = numCharactersOf(echoed);
      const offsets = new PromptOffsets(echoed);
      if (body.sampling.numLogprobs < 0) yield chunk(echoed, null, ids);
      // The text at once, the lists in slices.
      for (const [i, slice] of (body.sampling.numLogprobs < 0
        ? []
        : inSlices(promptTokensOf(run.generation))
      ).entries()) {
        const lists = await completionLogprobs(context, slice, (name) => offsets.next(name), body.sampling.numLogprobs);
        yield chunk(i === 0 ? echoed : '', lists, i === 0 ? ids : {});
      }
    }
    numSent[index] = piece.numTokens;
    if (text === '' && finish === undefined && body.sampling.numLogprobs < 0 && !body.isReturningIds) continue;
    const choice = {
      index,
      text,
      logprobs:
        body.sampling.numLogprobs >= 0
          ? await completionLogprobs(context, tokens, () => (numEchoed[index] ?? 0) + offset, body.sampling.numLogprobs)
          : null,
      finish_reason: finish ?? null,
      stop_reason: finish ? stopReason : null,
      ...(body.isReturningIds ? { token_ids: tokens.map(({ token }) => token) } : {}),
      ...(body.isReturningIds && !hasBegun[index]
        ? { prompt_token_ids: Array.from(runs[index]?.generation.promptTokens ?? []) }
        : {}),
    };
    hasBegun[index] = true;
    yield { ...head, choices: [choice], ...usage(index) };
  }
  for (const { record } of body.hasUsage ? runs : []) await prefillReported(record, context.clock, signal);
  if (body.hasUsage) yield { ...head, choices: [], usage: usageOf(runs.map(({ record }) => record)) };
}

function frame({ servedName, clock }: ApiContext, runs: readonly Run[]): Record<string, unknown> {
  const record = runs[0]?.record;
  const id = `cmpl-${record?.names.clientId ?? record?.id}`;
  return { id, object: 'text_completion', created: Math.floor(clock.wallMs() / 1_000), model: servedName };
}
