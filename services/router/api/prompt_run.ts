/**
 * Runs one prompt, from token ids to text: relay, detokeniser, stop strings and request trace.
 *
 * The answers of all APIs are made from the same deltas.
 */
import { Condition } from '../../../shared/base/condition.ts';
import { Failure } from '../../../shared/base/failure.ts';
import type { TextStream } from '../../../shared/text/text_stream.ts';
import type { EndPhase } from '../record/request_events.ts';
import type { RequestTrace } from '../record/request_trace.ts';
import type { Generation } from '../relay/generation.ts';
import type { ApiContext } from './api_context.ts';
import { PROMPT_ONLY, PromptOutput, type AnswerDelta } from './prompt_output.ts';
import type { RequestScope } from './request_scope.ts';

/** Runs one prompt and yields its output; starts when the first delta is requested, and closes the request's trace at the end. */
export async function* runPrompt(
  context: ApiContext,
  trace: RequestTrace,
  generation: Generation,
  scope: RequestScope,
): AsyncGenerator<AnswerDelta> {
  const { codec, relay, onGenerated } = context;
  const { signal, untilMs } = scope;
  begin(context, trace, generation, scope);
  const output = new PromptOutput(generation, codec);
  const final = (known: string | undefined): Promise<string> | string => known ?? decoded(codec, output.text);
  let outcome: EndPhase = 'cancelled';
  let finish: AnswerDelta['finish'];
  let failure: unknown;
  try {
    for await (const { sampled, finish: modelFinish } of relay.generate(generation, trace, untilMs, signal)) {
      if (generation.isPromptOnly) {
        [outcome, finish] = ['finished', PROMPT_ONLY.finish];
        yield PROMPT_ONLY;
        return;
      }
      let text = await final(output.onToken(sampled, modelFinish));
      if (modelFinish) text += await final(output.onEnd());
      const delta = output.delta(sampled, modelFinish, text);
      ({ finish } = delta);
      if (finish) outcome = 'finished';
      const remembered = output.remembered(modelFinish);
      if (remembered) onGenerated(generation.promptTokens, remembered, generation.request.scope);
      yield delta;
      if (finish) return;
    }
  } catch (error) {
    outcome = signal.aborted && !(signal.reason instanceof Failure) ? 'cancelled' : 'failed';
    if (outcome === 'failed') failure = error;
    throw error;
  } finally {
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

/** Returns the text of a stream that takes the tokenizer. */
async function decoded(codec: Pick<ApiContext['codec'], 'decode'>, text: TextStream): Promise<string> {
  const { lists, skipSpecialTokens } = text.undecoded;
  return text.onDecoded(await codec.decode(lists, skipSpecialTokens));
}

/**
 * Merges the deltas of several prompts as they arrive, each with the index of its prompt. The first failure is thrown; the scope ends
 * the other runs.
 */
export async function* merge(
  runs: readonly AsyncGenerator<AnswerDelta>[],
): AsyncGenerator<{ index: number; delta: AnswerDelta }> {
  interface Answer {
    readonly run: AsyncGenerator<AnswerDelta>;
    readonly index: number;
    readonly result: IteratorResult<AnswerDelta>;
  }
  const ready: Promise<Answer>[] = [];
  const changed = new Condition();
  const ask = (run: AsyncGenerator<AnswerDelta>, index: number): void => {
    const answer = run.next().then((result): Answer => ({ run, index, result }));
    const settled = (): void => {
      ready.push(answer);
      changed.notify();
    };
    answer.then(settled, settled);
  };
  runs.forEach(ask);
  for (let numOpen = runs.length; numOpen > 0;) {
    await changed.until(() => ready.length > 0);
    const answer = ready.shift();
    if (!answer) continue;
    const { run, index, result } = await answer;
    if (result.done) {
      numOpen--;
      continue;
    }
    ask(run, index);
    yield { index, delta: result.value };
  }
}
