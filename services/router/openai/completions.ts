/** `/v1/completions`: prompts as text or token ids, one or several. */
import type { SampledMessage } from '../../../shared/protocol/messages.ts';
import type { Generation } from '../relay/generation.ts';
import type { RequestRecord } from '../relay/request_log.ts';
import type { ApiContext } from './api_context.ts';
import { answerJson, finishedHeaders, generationOf, tokenNames, usageOf, type Usage } from './common.ts';
import { sendEvents } from './event_stream.ts';
import type { CompletionBody } from './parameters.ts';
import { merge, runPrompt, type Piece } from './prompt_run.ts';
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
  const { clock, stalledReaderMs } = context;
  await sendEvents(scope.own(events(context, body, runs, scope.signal)), scope, {
    ...{ clock, stalledReaderMs, headers },
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
    numAsked += promptTokens.length * (1 + (generation.promptLogprobs?.numTop ?? -1));
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
    promptLogprobs: undefined as string | undefined,
    last: undefined as Piece | undefined,
  }));
  for await (const { index, piece } of merge(runs.map(({ pieces }) => pieces))) {
    const output = outputs[index];
    const run = runs[index];
    if (!output || !run) continue;
    if (!output.last) {
      if (body.isEchoing) output.text.push(await promptTextOf(context, run.prompt, signal));
      if (body.isEchoing && body.numLogprobs >= 0) {
        for (const slice of inSlices(promptTokensOf(run.generation))) {
          const lists = await logprobs(context, slice, output.lists.textLength, body.numLogprobs);
          output.lists.add(lists, context.codec.hasTokenizer);
          await context.clock.turn();
        }
      }
      if (body.numPromptLogprobs >= 0)
        output.promptLogprobs = await promptLogprobsJson(context, run.generation, body.numPromptLogprobs);
    }
    output.text.push(piece.text);
    output.ids.push(...piece.tokens.map(({ token }) => token));
    if (body.numLogprobs >= 0)
      output.lists.add(
        await logprobs(context, piece.tokens, output.lists.textLength, body.numLogprobs),
        context.codec.hasTokenizer,
      );
    output.last = piece;
  }
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
    logprobs: body.numLogprobs >= 0 ? lists.json() : 'null',
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
  const textLengths = runs.map(() => 0);
  const hasBegun = runs.map(() => false);
  const usage = (index: number): { usage?: Usage | null } => {
    const record = runs[index]?.record;
    return body.hasUsage ? { usage: body.hasContinuousUsage && record ? usageOf([record]) : null } : {};
  };
  for await (const { index, piece } of merge(runs.map(({ pieces }) => pieces))) {
    const { text, tokens, finish, stopReason } = piece;
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
      textLengths[index] = echoed.length;
      if (body.numLogprobs < 0) yield chunk(echoed, null, ids);
      // The text at once, the lists in slices.
      for (const [i, slice] of (body.numLogprobs < 0 ? [] : inSlices(promptTokensOf(run.generation))).entries()) {
        const lists = await logprobs(context, slice, i === 0 ? 0 : (textLengths[index] ?? 0), body.numLogprobs);
        textLengths[index] = (lists.text_offset.at(-1) ?? 0) + (lists.tokens.at(-1)?.length ?? 0);
        yield chunk(i === 0 ? echoed : '', lists, i === 0 ? ids : {});
      }
    }
    if (text === '' && finish === undefined && body.numLogprobs < 0 && !body.isReturningIds) continue;
    const choice = {
      index,
      text,
      logprobs:
        body.numLogprobs >= 0 ? await logprobs(context, tokens, textLengths[index] ?? 0, body.numLogprobs) : null,
      finish_reason: finish ?? null,
      stop_reason: finish ? stopReason : null,
      ...(body.isReturningIds ? { token_ids: tokens.map(({ token }) => token) } : {}),
      ...(body.isReturningIds && !hasBegun[index]
        ? { prompt_token_ids: Array.from(runs[index]?.generation.promptTokens ?? []) }
        : {}),
    };
    hasBegun[index] = true;
    textLengths[index] = (textLengths[index] ?? 0) + text.length;
    yield { ...head, choices: [choice], ...usage(index) };
  }
  if (body.hasUsage) yield { ...head, choices: [], usage: usageOf(runs.map(({ record }) => record)) };
}

function frame({ servedName, clock }: ApiContext, runs: readonly Run[]): Record<string, unknown> {
  const record = runs[0]?.record;
  const id = `cmpl-${record?.names.clientId ?? record?.id}`;
  return { id, object: 'text_completion', created: Math.floor(clock.wallMs() / 1_000), model: servedName };
}

/** Four parallel lists, as this endpoint has them. */
interface Logprobs {
  readonly tokens: readonly string[];
  readonly token_logprobs: readonly (number | null)[];
  readonly top_logprobs: readonly (Record<string, number | undefined> | null)[];
  readonly text_offset: readonly number[];
}

/** The lists of a whole output, joined from those of its tokens as text. */
class LogprobLists {
  readonly #parts: Record<keyof Logprobs, string[]> = {
    tokens: [],
    token_logprobs: [],
    top_logprobs: [],
    text_offset: [],
  };
  textLength = 0;

  add(logprobs: Logprobs, hasText: boolean): void {
    for (const [name, parts] of Object.entries(this.#parts) as [keyof Logprobs, string[]][]) {
      for (const one of logprobs[name]) parts.push(JSON.stringify(one));
    }
    const last = hasText ? (logprobs.tokens.at(-1)?.length ?? 0) : 0;
    this.textLength = (logprobs.text_offset.at(-1) ?? this.textLength) + last;
  }

  json(): string {
    return `{${Object.entries(this.#parts)
      .map(([name, parts]) => `"${name}":[${parts.join()}]`)
      .join()}}`;
  }
}

async function logprobs(
  context: ApiContext,
  tokens: readonly SampledMessage[],
  textOffset: number,
  numTop: number,
): Promise<Logprobs> {
  const nameOf = await tokenNames(context, tokens);
  let offset = textOffset;
  return {
    tokens: tokens.map(({ token }) => nameOf(token)),
    token_logprobs: tokens.map(({ logprob }) => logprob[0] ?? null),
    // The chosen token is always there, besides the best ones.
    top_logprobs: tokens.map(({ token, logprob, topTokens, topLogprobs }) => {
      // The first token of a prompt has none.
      if (logprob.length === 0) return null;
      const best = topTokens
        .slice(0, numTop)
        .map((top, i): [string, number | undefined] => [nameOf(top), topLogprobs[i]]);
      return Object.fromEntries([...best, [nameOf(token), logprob[0]]]);
    }),
    text_offset: tokens.map(({ token }) => {
      const at = offset;
      offset += context.codec.hasTokenizer ? nameOf(token).length : 0;
      return at;
    }),
  };
}
