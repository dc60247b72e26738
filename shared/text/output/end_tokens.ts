/** Which of a model's end tokens end an answer of its format. */
import type { FormatChoice } from './output_format.ts';

/** The token that ends a message of harmony. An answer is several messages, so it ends none. */
const MESSAGE_END = '<|end|>';

/** Returns the ids that end an answer, each once: `ids` are those that the model's files name. */
export function answerEnds(
  ids: readonly number[],
  { tools, reasoning }: FormatChoice,
  tokens: readonly { readonly id: number; readonly content: string }[],
): number[] {
  const isHarmony = tools === 'harmony' || reasoning === 'harmony';
  const between = isHarmony ? tokens.filter(({ content }) => content === MESSAGE_END).map(({ id }) => id) : [];
  return [...new Set(ids)].filter((id) => !between.includes(id));
}
