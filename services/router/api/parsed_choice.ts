/** The parser of one choice's output, with the tokens that it counts as reasoning. */
import { REASONING_TOKEN } from '../record/request_events.ts';
import type { RequestTrace } from '../record/request_trace.ts';
import type { OutputDelta } from '../../../shared/text/output/output_delta.ts';
import type { OutputParser } from '../../../shared/text/output/output_parser.ts';
import type { AnswerDelta } from './prompt_output.ts';

/** Output of a choice, as far as it is parsed. */
export interface ParsedOutput {
  /** Pieces of this part of the output. */
  readonly pieces: readonly OutputDelta[];
  /** Whether the choice has had a call so far. */
  readonly hasCalls: boolean;
}

/** Parses the text of one choice, part by part. */
export class ParsedChoice {
  readonly #parser: OutputParser;
  readonly #trace: Pick<RequestTrace, 'emit'>;
  readonly #hasReasoning: boolean;
  #hasCalls = false;

  /** @param hasReasoning whether tokens of the reasoning are counted */
  constructor(parser: OutputParser, trace: Pick<RequestTrace, 'emit'>, hasReasoning: boolean) {
    this.#parser = parser;
    this.#trace = trace;
    this.#hasReasoning = hasReasoning;
    if (hasReasoning) trace.emit({ kind: 'read', facts: { hasReasoning } });
  }

  /** Parses the next part. The last one ends the output. */
  read({ text, tokens, finish }: Pick<AnswerDelta, 'text' | 'tokens' | 'finish'>): ParsedOutput {
    const wasReasoning = this.#parser.isReasoning;
    const pieces = this.#parser.push(text);
    if (finish) pieces.push(...this.#parser.end(finish !== 'stop'));
    // Tokens of the markers count too, since they were generated.
    const isReasoning = wasReasoning || this.#parser.isReasoning || pieces.some(({ kind }) => kind === 'reasoning');
    if (isReasoning && this.#hasReasoning) for (let i = 0; i < tokens.length; i++) this.#trace.emit(REASONING_TOKEN);
    this.#hasCalls ||= pieces.some(({ kind }) => kind === 'call');
    return { pieces, hasCalls: this.#hasCalls };
  }
}

/** Returns the pieces of a part of an answer; text that is not parsed is content. */
export function piecesOf({
  parsed,
  text,
}: {
  readonly parsed: ParsedOutput | undefined;
  readonly text: string;
}): readonly OutputDelta[] {
  return parsed?.pieces ?? (text === '' ? [] : [{ kind: 'content', text }]);
}
