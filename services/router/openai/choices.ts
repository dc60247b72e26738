/**
 * The choices of an answer, whole or streamed: merges the deltas of all prompts into parts, which the format of each endpoint
 * (chat.ts, completions.ts) turns into JSON.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import type { SampledMessage } from '../../../shared/protocol/messages.ts';
import type { Generation } from '../relay/generation.ts';
import type { RequestCounts } from '../relay/request_counts.ts';
import type { RequestTrace } from '../relay/request_log.ts';
import { numCharactersOf } from '../text/text_stream.ts';
import type { ApiContext } from './api_context.ts';
import { answerJson, finishedHeaders, usageOf, type Usage } from './common.ts';
import { PromptOffsets, type OffsetOf } from './completion_logprobs.ts';
import { sendEvents } from './event_stream.ts';
import type { CommonBody } from './parameters.ts';
import { inSlices, promptLogprobsJson, promptTextOf, promptTokensOf } from './prompt_logprobs.ts';
import { merge, type AnswerDelta } from './prompt_run.ts';
import type { RequestScope } from './request_scope.ts';

/** A prefill's report may come a moment after the last token; usage and headers of an answer wait no longer than this for it. */
const REPORT_WAIT_MS = 20;

/** One prompt of a request, under way. */
export interface PromptRun {
  readonly trace: RequestTrace;
  readonly generation: Generation;
  readonly deltas: AsyncGenerator<AnswerDelta>;
  /** The prompt, as text or token ids, that the choice's text begins with; undefined without `echo`. */
  readonly echo: string | Uint32Array | undefined;
}

/** The next part of a choice: of the echoed prompt first, then of the output. */
interface ChoiceDelta<L> extends Pick<AnswerDelta, 'text' | 'finish' | 'stopReason'> {
  /** Index of the prompt's run within the request. */
  readonly index: number;
  /** Token ids of this part; undefined for a further slice of the echoed prompt, which adds only log-probabilities. */
  readonly ids: readonly number[] | undefined;
  /** Log-probabilities of the tokens of this part; null when not requested. */
  readonly logprobs: L | null;
  readonly isFirst: boolean;
}

/** A choice that has ended. */
interface WholeChoice extends Pick<ChoiceDelta<unknown>, 'index' | 'text'> {
  readonly ids: readonly number[];
  readonly finish: AnswerDelta['finish'] | null;
  readonly stopReason: AnswerDelta['stopReason'];
}

/** One chunk of a stream. */
interface ChoiceChunk {
  readonly choice: Readonly<Record<string, unknown>>;
  /** Fields of the chunk beside its choice. */
  readonly beside?: object;
  /** Whether the chunk only opens its choice; its usage then excludes the tokens of this part. */
  readonly isOpening?: boolean;
}

/** Format of an endpoint's answers: ids, choices, stream chunks and log-probabilities. */
export interface AnswerFormat<L> {
  readonly idPrefix: string;
  readonly object: { readonly collect: string; readonly chunk: string };
  logprobs(tokens: readonly SampledMessage[], offsetOf: OffsetOf): Promise<L>;
  /** Creates a list that collects the log-probabilities of a whole choice as JSON text, token by token. */
  logprobList(): { add(logprobs: L): void; json(): string };
  /** Fields of a whole choice but its log-probabilities. */
  choice(collect: WholeChoice, promptTokens: Uint32Array): Record<string, unknown>;
  /** Fields of a whole answer beside its choices. */
  rest(promptTokens: Uint32Array): Record<string, unknown>;
  /** Whether log-probabilities of the prompt stand in each choice; otherwise they stand beside the choices. */
  readonly hasPromptLogprobsInChoice: boolean;
  /** Returns the stream chunks of one part; may be empty. */
  chunks(part: ChoiceDelta<L>, promptTokens: Uint32Array): readonly ChoiceChunk[];
}

/** Answers a request with the output of its runs, whole or as an event stream. */
export async function respond<L>(
  context: ApiContext,
  scope: RequestScope,
  body: CommonBody,
  runs: readonly [PromptRun, ...PromptRun[]],
  format: AnswerFormat<L>,
): Promise<void> {
  const headers = (): Record<string, string> => finishedHeaders(runs[0].trace, body.ignored);
  const parts = scope.own(partsOf(context, body, runs, format, scope.signal));
  if (!body.isStream) {
    const answer = await collect(context, body, runs, format, parts, scope.signal);
    scope.answer(answer, headers());
    return;
  }
  const { clock, stalledReaderMs, sseKeepAliveMs: keepAliveMs } = context;
  const stream = scope.own(events(context, body, runs, format, parts, scope.signal));
  await sendEvents(stream, scope, { clock, stalledReaderMs, keepAliveMs, headers });
}

