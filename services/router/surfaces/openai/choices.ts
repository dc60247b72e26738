/**
 * The choices of an answer, whole or streamed: the deltas of all prompts as JSON, in the format of each endpoint (chat.ts,
 * completions.ts).
 */
import type { ParsedDelta, AnswerRuns } from '../../api/parsed_deltas.ts';
import type { AnswerWriters, StreamWriter, WholeWriter } from '../../api/answer_writer.ts';
import type { ApiContext } from '../../api/api_context.ts';
import type { EventWriter } from '../../api/event_stream.ts';
import { EventTemplate, LastTemplate } from '../../api/event_template.ts';
import { countsOf, type PromptRun, type PromptRuns } from '../../api/samples.ts';
import type { RequestTrace } from '../../record/request_trace.ts';
import type { Generation } from '../../relay/generation.ts';
import type { OutputDelta } from '../../../../shared/text/output/output_delta.ts';
import type { CommonBody } from './parameters.ts';
import { promptLogprobsJson } from './prompt_logprobs.ts';
import { usageOf, type Usage } from './usage.ts';

/** Log-probabilities of a delta, as far as a format needs them. */
export type DeltaLogprobs = NonNullable<ParsedDelta['logprobs']>;

/** A complete choice; `parsed.pieces` holds all of its deltas. */
interface WholeChoice extends Pick<ParsedDelta, 'index' | 'text' | 'parsed' | 'stopReason' | 'matchedStop'> {
  readonly ids: readonly number[];
  readonly finish: ParsedDelta['finish'] | null;
}

/** One chunk of a stream. */
export interface ChoiceChunk {
  readonly choice: Readonly<Record<string, unknown>>;
  /** Fields of the chunk besides its choice. */
  readonly fields?: object;
  /** Whether the chunk only opens its choice; its usage then excludes the tokens of this delta. */
  readonly isOpening?: boolean;
}

/** A piece of an answer that is text. */
type TextPiece = Exclude<OutputDelta, { readonly kind: 'call' }>;

/** Format of an endpoint's answers: ids, choices, stream chunks and log-probabilities. */
export interface AnswerFormat<L> {
  readonly idPrefix: string;
  readonly object: { readonly answer: string; readonly chunk: string };
  /** Returns the log-probabilities of tokens in this format. */
  logprobs(delta: DeltaLogprobs): L;
  /** Creates a list that collects the log-probabilities of a whole choice as JSON text, token by token. */
  logprobList(): { add(logprobs: L): void; json(): string };
  /** Fields of a whole choice but its log-probabilities. */
  choice(whole: WholeChoice, promptTokens: Uint32Array): Record<string, unknown>;
  /** Fields of a whole answer besides its choices. */
  rest(promptTokens: Uint32Array): Record<string, unknown>;
  /** Whether log-probabilities of the prompt stand in each choice; otherwise they stand next to the choices. */
  readonly hasPromptLogprobsInChoice: boolean;
  /**
   * Returns the text of a delta that is one chunk, and differs in it alone from others of its kind in its choice; undefined for any other
   * delta. Called for deltas without log-probabilities.
   */
  plain(delta: ParsedDelta): TextPiece | undefined;
  /** Returns the stream chunks of one delta, whose log-probabilities are null when not requested; may be empty. */
  chunks(delta: ParsedDelta, logprobs: L | null, promptTokens: Uint32Array): readonly ChoiceChunk[];
}

/** Output of one run, as far as it has come. */
interface RunOutput<L> {
  readonly run: PromptRun;
  readonly text: string[];
  readonly ids: number[];
  readonly pieces: OutputDelta[];
  readonly list: ReturnType<AnswerFormat<L>['logprobList']>;
  last: ParsedDelta | undefined;
  sumLogprobs: number;
}

/** A request under way whose answer has choices. */
interface StartedChoices extends AnswerRuns {
  readonly body: CommonBody;
}

/** Returns the writers of an answer in this format. */
export function choiceWriters<L>(started: StartedChoices, format: AnswerFormat<L>): AnswerWriters {
  const { context, body, runs } = started;
  return {
    ...started,
    stream: (events) => streamedChoices(context, body, runs, format, events),
    whole: () => wholeChoices(context, body, runs, format),
  };
}

function wholeChoices<L>(
  context: ApiContext,
  body: CommonBody,
  runs: PromptRuns,
  format: AnswerFormat<L>,
): WholeWriter {
  const outputs = runs.map((run): RunOutput<L> => ({
    run,
    text: [],
    ids: [],
    pieces: [],
    list: format.logprobList(),
    last: undefined,
    sumLogprobs: 0,
  }));
  return {
    onDelta(delta) {
      const output = outputs[delta.index];
      if (!output) return;
      output.text.push(delta.text);
      output.pieces.push(...(delta.parsed?.pieces ?? []));
      output.ids.push(...(delta.ids ?? []));
      if (delta.logprobs) output.list.add(format.logprobs(delta.logprobs));
      output.sumLogprobs += delta.sumLogprobs;
      output.last = delta;
    },
    whole: () => answerOf(context, body, outputs, format),
  };
}

