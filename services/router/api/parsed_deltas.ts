/** The output of a request's runs, delta by delta, in the order in which an answer has it: parsed, with echoed prompts and the names of tokens. */
import type { CallFor } from '../../../shared/base/call_queue.ts';
import { Condition } from '../../../shared/base/condition.ts';
import { ENOUGH, type Taken } from '../../../shared/base/handover.ts';
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

/** Takes a delta; a promise while its reader is behind. */
export type TakeDelta = (delta: ParsedDelta) => Promise<void> | undefined;

/**
 * Runs all runs of a request, and calls `take` with each delta of their output, one after the other, until one fails. @throws what ends a
 * run, or what `take` throws; no delta is on its way then
 */
export async function eachDelta(answer: AnswerRuns, asking: CallFor, take: TakeDelta): Promise<void> {
  const output = new AnswerOutput(answer, asking, take);
  const runs = answer.runs.map(({ run }, index) => run((delta) => output.onDelta(index, delta)));
  try {
    await Promise.race([Promise.all(runs), output.failed]);
  } finally {
    await output.close();
  }
}

/** One choice of an answer. */
interface Choice {
  readonly index: number;
  readonly run: PromptRun;
  readonly parser: ParsedChoice | undefined;
  /** Characters of the echoed prompt; undefined until the choice has begun, 0 without an echo. */
  numEchoed: number | undefined;
}

/** The output of all runs of a request, on its way to one taker. */
class AnswerOutput {
  readonly #answer: AnswerRuns;
  readonly #asking: CallFor;
  readonly #take: TakeDelta;
  readonly #hasLogprobs: boolean;
  readonly #choices: readonly Choice[];
  /** Prompts whose first delta was taken, and a notice of each. */
  readonly #begun = new Set<Generation>();
  readonly #changed = new Condition();
  /** Resolves when the delta before is taken, which had to wait; undefined: none has to. */
  #waiting: Promise<void> | undefined;
  #isOver = false;
  #fail: (error: unknown) => void = () => undefined;
  /** Rejects with the first error of a delta on its way. */
  readonly failed: Promise<never>;

  constructor(answer: AnswerRuns, asking: CallFor, take: TakeDelta) {
    const { body, runs, parser } = answer;
    this.#answer = answer;
    this.#asking = asking;
    this.#take = take;
    this.#hasLogprobs = body.sampling.numLogprobs >= 0;
    this.#choices = runs.map((run, index) => ({ index, run, parser: parser?.(run.trace), numEchoed: undefined }));
    this.failed = new Promise((_resolve, reject) => (this.#fail = reject));
    this.failed.catch(() => undefined);
  }

  /** Takes no more deltas. Resolves when none is on its way: nothing is written after it. */
  async close(): Promise<void> {
    this.#stop();
    await this.#waiting;
  }

  #stop(): void {
    this.#isOver = true;
    this.#changed.notify();
  }

  /** Takes the next delta of a choice. Choices take turns where one has to wait. */
  onDelta(index: number, delta: AnswerDelta): Taken {
    const choice = this.#choices[index];
    if (this.#isOver || !choice) return ENOUGH;
    if (this.#waiting) return this.#waiting.then(() => this.onDelta(index, delta));
    if (this.#isEarly(choice)) return this.#held(choice).then(() => this.onDelta(index, delta));
    try {
      const waiting = this.#pass(choice, delta);
      if (!waiting) return this.#passed(choice);
      this.#waiting = waiting
        .catch((error: unknown) => {
          this.#failedWith(error);
        })
        .then(() => (this.#waiting = undefined));
      return this.#waiting.then(() => this.#passed(choice));
    } catch (error) {
      this.#failedWith(error);
      return ENOUGH;
    }
  }

  #failedWith(error: unknown): void {
    this.#fail(error);
    this.#stop();
  }

  /** Notes that a delta of a choice was taken. */
  #passed({ run: { generation } }: Choice): typeof ENOUGH | undefined {
    if (!this.#begun.has(generation)) {
      this.#begun.add(generation);
      this.#changed.notify();
    }
    return this.#isOver ? ENOUGH : undefined;
  }

  /**
   * Whether a choice that repeats its prompt with log-probabilities has to wait for the first delta of the prompt's first sample, before
   * which these are complete.
   */
  #isEarly({ run: { generation, first, echo: repeated } }: Choice): boolean {
    if (!this.#hasLogprobs || repeated === undefined) return false;
    return generation !== first.generation && !this.#begun.has(first.generation);
  }

  async #held(choice: Choice): Promise<void> {
    await this.#changed.until(() => this.#isOver || !this.#isEarly(choice));
  }

  /** Hands a delta on: at once, but for a prompt to echo, unknown names of tokens and a reader that is behind. */
  #pass(choice: Choice, delta: AnswerDelta): Promise<void> | undefined {
    const { run, numEchoed } = choice;
    if (numEchoed === undefined) {
      if (run.echo !== undefined) return this.#begin(choice, delta);
      choice.numEchoed = 0;
    }
    const isFirst = numEchoed === undefined;
    if (!this.#hasLogprobs) return this.#give(choice, delta, isFirst, undefined);
    const nameOf = tokenNames(this.#answer.context, delta.tokens, this.#answer.body.isNamingIds);
    if (nameOf instanceof Promise) return nameOf.then((known) => this.#give(choice, delta, isFirst, known));
    return this.#give(choice, delta, isFirst, nameOf);
  }

  async #begin(choice: Choice, delta: AnswerDelta): Promise<void> {
    const { index, run } = choice;
    const { context, body } = this.#answer;
    const echoed = { run, index, hasLogprobs: this.#hasLogprobs, body };
    choice.numEchoed = await echo(context, echoed, this.#asking, (slice) => this.#hand(slice));
    const nameOf = this.#hasLogprobs ? await tokenNames(context, delta.tokens, body.isNamingIds) : undefined;
    await this.#give(choice, delta, false, nameOf);
  }

  #give(
    { index, parser, numEchoed = 0 }: Choice,
    delta: AnswerDelta,
    isFirst: boolean,
    nameOf: NameOf | undefined,
  ): Promise<void> | undefined {
    const { text, tokens, finish, stopReason, matchedStop, numTokens, offset } = delta;
    const at = numEchoed + offset;
    return this.#hand({
      index,
      text,
      finish,
      stopReason,
      matchedStop,
      numTokens,
      isFirst,
      parsed: parser?.read(delta),
      ids: tokens.map(({ token }) => token),
      logprobs: nameOf && { tokens, nameOf, offsetOf: () => at },
      sumLogprobs: tokens.reduce((sum, { logprob }) => sum + (logprob[0] ?? 0), 0),
    });
  }

  /** Hands a delta to the taker, unless the answer was given up while the delta waited for something. */
  #hand(delta: ParsedDelta): Promise<void> | undefined {
    return this.#isOver ? undefined : this.#take(delta);
  }
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
