/** Finds the token with which a chat template ends an assistant's turn, by rendering chats whose texts occur in no template. */
import type { Messages } from './chat_messages.ts';

const QUESTION = { role: 'user', content: 'penstockQuestion' };
const ANSWER = { role: 'assistant', content: 'penstock-answer-7' };

/**
 * Chats to render, in this order. Some templates leave the last answer open, or require a question after the answer, or a system
 * message.
 */
const CHATS: readonly Messages[] = [
  [QUESTION, ANSWER],
  [QUESTION, ANSWER, QUESTION],
  [{ role: 'system', content: 'system' }, QUESTION, ANSWER],
];

/**
 * Returns the longest of the `tokens` that follows an answer directly; undefined when none does.
 * @param render renders a chat with the template; throws when the template refuses the chat
 */
export function endOfTurn<T extends { readonly content: string }>(
  tokens: readonly T[],
  render: (messages: Messages) => string,
): T | undefined {
  const longestFirst = [...tokens].sort((one, other) => other.content.length - one.content.length);
  for (const chat of CHATS) {
    const after = afterAnswer(chat, render);
    const found = longestFirst.find(({ content }) => after.startsWith(content));
    if (found) return found;
  }
  return undefined;
}

/**
 * Returns the text between an answer and the next turn, without leading white space; empty when nothing is there or the template
 * refuses the chat.
 */
function afterAnswer(chat: Messages, render: (messages: Messages) => string): string {
  let text: string;
  try {
    text = render(chat);
  } catch {
    return '';
  }
  const at = text.lastIndexOf(ANSWER.content);
  if (at < 0) return '';
  const [before = ''] = text.split(QUESTION.content, 1);
  const [after = '', next] = text.slice(at + ANSWER.content.length).split(QUESTION.content);
  // The text that precedes both questions alike belongs to the next turn.
  const numCommon = next === undefined ? 0 : numEqualAtEnd(after, before);
  return after.slice(0, after.length - numCommon).trimStart();
}

function numEqualAtEnd(a: string, b: string): number {
  let count = 0;
  while (count < Math.min(a.length, b.length) && a.at(-1 - count) === b.at(-1 - count)) count++;
  return count;
}