async function answerOf<L>(
  context: ApiContext,
  body: CommonBody,
  outputs: readonly RunOutput<L>[],
  format: AnswerFormat<L>,
): Promise<string> {
  const { numPromptLogprobs, sampling } = body;
  const runs = outputs.map(({ run }) => run);
  const [first] = runs;
  if (!first) throw new Error('an answer has at least one choice');
  const ofPrompts = new Map<Generation, string>();
  for (const prompt of numPromptLogprobs < 0 ? [] : new Set(runs.map((run) => run.first.generation)))
    ofPrompts.set(prompt, await promptLogprobsJson(context, prompt, numPromptLogprobs));
  const choices = best(outputs, body).map(({ run, text, ids, pieces, list, last }, index) => {
    const { finish = null, stopReason = null, matchedStop = null } = last ?? {};
    const parsed = last?.parsed && { ...last.parsed, pieces };
    const { promptTokens } = run.generation;
    const promptLogprobs = format.hasPromptLogprobsInChoice
      ? (ofPrompts.get(run.first.generation) ?? 'null')
      : undefined;
    return {
      fields: format.choice({ index, text: text.join(''), ids, finish, stopReason, matchedStop, parsed }, promptTokens),
      logprobs: sampling.numLogprobs < 0 ? 'null' : list.json(),
      ...(promptLogprobs === undefined ? {} : { promptLogprobs }),
    };
  });
  const ofAnswer = format.hasPromptLogprobsInChoice ? undefined : (ofPrompts.get(first.first.generation) ?? 'null');
  return answerJson(
    envelopeOf(context, format, first.trace, format.object.answer),
    choices,
    { usage: usageOf(countsOf(runs)), ...format.rest(first.generation.promptTokens) },
    ofAnswer === undefined ? '' : `,"prompt_logprobs":${ofAnswer}`,
  );
}

/**
 * Returns a whole answer as JSON text. The log-probabilities of a choice are text already, made token by token as they arrived:
 * thousands of tokens at once would stop every other stream.
 */
function answerJson(
  envelope: Readonly<Record<string, unknown>>,
  choices: readonly {
    readonly fields: Readonly<Record<string, unknown>>;
    readonly logprobs: string;
    readonly promptLogprobs?: string;
  }[],
  rest: Readonly<Record<string, unknown>>,
  restJson = '',
): string {
  const inner = (fields: Readonly<Record<string, unknown>>): string => JSON.stringify(fields).slice(1, -1);
  const list = choices.map(
    ({ fields, logprobs, promptLogprobs }) =>
      `{${inner(fields)},"logprobs":${logprobs}${promptLogprobs === undefined ? '' : `,"prompt_logprobs":${promptLogprobs}`}}`,
  );
  return `{${inner(envelope)},"choices":[${list.join()}],${inner(rest)}${restJson}}`;
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

function streamedChoices<L>(
  context: ApiContext,
  body: CommonBody,
  runs: PromptRuns,
  format: AnswerFormat<L>,
  events: EventWriter,
): StreamWriter {
  const head = envelopeOf(context, format, runs[0].trace, format.object.chunk);
  const choices = runs.map((run): StreamedChoice => ({ run, numSent: 0, template: new LastTemplate() }));
  const usage = ({ first, trace: { record } }: PromptRun, numTokens: number): { usage?: Usage | null } => {
    if (!body.hasUsage) return {};
    return { usage: body.hasContinuousUsage ? usageOf(countsOf([first]), { counts: record.counts, numTokens }) : null };
  };
  const chunksOf = (delta: ParsedDelta, { run, numSent }: StreamedChoice, before: number): object[] => {
    const logprobs = delta.logprobs ? format.logprobs(delta.logprobs) : null;
    return format.chunks(delta, logprobs, run.generation.promptTokens).map(({ choice, fields, isOpening }) => ({
      ...head,
      choices: [choice],
      ...usage(run, isOpening ? before : numSent),
      ...fields,
    }));
  };
  const textChunk = (delta: ParsedDelta, choice: StreamedChoice, piece: TextPiece): string => {
    const key = piece.kind === 'arguments' ? `${piece.kind}${piece.index}` : piece.kind;
    const made = (): EventTemplate =>
      new EventTemplate(1, ([text = '']) => {
        const parsed = delta.parsed && { ...delta.parsed, pieces: [{ ...piece, text }] };
        const [chunk] = chunksOf({ ...delta, text, parsed }, choice, 0);
        return events.form.event(chunk);
      });
    return choice.template.of(key, made).fill(JSON.stringify(piece.text));
  };
  return {
    hasCounts: body.hasUsage,
    onDelta(delta) {
      const choice = choices[delta.index];
      if (!choice) return;
      const before = choice.numSent;
      choice.numSent = before + (delta.ids?.length ?? 0);
      const piece = delta.logprobs || body.hasContinuousUsage ? undefined : format.plain(delta);
      if (piece) events.sendText(textChunk(delta, choice, piece));
      else for (const chunk of chunksOf(delta, choice, before)) events.send(chunk);
    },
    end() {
      if (body.hasUsage) events.send({ ...head, choices: [], usage: usageOf(countsOf(runs)) });
    },
  };
}

/** A choice of a stream. */
interface StreamedChoice {
  readonly run: PromptRun;
  /** Tokens so far. */
  numSent: number;
  /** Its chunks that differ in their text alone. */
  readonly template: LastTemplate;
}

function envelopeOf<L>(
  { servedName, clock, fingerprint }: ApiContext,
  { idPrefix }: AnswerFormat<L>,
  trace: RequestTrace,
  object: string,
): Record<string, unknown> {
  const id = `${idPrefix}${trace.shownId}`;
  const created = Math.floor(clock.wallMs() / 1_000);
  return { id, object, created, model: servedName, system_fingerprint: fingerprint() };
}
