/** Messages of a chat on their way to a template, and what its text becomes where the last of them is to go on. */
import { Failure } from '../../../shared/base/failure.ts';
import type { TemplateInput } from '../openai/parameters.ts';
import { exactJson } from './template/exact_json.ts';

/** Messages of a chat request: one record per message, with `role`, `content` and the other keys that a template reads. */
export type Messages = TemplateInput['messages'];
type Message = Messages[number];

/** Arguments that are nested deeper stay text. */
const MAX_ARGUMENT_DEPTH = 64;

/** Messages as a template is given them. `knowsDeveloper`: it names that role; others get `system`, which it replaced. */
export function forTemplate(messages: Messages, knowsDeveloper: boolean): Messages {
  return messages.map((message) => withArguments(knowsDeveloper ? message : withSystem(message)));
}

/** Whether a template compares something with a role: its name is a text in a tag, and not in a comment or in what is printed. */
export function namesRole(source: string, role: string): boolean {
  const tags = source.replace(/\{#[^]*?#\}/g, '').matchAll(/\{[{%]([^]*?)[%}]\}/g);
  return [...tags].some(([, inside = '']) => inside.includes(`'${role}'`) || inside.includes(`"${role}"`));
}

function withSystem(message: Message): Message {
  return message['role'] === 'developer' ? { ...message, role: 'system' } : message;
}

/** Templates iterate over the arguments of calls, which clients send as the text that the model wrote, or spell in other ways where there are none. */
function withArguments(message: Message): Message {
  const calls = message['tool_calls'];
  if (!Array.isArray(calls)) return message;
  const read = (call: unknown): unknown => {
    const { function: called } = (call ?? {}) as { function?: { arguments?: unknown } };
    return called ? { ...(call as object), function: { ...called, arguments: argumentsOf(called.arguments) } } : call;
  };
  return { ...message, tool_calls: calls.map(read) };
}

/** The arguments as an object; a text that spells none stays as it is. */
function argumentsOf(given: unknown): unknown {
  if (given === undefined || given === null) return {};
  if (typeof given !== 'string') return given;
  return /^\s*(null)?\s*$/.test(given) ? {} : (exactJson(given, MAX_ARGUMENT_DEPTH) ?? given);
}

/** The text up to the end of the final message's content, as Hugging Face's apply_chat_template cuts it. @throws Failure where it is not there */
export function leftOpen(text: string, messages: Messages): string {
  const content = messages.at(-1)?.['content'];
  const final = typeof content === 'string' ? content : '';
  const at = text.lastIndexOf(final.trim());
  if (final.trim() === '' || at < 0) {
    throw new Failure(
      'invalid_request',
      'continue_final_message: the final message does not appear in what the chat template makes of it',
    );
  }
  const whole = final.trimStart();
  return text.slice(0, at + (text.startsWith(whole, at) ? whole.length : final.trim().length));
}
