/**
 * The choices of an answer, whole or streamed: merges the deltas of all prompts into parts, which the format of each endpoint
 * (chat.ts, completions.ts) turns into JSON.
 */
import type { SampledMessage } from '../../../../shared/protocol/messages.ts';
import type { Generation } from '../../relay/generation.ts';
import type { RequestCounts } from '../../record/request_counts.ts';
import type { RequestTrace } from '../../record/request_log.ts';
import { numCharactersOf } from '../../../../shared/text/text_stream.ts';
import type { ApiContext } from '../../api/api_context.ts';
import { answerJson, finishedHeaders, samplesOf, usageOf, type Usage } from './common.ts';
import { PromptOffsets, type OffsetOf } from './completion_logprobs.ts';
import { openaiEvents } from './events.ts';
import { sendEvents } from '../../api/event_stream.ts';
import { logged } from '../../api/logged_run.ts';
import type { CommonBody } from './parameters.ts';
import type { OutputDelta } from '../../../../shared/text/output/output_delta.ts';
import type { ParsedChoice, ParsedOutput } from './parsed_choice.ts';
import { inSlices, promptLogprobsJson, promptTextOf, promptTokensOf } from './prompt_logprobs.ts';
import { merge, runPrompt, type AnswerDelta } from '../../api/prompt_run.ts';
import type { RequestScope } from '../../api/request_scope.ts';

/** One sample of a prompt of a request, under way. */
export interface PromptRun {
  readonly trace: RequestTrace;
  readonly generation: Generation;
  /** The first sample of the prompt, which has the counts and log-probabilities of the prompt. */
  readonly first: Generation;
  readonly deltas: AsyncGenerator<AnswerDelta>;
  /** The prompt, as text or token ids, that the choice's text begins with; undefined without `echo`. */
  readonly echo: string | Uint32Array | undefined;
}

/** Opens the runs of a prompt: one per sample. Every one starts when its first delta is requested. */
export function startSamples(
  context: ApiContext,
  scope: RequestScope,
  { trace, generation, echo }: Pick<PromptRun, 'trace' | 'generation' | 'echo'>,
  numSamples: number,
): [PromptRun, ...PromptRun[]] {
  const start = (sample: Generation, own: RequestTrace, first: Generation): PromptRun => {
    const { codec, promptLog } = context;
    const run = runPrompt(context, own, sample, scope);
    const deltas = scope.own(promptLog ? logged(codec, promptLog, { id: own.id, generation: sample }, run) : run);
    return { trace: own, generation: sample, first, deltas, echo };
  };
  trace.wanted.numSamples = numSamples;
  const [first, ...others] = samplesOf(generation, numSamples, trace.id);
  return [start(first, trace, first), ...others.map((sample) => start(sample, scope.openSample(trace), first))];
}

/** The next part of a choice: of the echoed prompt first, then of the output. */
interface ChoiceDelta<L> extends Pick<AnswerDelta, 'text' | 'finish' | 'stopReason' | 'matchedStop'> {
  /** Index of the choice: promptIndex · samples per prompt + sampleIndex. */
  readonly index: number;
  /** Token ids of this part; undefined for a further slice of the echoed prompt, which adds only log-probabilities. */
  readonly ids: readonly number[] | undefined;
  /** Log-probabilities of the tokens of this part; null when not requested. */
  readonly logprobs: L | null;
  /** Sum of the log-probabilities of the output tokens of this part; 0 when the engines were asked for none. */
  readonly sumLogprobs: number;
  readonly isFirst: boolean;
  /** The parsed text; undefined when the format of the answer is not parsed. */
  readonly parsed?: ParsedOutput | undefined;
}

