/** The thread that reads bodies and encodes their prompts: body bytes in, request parameters and token ids out. */
import { Failure } from '../../../shared/base/failure.ts';
import type { PromptLimits } from '../../../shared/text/prompts.ts';
import { TokenizerTools, type TokenizerInput } from '../../../shared/text/tokenizer_tools.ts';
import { hasPrompts, type BodyKind, type BodyPrompts, type ParsedBody } from './body_kind.ts';
import { BodyReader, type BodyJob } from './body_reader.ts';
import type { Refusal } from './parameter_failure.ts';

/** A request body to parse, whose prompts are then encoded. */
export interface PromptBodyJob extends BodyJob {
  /** The model whose tokenizer this is: prompts for another are left as they are. */
  readonly model: string;
  readonly maxCharacters: number;
}

/**
 * A parsed body and the token ids of each of its prompts. `prompts` is undefined when the prompts are for another model's tokenizer,
 * or cannot be encoded.
 */
export interface ReadPromptBody<B = ParsedBody> {
  readonly body: B;
  readonly prompts: readonly Uint32Array[] | undefined;
  /** End of a chat's prompt that belongs to the answer. */
  readonly prefix?: string;
  /** Why the prompts cannot be encoded. The caller throws this after it has recorded the request's model and id. */
  readonly failure?: Pick<Failure, 'code' | 'message'>;
}

/** The tokenizer of a model, which also reads bodies of some kinds. */
export class PromptTools extends TokenizerTools {
  readonly #reader: BodyReader;

  constructor(input: TokenizerInput, kinds: readonly BodyKind[]) {
    super(input);
    this.#reader = new BodyReader(kinds);
  }

  /** Parses a body and encodes its prompts. Errors in the body are the client's, and are returned as values. */
  readPrompts(job: PromptBodyJob): ReadPromptBody | { readonly refused: Refusal } {
    const { model, maxCharacters } = job;
    const kind = this.#reader.find(job.kind);
    const read = this.#reader.read(job);
    if ('refused' in read) return read;
    const { body } = read;
    if ((body.model ?? '') !== '' && body.model !== model) return { body, prompts: undefined };
    const prompts = hasPrompts(kind) ? kind.prompts(body) : undefined;
    if (!prompts) return { body, prompts: undefined };
    try {
      return { body: prompts.isEchoing ? body : prompts.withoutText(), ...this.#encoded(prompts, maxCharacters) };
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      const failure = { code: error.code, message: error.message };
      return { body: prompts.withoutText(), prompts: undefined, failure };
    }
  }

  #encoded(
    { source, cutSide, answerScope }: BodyPrompts,
    maxCharacters: number,
  ): Pick<ReadPromptBody, 'prompts' | 'prefix'> {
    const limits: PromptLimits = { maxCharacters, cutSide, answerScope };
    if ('template' in source) {
      const { ids, prefix } = this.chatPrompt({ template: source.template, ...limits });
      return { prompts: [ids], prefix };
    }
    const { texts, addSpecialTokens } = source;
    return {
      prompts: texts.map((text) =>
        typeof text === 'string' ? this.encode({ text, addSpecialTokens, ...limits }) : text,
      ),
    };
  }
}
