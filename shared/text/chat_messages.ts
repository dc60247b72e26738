/** Prepares a chat's messages for its template, and cuts the rendered text where the final message is to be continued. */
import { Failure } from '../base/failure.ts';
import type { TemplateInput } from './template_input.ts';
import { exactJson } from './template/exact_json.ts';

/** Messages of a chat request: one record per message, with `role`, `content` and the other keys that a template reads. */
export type Messages = TemplateInput['messages'];
type Message = Messages[number];

/** Whether a value is a text with more than blanks. */
export function hasText(value: unknown): value is string {
  return typeof value === 'string' && /\S/.test(value);
}

/** Whether a message of the assistant has calls. */
export function isCalling({ role, tool_calls: calls }: Message): boolean {
  return role === 'assistant' && Array.isArray(calls) && calls.length > 0;
}

/** Nesting depth of tool-call arguments that are parsed; deeper ones stay a string. */
const MAX_ARGUMENT_DEPTH = 64;

/**
 * Returns the messages as the template expects them. `knowsDeveloper`: the template names the role `developer`. Other templates get
 * the older role `system` instead. `areArgumentsText`: arguments of calls are text, not values.
 */
export function forTemplate(messages: Messages, knowsDeveloper: boolean, areArgumentsText = false): Messages {
  const ofCalls = areArgumentsText ? argumentText : argumentsOf;
  return messages.map((message) =>
    withReasoning(withArguments(knowsDeveloper ? message : withSystem(message), ofCalls)),
  );
}

/** Gives an assistant's reasoning the names that most templates and clients use for it. */
function withReasoning(message: Message): Message {
  const { role, reasoning, reasoning_content: other, thinking } = message;
  const text = [reasoning, other, thinking].find((one) => typeof one === 'string');
  if (role !== 'assistant' || text === undefined) return message;
  return { ...message, reasoning: reasoning ?? other ?? text, reasoning_content: other ?? reasoning ?? text };
}

/** Whether a template names a role as a string literal inside a tag. Comments, and text outside tags, do not count. */
export function namesRole(source: string, role: string): boolean {
  return namesInTags(source, new RegExp(`(['"])${role}\\1`));
}

/** Whether `pattern` is found inside a tag of a template. */
export function namesInTags(source: string, pattern: RegExp): boolean {
  return tagsOf(source).some((inside) => pattern.test(inside));
}

/** Whether a template reads a variable of this name. */
export function readsVariable(source: string, name: string): boolean {
  const pattern = new RegExp(`(?<![\\w.])${name}\\b`);
  return tagsOf(source).some((inside) => pattern.test(inside.replace(/'(\\.|[^'\\])*'|"(\\.|[^"\\])*"/g, '')));
}

/** Returns the inside of each tag. Comments are left out. */
function tagsOf(source: string): string[] {
  const tags = source.replace(/\{#[^]*?#\}/g, '').matchAll(/\{[{%]([^]*?)[%}]\}/g);
  return [...tags].map(([, inside = '']) => inside);
}

function withSystem(message: Message): Message {
  return message['role'] === 'developer' ? { ...message, role: 'system' } : message;
}

/** Returns the message with the arguments of its calls as `ofCalls` has them. */
function withArguments(message: Message, ofCalls: (given: unknown) => unknown): Message {
  const calls = message['tool_calls'];
  if (!Array.isArray(calls)) return message;
  const read = (call: unknown): unknown => {
    const { function: called } = (call ?? {}) as { function?: { arguments?: unknown } };
    return called ? { ...(call as object), function: { ...called, arguments: ofCalls(called.arguments) } } : call;
  };
  return { ...message, tool_calls: calls.map(read) };
}

/**
 * Returns the arguments as a value, because templates iterate over them. Clients send them as the JSON string that the model wrote; absent,
 * null or empty arguments become an empty object, and a string that is no JSON stays a string.
 */
function argumentsOf(given: unknown): unknown {
  if (given === undefined || given === null) return {};
  if (typeof given !== 'string') return given;
  return /^\s*(null)?\s*$/.test(given) ? {} : (exactJson(given, MAX_ARGUMENT_DEPTH) ?? given);
}

/** Returns the arguments as text, for templates that join them to others: as they were sent, and an empty object where there are none. */
function argumentText(given: unknown): string {
  if (typeof given === 'string') return /^\s*(null)?\s*$/.test(given) ? '{}' : given;
  return given === undefined || given === null ? '{}' : JSON.stringify(given);
}

/**
 * Returns the text up to the end of the final message's content, cut as by Hugging Face's apply_chat_template. @throws Failure
 * `invalid_request` when the text does not contain that content
 */
export function leftOpen(text: string, messages: Messages): string {
  const content = messages.at(-1)?.['content'];
  const final = typeof content === 'string' ? content : '';
  const at = text.lastIndexOf(final.trim());
  if (final.trim() === '' || at < 0) {
    throw new Failure(
      'invalid_request',
      'continue_final_message: the text of the final message is empty or not in the rendered prompt, so it cannot be continued',
    );
  }
  const whole = final.trimStart();
  return text.slice(0, at + (text.startsWith(whole, at) ? whole.length : final.trim().length));
}