/** A complete choice; `parsed.pieces` holds all of its deltas. */
interface WholeChoice extends Pick<ChoiceDelta<unknown>, 'index' | 'text' | 'parsed'> {
  readonly ids: readonly number[];
  readonly finish: AnswerDelta['finish'] | null;
  readonly stopReason: AnswerDelta['stopReason'];
  readonly matchedStop: AnswerDelta['matchedStop'];
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
  readonly object: { readonly answer: string; readonly chunk: string };
  /** Returns the log-probabilities of tokens in this format; `offsetOf` has where a token begins in the text. */
  logprobs(tokens: readonly SampledMessage[], offsetOf: OffsetOf): Promise<L>;
  /** Creates the parser of a choice's text; undefined when the text is the answer as it is. */
  parser?(generation: Generation): ParsedChoice | undefined;
  /** Creates a list that collects the log-probabilities of a whole choice as JSON text, token by token. */
  logprobList(): { add(logprobs: L): void; json(): string };
  /** Fields of a whole choice but its log-probabilities. */
  choice(whole: WholeChoice, promptTokens: Uint32Array): Record<string, unknown>;
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
  await sendEvents(stream, scope, { clock, stalledReaderMs, keepAliveMs, headers, form: openaiEvents });
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
  const parsers = runs.map(({ generation }) => format.parser?.(generation));
  const nothing = { finish: undefined, stopReason: null, matchedStop: null, logprobs: null, sumLogprobs: 0 };
  for await (const { index, delta } of inOrder(runs, numLogprobs >= 0)) {
    const run = runs[index];
    if (!run) continue;
    let isFirst = !numEchoed.has(index);
    if (isFirst && run.echo !== undefined) {
      const echoed = await promptTextOf(context, run.echo, signal);
      numEchoed.set(index, numCharactersOf(echoed));
      const offsets = new PromptOffsets(echoed);
      // Without log-probabilities the echoed text is one part; with them, one part per slice.
      if (numLogprobs < 0) yield { ...nothing, index, text: echoed, ids: [], isFirst };
      for (const slice of numLogprobs < 0 ? [] : inSlices(promptTokensOf(run.first))) {
        const logprobs = await format.logprobs(slice, (name) => offsets.next(name));
        yield { ...nothing, index, text: isFirst ? echoed : '', ids: isFirst ? [] : undefined, logprobs, isFirst };
        isFirst = false;
        await context.clock.turn();
      }
      isFirst = false;
    } else if (isFirst) numEchoed.set(index, 0);
    const { text, tokens, finish, stopReason, matchedStop, offset } = delta;
    const at = (numEchoed.get(index) ?? 0) + offset;
    yield {
      ...{ index, text, finish, stopReason, matchedStop, isFirst, parsed: parsers[index]?.read(delta) },
      ids: tokens.map(({ token }) => token),
      logprobs: numLogprobs < 0 ? null : await format.logprobs(tokens, () => at),
      sumLogprobs: tokens.reduce((sum, { logprob }) => sum + (logprob[0] ?? 0), 0),
    };
  }
}

/**
 * Yields the deltas of all runs as they come. Where each choice repeats its prompt with log-probabilities, a sample's deltas wait for
 * the first delta of the prompt's first sample, before which these are complete.
 */
async function* inOrder(
  runs: readonly PromptRun[],
  hasLogprobs: boolean,
): AsyncGenerator<{ readonly index: number; readonly delta: AnswerDelta }> {
  const begun = new Set<Generation>();
  let waiting: { readonly index: number; readonly delta: AnswerDelta }[] = [];
  for await (const one of merge(runs.map(({ deltas }) => deltas))) {
    const { generation, first, echo } = runs[one.index] ?? {};
    if (hasLogprobs && echo !== undefined && first && generation !== first && !begun.has(first)) {
      waiting.push(one);
      continue;
    }
    yield one;
    if (!generation || begun.has(generation)) continue;
    begun.add(generation);
    const ready = waiting.filter(({ index }) => runs[index]?.first === generation);
    waiting = waiting.filter((other) => !ready.includes(other));
    yield* ready;
  }
}

