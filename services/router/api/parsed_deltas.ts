/** The output of a request's runs, delta by delta, in the order in which an answer has it: parsed, with echoed prompts and the names of tokens. */
import type { CallFor } from '../../../shared/base/call_queue.ts';
import type { SampledMessage } from '../../../shared/protocol/messages.ts';
import type { TokenName } from '../../../shared/text/text.ts';
import { numCharactersOf } from '../../../shared/text/text_stream.ts';
import type { RequestTrace } from '../record/request_trace.ts';
import type { Generation } from '../relay/generation.ts';
import type { ApiContext } from './api_context.ts';
import type { GenerationBody } from './generation_body.ts';
import type { ParsedChoice, ParsedOutput } from './parsed_choice.ts';
import { promptSlices, promptTextOf } from './prompt_logprobs.ts';
import { PromptOffsets } from './prompt_offsets.ts';
import type { AnswerDelta } from './prompt_output.ts';
import { merge } from './prompt_run.ts';
import type { PromptRun, PromptRuns } from './samples.ts';
import { tokenNames, type NameOf } from './token_names.ts';

/** Returns where a token begins in the text of its choice, in characters; called for each token in order. */
export type OffsetOf = (name: TokenName) => number;

/** The next delta of a choice: of the echoed prompt first, then of the output. */
export interface ParsedDelta extends Pick<AnswerDelta, 'text' | 'finish' | 'stopReason' | 'matchedStop' | 'numTokens'> {
  /** Index of the choice: promptIndex · samples per prompt + sampleIndex. */
  readonly index: number;
  /** Token ids of this delta; undefined for a further slice of the echoed prompt, which adds only log-probabilities. */
  readonly ids: readonly number[] | undefined;
  /** Tokens of this delta that have log-probabilities, with their names; undefined when none were asked for. */
  readonly logprobs:
    { readonly tokens: readonly SampledMessage[]; readonly nameOf: NameOf; readonly offsetOf: OffsetOf } | undefined;
  /** Sum of the log-probabilities of the output tokens of this delta; 0 when the engines were asked for none. */
  readonly sumLogprobs: number;
  readonly isFirst: boolean;
  /** The parsed text; undefined when all of it is content. */
  readonly parsed: ParsedOutput | undefined;
}

/** Runs of a request, and how the text of each is parsed. */
export interface AnswerRuns {
  /** Context of the model that answers. */
  readonly context: ApiContext;
  readonly body: Pick<GenerationBody, 'sampling' | 'isNamingIds'>;
  readonly runs: PromptRuns;
  /** Creates the parser of a choice's text; undefined when all of it is content. */
  readonly parser?: ((trace: RequestTrace) => ParsedChoice | undefined) | undefined;
}

/** Takes a delta; waits for a reader that is behind. */
export type TakeDelta = (delta: ParsedDelta) => Promise<void> | undefined;

/** Calls `take` with each delta of the output of all runs, one after the other. @throws what ends a run */
export async function eachDelta(
  { context, body, runs, parser }: AnswerRuns,
  asking: CallFor,
  take: TakeDelta,
): Promise<void> {
  const hasLogprobs = body.sampling.numLogprobs >= 0;
  /** Characters of the echoed prompt, by index of each choice that has begun; 0 without an echo. */
  const numEchoed = new Map<number, number>();
  const parsers = runs.map(({ trace }) => parser?.(trace));
  const parse = async (index: number, delta: AnswerDelta): Promise<void> => {
    const run = runs[index];
    if (!run) return;
    const isNew = !numEchoed.has(index);
    if (isNew) numEchoed.set(index, await echo(context, { run, index, hasLogprobs, body }, asking, take));
    const { text, tokens, finish, stopReason, matchedStop, numTokens, offset } = delta;
    const at = (numEchoed.get(index) ?? 0) + offset;
    const nameOf = hasLogprobs ? await tokenNames(context, tokens, body.isNamingIds) : undefined;
    const waiting = take({
      index,
      text,
      finish,
      stopReason,
      matchedStop,
      numTokens,
      isFirst: isNew && run.echo === undefined,
      parsed: parsers[index]?.read(delta),
      ids: tokens.map(({ token }) => token),
      logprobs: nameOf && { tokens, nameOf, offsetOf: () => at },
      sumLogprobs: tokens.reduce((sum, { logprob }) => sum + (logprob[0] ?? 0), 0),
    });
    if (waiting) await waiting;
  };
  for await (const { index, delta } of inOrder(runs, hasLogprobs)) await parse(index, delta);
}

/** Hands over the echoed prompt of a choice: one delta, or with log-probabilities one per slice. Returns its characters. */
async function echo(
  context: ApiContext,
  {
    run,
    index,
    hasLogprobs,
    body,
  }: Pick<AnswerRuns, 'body'> & {
    readonly run: PromptRun;
    readonly index: number;
    readonly hasLogprobs: boolean;
  },
  asking: CallFor,
  take: TakeDelta,
): Promise<number> {
  if (run.echo === undefined) return 0;
  const text = await promptTextOf(context, run.echo, asking);
  const offsets = new PromptOffsets(text);
  const nothing = { finish: undefined, stopReason: null, matchedStop: null, numTokens: 0, sumLogprobs: 0 };
  const delta = { ...nothing, index, text, ids: [], logprobs: undefined, isFirst: true, parsed: undefined };
  if (!hasLogprobs) await take(delta);
  let isFirst = true;
  for (const tokens of hasLogprobs ? promptSlices(run.first.generation) : []) {
    const nameOf = await tokenNames(context, tokens, body.isNamingIds);
    const logprobs = { tokens, nameOf, offsetOf: (name: TokenName) => offsets.next(name) };
    await take({ ...delta, ...(isFirst ? {} : { text: '', ids: undefined }), logprobs, isFirst });
    isFirst = false;
    await context.clock.turn();
  }
  return numCharactersOf(text);
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
    const { generation, first, echo: repeated } = runs[one.index] ?? {};
    if (
      hasLogprobs &&
      repeated !== undefined &&
      first &&
      generation !== first.generation &&
      !begun.has(first.generation)
    ) {
      waiting.push(one);
      continue;
    }
    yield one;
    if (!generation || begun.has(generation)) continue;
    begun.add(generation);
    const ready = waiting.filter(({ index }) => runs[index]?.first.generation === generation);
    waiting = waiting.filter((other) => !ready.includes(other));
    yield* ready;
  }
}
