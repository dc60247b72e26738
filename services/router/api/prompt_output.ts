/** The output of one prompt, token by token: text, stop strings and what ends it. A core that holds no promise. */
import type { SampledMessage } from '../../../shared/protocol/messages.ts';
import { TextStream, type StreamTexts } from '../../../shared/text/text_stream.ts';
import type { Generation } from '../relay/generation.ts';

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

/** Why the model ended its output with a token; undefined: it goes on. */
type ModelFinish = AnswerDelta['finish'];

/** Turns the tokens of one prompt's output into deltas. Where {@link onToken} or {@link onEnd} returns no text, its `text` must be decoded first. */
export class PromptOutput {
  readonly text: TextStream;
  /** Ids of all tokens so far. */
  readonly generated: number[] = [];
  readonly #generation: Generation;
  #offset = 0;
  #isSilent = false;
  #isSearched = false;

  constructor(generation: Generation, texts: StreamTexts) {
    this.#generation = generation;
    this.text = new TextStream(texts, generation.promptTokens, generation.text);
  }

  /** Takes a token, and returns its text; undefined: it must be decoded. */
  onToken({ token }: SampledMessage, modelFinish: ModelFinish): string | undefined {
    const { text, request } = this.#generation;
    this.generated.push(token);
    // A stop token ends the output and is no part of its text, unless it is asked for.
    this.#isSilent = modelFinish === 'stop' && !text.isStopIncluded;
    this.#isSearched = this.generated.length > request.sampling.minTokens;
    this.#offset = this.text.numCharacters;
    return this.#isSilent ? '' : this.text.onToken(token, this.#isSearched);
  }

  /** Called when the model has ended its output. Returns the text that was held back; undefined: it must be decoded. */
  onEnd(): string | undefined {
    return this.text.onEnd(this.#isSearched);
  }

  /** Returns the delta of the token that was taken last, whose text is this. */
  delta(sampled: SampledMessage, modelFinish: ModelFinish, text: string): AnswerDelta {
    const { stopTexts } = this.#generation;
    const { token } = sampled;
    const { stop } = this.text;
    const finish = stop === undefined ? modelFinish : 'stop';
    const stopText = modelFinish === 'stop' ? stopTexts.get(token) : undefined;
    const isShown = stopText !== undefined && !this.#isSilent && !text.endsWith(stopText);
    return {
      text: isShown ? text + stopText : text,
      tokens: [sampled],
      offset: this.#offset,
      numTokens: this.generated.length,
      finish,
      stopReason: stop ?? stopText ?? this.#ownStop(token, finish),
      matchedStop: stop ?? stopText ?? (finish === 'stop' ? token : null),
    };
  }

  /**
   * The output as other prompts may begin with it; undefined where they may not: output that ends in a stop string is not what the client
   * has.
   */
  remembered(modelFinish: ModelFinish): readonly number[] | undefined {
    if (!modelFinish || this.text.stop !== undefined) return undefined;
    return modelFinish === 'stop' ? this.generated.slice(0, -1) : this.generated;
  }

  /** Returns the stop token, if it is one of the request's own. */
  #ownStop(token: number, finish: ModelFinish): number | null {
    return finish === 'stop' && this.#generation.ownStopTokenIds.includes(token) ? token : null;
  }
}

/** The one delta of an output of which only the prompt is wanted. */
export const PROMPT_ONLY: AnswerDelta = {
  text: '',
  tokens: [],
  offset: 0,
  numTokens: 0,
  finish: 'length',
  stopReason: null,
  matchedStop: null,
};