async function collect<L>(
  context: ApiContext,
  body: CommonBody,
  runs: readonly [PromptRun, ...PromptRun[]],
  format: AnswerFormat<L>,
  parts: AsyncGenerator<ChoiceDelta<L>>,
  signal: AbortSignal,
): Promise<string> {
  const { numPromptLogprobs, sampling } = body;
  const outputs = runs.map((run) => ({
    run,
    text: [] as string[],
    ids: [] as number[],
    pieces: [] as OutputDelta[],
    list: format.logprobList(),
    last: undefined as ChoiceDelta<L> | undefined,
    sumLogprobs: 0,
  }));
  for await (const part of parts) {
    const output = outputs[part.index];
    if (!output) continue;
    output.text.push(part.text);
    output.pieces.push(...(part.parsed?.pieces ?? []));
    output.ids.push(...(part.ids ?? []));
    if (part.logprobs !== null) output.list.add(part.logprobs);
    output.sumLogprobs += part.sumLogprobs;
    output.last = part;
  }
  await countsWhole(runs, signal);
  const ofPrompts = new Map<Generation, string>();
  for (const prompt of numPromptLogprobs < 0 ? [] : new Set(runs.map(({ first }) => first)))
    ofPrompts.set(prompt, await promptLogprobsJson(context, prompt, numPromptLogprobs));
  const choices = best(outputs, body).map(({ run, text, ids, pieces, list, last }, index) => {
    const { finish = null, stopReason = null, matchedStop = null } = last ?? {};
    const parsed = last?.parsed && { ...last.parsed, pieces };
    const { promptTokens } = run.generation;
    const promptLogprobs = format.hasPromptLogprobsInChoice ? (ofPrompts.get(run.first) ?? 'null') : undefined;
    return {
      fields: format.choice({ index, text: text.join(''), ids, finish, stopReason, matchedStop, parsed }, promptTokens),
      logprobs: sampling.numLogprobs < 0 ? 'null' : list.json(),
      ...(promptLogprobs === undefined ? {} : { promptLogprobs }),
    };
  });
  const [first] = runs;
  const beside = format.hasPromptLogprobsInChoice ? undefined : (ofPrompts.get(first.first) ?? 'null');
  return answerJson(
    envelopeOf(context, format, first.trace, format.object.answer),
    choices,
    { usage: usageOf(countsOf(runs)), ...format.rest(first.generation.promptTokens) },
    beside === undefined ? '' : `,"prompt_logprobs":${beside}`,
  );
}

/** Output of one sample, as far as the best ones are chosen by it. */
interface SampleOutput {
  readonly ids: readonly number[];
  readonly sumLogprobs: number;
}

/**
 * Returns the samples that become choices: of each prompt the `numChoices` ones with the highest log-probability per token, the best
 * first; all of them in their order when no more were made.
 */
function best<T extends SampleOutput>(
  outputs: readonly T[],
  { numChoices, numSamples }: Pick<CommonBody, 'numChoices' | 'numSamples'>,
): T[] {
  if (numSamples === numChoices) return [...outputs];
  const mean = ({ ids, sumLogprobs }: T): number => sumLogprobs / Math.max(1, ids.length);
  return Array.from({ length: outputs.length / numSamples }, (_, prompt) =>
    outputs
      .slice(prompt * numSamples, (prompt + 1) * numSamples)
      .sort((a, b) => mean(b) - mean(a))
      .slice(0, numChoices),
  ).flat();
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
  const usage = ({ first, generation: { counts } }: PromptRun, numTokens: number): { usage?: Usage | null } =>
    body.hasUsage ? { usage: body.hasContinuousUsage ? usageOf([first.counts], { counts, numTokens }) : null } : {};
  for await (const part of parts) {
    const run = runs[part.index];
    if (!run) continue;
    const before = numSent[part.index] ?? 0;
    const now = before + (part.ids?.length ?? 0);
    numSent[part.index] = now;
    for (const { choice, beside, isOpening } of format.chunks(part, run.generation.promptTokens))
      yield { ...head, choices: [choice], ...usage(run, isOpening ? before : now), ...beside };
  }
  if (!body.hasUsage) return;
  await countsWhole(runs, signal);
  yield { ...head, choices: [], usage: usageOf(countsOf(runs)) };
}

function countsOf(runs: readonly Pick<PromptRun, 'generation'>[]): RequestCounts[] {
  return runs.map(({ generation }) => generation.counts);
}

/**
 * Resolves when no prefill of the runs is running. The tokens have arrived by then; a report with counts may come a moment later, or is
 * given up with its instance.
 */
export async function countsWhole(runs: readonly Pick<PromptRun, 'generation'>[], signal: AbortSignal): Promise<void> {
  for (const counts of countsOf(runs)) await counts.prefillsEnded(signal);
}

function envelopeOf<L>(
  { servedName, clock, fingerprint }: ApiContext,
  { idPrefix }: AnswerFormat<L>,
  trace: RequestTrace,
  object: string,
): Record<string, unknown> {
  const id = `${idPrefix}${trace.names.clientId ?? trace.id}`;
  const created = Math.floor(clock.wallMs() / 1_000);
  return { id, object, created, model: servedName, system_fingerprint: fingerprint() };
}
