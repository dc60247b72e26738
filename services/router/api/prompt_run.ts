/**
 * Runs one prompt, from token ids to text: relay, detokeniser, stop strings and request trace.
 *
 * The answers of all APIs are made from the same deltas.
 */
import { Failure } from '../../../shared/base/failure.ts';
import { ENOUGH, type Taken } from '../../../shared/base/handover.ts';
import type { EndPhase } from '../record/request_events.ts';
import type { RequestTrace } from '../record/request_trace.ts';
import type { GeneratedToken } from '../relay/decode_attempt.ts';
import type { Generation } from '../relay/generation.ts';
import type { ApiContext } from './api_context.ts';
import { PROMPT_ONLY, PromptOutput, type AnswerDelta } from './prompt_output.ts';
import type { RequestScope } from './request_scope.ts';

/** Takes the deltas of one output in order. It does not throw: a taker that cannot go on has enough. */
export type TakeOutput = (delta: AnswerDelta) => Taken;

/** Runs one prompt, gives its output to `take`, and closes the request's trace at the end. @throws Failure that ends it */
export async function runPrompt(
  context: ApiContext,
  trace: RequestTrace,
  generation: Generation,
  scope: RequestScope,
  take: TakeOutput,
): Promise<void> {
  const { signal } = scope;
  begin(context, trace, generation, scope);
  const output = new OutputRun(context, generation, take);
  let outcome: EndPhase = 'cancelled';
  let failure: unknown;
  try {
    await context.relay.generate(generation, trace, scope, (generated) => output.onToken(generated));
    output.check();
  } catch (error) {
    outcome = signal.aborted && !(signal.reason instanceof Failure) ? 'cancelled' : 'failed';
    if (outcome === 'failed') failure = error;
    throw error;
  } finally {
    const { finish } = output;
    if (finish && failure === undefined) outcome = 'finished';
    scope.leave(trace);
    trace.end(outcome, finish ?? (outcome === 'failed' ? 'error' : 'abort'), failure);
  }
}

/** Records what is asked for. */
function begin(
  { targets }: ApiContext,
  trace: RequestTrace,
  { request, isPromptOnly, promptTokens }: Generation,
  { targets: asked, caller }: RequestScope,
): void {
  const { sampling, maxLength } = request;
  // Not all of it: a bias has up to half a million values, and the record is kept.
  const { temperature, topP, topK } = sampling;
  const maxTokens = isPromptOnly ? 0 : maxLength - promptTokens.length;
  trace.emit({
    kind: 'read',
    facts: { targets: targets.of(asked, caller.targets), maxTokens, sampling: { temperature, topP, topK } },
  });
}

/** Makes deltas of the tokens of one run, without a promise but where a text takes the tokenizer. */
class OutputRun {
  readonly #context: ApiContext;
  readonly #generation: Generation;
  readonly #take: TakeOutput;
  readonly #output: PromptOutput;
  /** Error of this side, which the relay does not get to see. */
  #error: unknown;
  /** Why the output has ended; undefined: it goes on. */
  finish: AnswerDelta['finish'];

  constructor(context: ApiContext, generation: Generation, take: TakeOutput) {
    this.#context = context;
    this.#generation = generation;
    this.#take = take;
    this.#output = new PromptOutput(generation, context.codec);
  }

  /** @throws the error for which no more tokens were taken */
  check(): void {
    if (this.#error !== undefined) throw this.#error as Error;
  }

  onToken(generated: GeneratedToken): Taken {
    try {
      if (this.#generation.isPromptOnly) return this.#last(PROMPT_ONLY);
      const { sampled, finish } = generated;
      const text = this.#output.onToken(sampled, finish);
      if (text !== undefined && !finish) return this.#give(generated, text);
      return this.#decoded(generated, text).catch((error: unknown) => this.#failed(error));
    } catch (error) {
      return this.#failed(error);
    }
  }

  #failed(error: unknown): typeof ENOUGH {
    this.#error = error;
    return ENOUGH;
  }

  /** Gives the delta of a token whose text is not known, or after which the output has ended. */
  async #decoded(generated: GeneratedToken, known: string | undefined): Promise<typeof ENOUGH | undefined> {
    let text = known ?? (await this.#decode());
    if (generated.finish) text += this.#output.onEnd() ?? (await this.#decode());
    return this.#give(generated, text);
  }

  #give({ sampled, finish }: GeneratedToken, text: string): Taken {
    const delta = this.#output.delta(sampled, finish, text);
    const remembered = this.#output.remembered(finish);
    const { promptTokens, request } = this.#generation;
    if (remembered) this.#context.onGenerated(promptTokens, remembered, request.scope);
    return delta.finish ? this.#last(delta) : this.#take(delta);
  }

  #last(delta: AnswerDelta): Taken {
    this.finish = delta.finish;
    const taken = this.#take(delta);
    return taken instanceof Promise ? taken.then(() => ENOUGH) : ENOUGH;
  }

  /** Returns the text of the stream, which takes the tokenizer. */
  async #decode(): Promise<string> {
    const { text } = this.#output;
    const { lists, skipSpecialTokens } = text.undecoded;
    return text.onDecoded(await this.#context.codec.decode(lists, skipSpecialTokens));
  }
}
