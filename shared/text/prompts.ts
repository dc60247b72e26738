/** Prompts to encode, and what of them comes back. */
import type { TemplateInput } from './template_input.ts';

/** Side of a prompt on which tokens are dropped where it is cut: `left` keeps the last ones. */
export type CutSide = 'left' | 'right';

/** Limits of a prompt that is encoded. */
export interface PromptLimits {
  readonly maxCharacters: number;
  /** Side on which the ids are cut afterwards; undefined: a text over `maxCharacters` is refused. */
  readonly cutSide?: CutSide | undefined;
  /** Number of the scope of which generated tokens may stand for turns of this prompt; undefined: none may. */
  readonly answerScope?: bigint | undefined;
}

/** A text to encode. */
export interface TextPrompt extends PromptLimits {
  readonly text: string;
  readonly addSpecialTokens: boolean;
}

/** A chat to render and encode. */
export interface ChatInput extends PromptLimits {
  readonly template: TemplateInput;
}

/** Prompt of a chat: its token ids, and the end of its text that belongs to the answer, for the parser of the output. */
export interface ChatPrompt {
  readonly ids: Uint32Array;
  readonly prefix: string;
}
