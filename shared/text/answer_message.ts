/** A parsed answer as the message that a chat has of it. */
import type { OutputDelta } from './output/output_delta.ts';

/** A message of the assistant, as the chat API answers it. */
export type AssistantMessage = Readonly<{
  role: 'assistant';
  content: string | null;
  refusal: null;
  reasoning?: string;
  reasoning_content?: string;
  tool_calls?: readonly Readonly<{
    id: string;
    type: string;
    function: Readonly<{ name: string; arguments: string }>;
  }>[];
}>;

/** Returns the message of an answer from all of its deltas. Reasoning has both names that clients read. */
export function messageOf(deltas: readonly OutputDelta[], includesReasoning: boolean): AssistantMessage {
  const content: string[] = [];
  const reasoning: string[] = [];
  const calls: { id: string; name: string; json: string[] }[] = [];
  for (const delta of deltas) {
    if (delta.kind === 'content') content.push(delta.text);
    else if (delta.kind === 'reasoning') reasoning.push(delta.text);
    else if (delta.kind === 'call') calls.push({ id: delta.id, name: delta.name, json: [] });
    else calls[delta.index]?.json.push(delta.text);
  }
  const [text, thought] = [content.join(''), includesReasoning ? reasoning.join('') : ''];
  return {
    role: 'assistant',
    content: text === '' && (calls.length > 0 || reasoning.length > 0) ? null : text,
    refusal: null,
    ...(thought === '' ? {} : { reasoning: thought, reasoning_content: thought }),
    ...(calls.length === 0
      ? {}
      : {
          tool_calls: calls.map(({ id, name, json }) => ({
            id,
            type: 'function',
            function: { name, arguments: json.join('') },
          })),
        }),
  };
}
