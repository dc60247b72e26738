/**
 * Runs one prompt, from token ids to text: relay, detokeniser, stop strings and request trace.
 *
 * The answer formats of chat and completions are made from the same deltas.
 */
import { Condition } from '../../../shared/base/condition.ts';
import { Failure } from '../../../shared/base/failure.ts';
import type { SampledMessage } from '../../../shared/protocol/messages.ts';
import type { Generation } from '../relay/generation.ts';
import type { RequestTrace } from '../record/request_log.ts';
import { TextStream } from '../../../shared/text/text_stream.ts';
import type { ApiContext } from './api_context.ts';
import type { RequestScope } from './request_scope.ts';

/** A step of the output; text may lag behind the tokens. */
export interface AnswerDelta {
  readonly text: string;
  readonly tokens: readonly SampledMessage[];
  /** Position of the first of `tokens` in the output text, in characters (code points). */
  readonly offset: number;
  /** Number of output tokens so far, those of this delta included. */
  readonly numTokens: number;
  readonly finish: 'stop' | 'length' | undefined;
  /** Stop string, or one of the request's own stop tokens, that ended the output; null for anything else. */
  readonly stopReason: string | number | null;
  /** Stop string or stop token that ended the output, the model's end tokens included; null for anything else. */
  readonly matchedStop: string | number | null;
}

/** Runs one prompt and yields its output; starts when the first delta is requested, and closes the request's trace at the end. */
export async function* runPrompt(
  { codec, relay, requests, metrics, clock, targets, onGenerated }: ApiContext,
  trace: RequestTrace,
  generation: Generation,
  scope: RequestScope,
): AsyncGenerator<AnswerDelta> {
  const { signal, untilMs } = scope;
  const { promptTokens, request, ownStopTokenIds, stopTexts } = generation;
  trace.counts = generation.counts;
  trace.expected.targets = targets.of(request.scope.salt, scope.targets, scope.caller.targets);
  trace.wanted.maxTokens = generation.isPromptOnly ? 0 : request.maxLength - promptTokens.length;
  const text = new TextStream(codec, promptTokens, generation.text);
  const final = (known: string | undefined): Promise<string> | string => known ?? decoded(codec, text);
  let outcome: 'finished' | 'failed' | 'cancelled' = 'cancelled';
  let finish: AnswerDelta['finish'];
  let failure: unknown;
  let lastMs = clock.nowMs();
  const generated: number[] = [];
  try {
    for await (const { sampled, finish: modelFinish } of relay.generate(generation, trace, untilMs, signal)) {
      generated.push(sampled.token);
      const sinceMs = generated.length > 1 ? clock.nowMs() - lastMs : undefined;
      if (sinceMs !== undefined) metrics.interToken(trace.attempts.at(-1)?.decode ?? '', sinceMs / 1_000);
      requests.token(trace, sinceMs);
      lastMs = clock.nowMs();
      if (generation.isPromptOnly) {
        [outcome, finish] = ['finished', 'length'];
        generation.counts.outputTokens = 0;
        yield { text: '', tokens: [], offset: 0, numTokens: 0, finish, stopReason: null, matchedStop: null };
        return;
      }
      // A stop token ends the output and is no part of its text, unless it is asked for.
      const isSilent = modelFinish === 'stop' && !generation.text.isStopIncluded;
      const isSearched = generated.length > request.sampling.minTokens;
      const { numCharacters: offset } = text;
      let delta = isSilent ? '' : await final(text.onToken(sampled.token, isSearched));
      if (modelFinish) delta += await final(text.onEnd(isSearched));
      finish = text.stop === undefined ? modelFinish : 'stop';
      const stopText = modelFinish === 'stop' ? stopTexts.get(sampled.token) : undefined;
      if (stopText !== undefined && !isSilent && !delta.endsWith(stopText)) delta += stopText;
      const isOwn = finish === 'stop' && ownStopTokenIds.includes(sampled.token);
      const ownStop = stopText ?? (isOwn ? sampled.token : null);
      if (finish) outcome = 'finished';
      // Output that ends in a stop string is not what the client has, and output under a salt must not be shared.
      if (modelFinish && text.stop === undefined && request.scope.salt === '')
        onGenerated(promptTokens, modelFinish === 'stop' ? generated.slice(0, -1) : generated);
      const numTokens = generated.length;
      const matchedStop = text.stop ?? stopText ?? (finish === 'stop' ? sampled.token : null);
      yield {
        ...{ text: delta, tokens: [sampled], offset, numTokens, finish },
        ...{ stopReason: text.stop ?? ownStop, matchedStop },
      };
      if (finish) return;
    }
  } catch (error) {
    outcome = signal.aborted && !(signal.reason instanceof Failure) ? 'cancelled' : 'failed';
    if (outcome === 'failed') failure = error;
    throw error;
  } finally {
    scope.leave(trace);
    requests.close(trace, outcome, finish ?? (outcome === 'failed' ? 'error' : 'abort'), failure);
  }
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