async function* partsOf<L>(
  context: ApiContext,
  { sampling: { numLogprobs } }: CommonBody,
  runs: readonly PromptRun[],
  format: AnswerFormat<L>,
  signal: AbortSignal,
): AsyncGenerator<ChoiceDelta<L>> {
  /** Characters of the echoed prompt, by index of each choice that has begun; 0 without an echo. */
  const numEchoed = new Map<number, number>();
  const nothing = { finish: undefined, stopReason: null, logprobs: null };
  for await (const { index, delta } of merge(runs.map(({ deltas }) => deltas))) {
    const run = runs[index];
    if (!run) continue;
    let isFirst = !numEchoed.has(index);
    if (isFirst && run.echo !== undefined) {
      const echoed = await promptTextOf(context, run.echo, signal);
      numEchoed.set(index, numCharactersOf(echoed));
      const offsets = new PromptOffsets(echoed);
      // Without log-probabilities the echoed text is one part; with them, one part per slice.
      if (numLogprobs < 0) yield { ...nothing, index, text: echoed, ids: [], isFirst };
      for (const slice of numLogprobs < 0 ? [] : inSlices(promptTokensOf(run.generation))) {
        const logprobs = await format.logprobs(slice, (name) => offsets.next(name));
        yield { ...nothing, index, text: isFirst ? echoed : '', ids: isFirst ? [] : undefined, logprobs, isFirst };
        isFirst = false;
        await context.clock.turn();
      }
      isFirst = false;
    } else if (isFirst) numEchoed.set(index, 0);
    const { text, tokens, finish, stopReason, offset } = delta;
    const at = (numEchoed.get(index) ?? 0) + offset;
    yield {
      ...{ index, text, finish, stopReason, isFirst },
      ids: tokens.map(({ token }) => token),
      logprobs: numLogprobs < 0 ? null : await format.logprobs(tokens, () => at),
    };
  }
}

async function collect<L>(
  context: ApiContext,
  { numPromptLogprobs, sampling: { numLogprobs } }: CommonBody,
  runs: readonly [PromptRun, ...PromptRun[]],
  format: AnswerFormat<L>,
  parts: AsyncGenerator<ChoiceDelta<L>>,
  signal: AbortSignal,
): Promise<string> {
  const outputs = runs.map(() => ({
    text: [] as string[],
    ids: [] as number[],
    list: format.logprobList(),
    last: undefined as ChoiceDelta<L> | undefined,
  }));
  for await (const part of parts) {
    const output = outputs[part.index];
    if (!output) continue;
    output.text.push(part.text);
    output.ids.push(...(part.ids ?? []));
    if (part.logprobs !== null) output.list.add(part.logprobs);
    output.last = part;
  }
  await countsWhole(runs, context.clock, signal);
  const ofPrompts = await Promise.all(
    runs.map(async ({ generation }) =>
      numPromptLogprobs < 0 ? undefined : promptLogprobsJson(context, generation, numPromptLogprobs),
    ),
  );
  const choices = outputs.map(({ text, ids, list, last }, index) => {
    const { finish = null, stopReason = null } = last ?? {};
    const promptTokens = runs[index]?.generation.promptTokens ?? new Uint32Array();
    const promptLogprobs = format.hasPromptLogprobsInChoice ? ofPrompts[index] : undefined;
    return {
      fields: format.choice({ index, text: text.join(''), ids, finish, stopReason }, promptTokens),
      logprobs: numLogprobs < 0 ? 'null' : list.json(),
      ...(promptLogprobs === undefined ? {} : { promptLogprobs }),
    };
  });
  const [first] = runs;
  const beside = format.hasPromptLogprobsInChoice ? undefined : ofPrompts[0];
  return answerJson(
    envelopeOf(context, format, first.trace, format.object.collect),
    choices,
    { usage: usageOf(countsOf(runs)), ...format.rest(first.generation.promptTokens) },
    beside === undefined ? '' : `,"prompt_logprobs":${beside}`,
  );
}

async function* events<L>(
  context: ApiContext,
  body: CommonBody,
  runs: readonly [PromptRun, ...PromptRun[]],
  format: AnswerFormat<L>,
  parts: AsyncGenerator<ChoiceDelta<L>>,
  signal: AbortSignal,
): AsyncGenerator {
  const head = envelopeOf(context, format, runs[0].trace, format.object.chunk);
  const numSent = runs.map(() => 0);
  const usage = (counts: RequestCounts, numTokens: number): { usage?: Usage | null } =>
    body.hasUsage ? { usage: body.hasContinuousUsage ? usageOf([counts], numTokens) : null } : {};
  for await (const part of parts) {
    const run = runs[part.index];
    if (!run) continue;
    const { generation } = run;
    const before = numSent[part.index] ?? 0;
    const now = before + (part.ids?.length ?? 0);
    numSent[part.index] = now;
    for (const { choice, beside, isOpening } of format.chunks(part, generation.promptTokens))
      yield { ...head, choices: [choice], ...usage(generation.counts, isOpening ? before : now), ...beside };
  }
  if (!body.hasUsage) return;
  await countsWhole(runs, context.clock, signal);
  yield { ...head, choices: [], usage: usageOf(countsOf(runs)) };
}

function countsOf(runs: readonly PromptRun[]): RequestCounts[] {
  return runs.map(({ generation }) => generation.counts);
}

/**
 * Resolves when no prefill of the runs is running, or after REPORT_WAIT_MS per run. The tokens have arrived by then; only counts are
 * missing.
 */
async function countsWhole(runs: readonly PromptRun[], clock: Clock, signal: AbortSignal): Promise<void> {
  for (const counts of countsOf(runs)) await counts.prefillsEnded(REPORT_WAIT_MS, clock, signal);
}

function envelopeOf<L>(
  { servedName, clock }: ApiContext,
  { idPrefix }: AnswerFormat<L>,
  trace: RequestTrace,
  object: string,
): Record<string, unknown> {
  const id = `${idPrefix}${trace.names.clientId ?? trace.id}`;
  return { id, object, created: Math.floor(clock.wallMs() / 1_000), model: servedName };
}
