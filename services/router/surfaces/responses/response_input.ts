/**
 * The input of `/v1/responses`: items of a conversation, each read as a part of a chat's message; and the messages that the parts make
 * together.
 */
import { withoutNulls } from '../../../../shared/base/without_nulls.ts';
import { isObject } from '../../api/neutral_value.ts';
import { ParameterFailure } from '../../api/parameter_failure.ts';
import { joinParts, leftOutPart } from '../../api/text_parts.ts';
import type { TemplateInput } from '../../../../shared/text/template_input.ts';
import { customArguments, flatName } from './response_tools.ts';

type Messages = TemplateInput['messages'];
type Message = Messages[number];

/** A part of a conversation: a message or a part of one, or a reference to a stored item. */
export interface ChatItem {
  /** Id of the item, where it has one. */
  readonly id?: string;
  /** Message that the item is, or is a part of: an assistant's reasoning, text and calls are items of their own. */
  readonly message?: Message;
  /** Where the item refers to a stored one, by `id`: the path of the reference in its body. */
  readonly referredAt?: string;
}

/** Parts of content that are text. */
const TEXTS = ['input_text', 'output_text', 'text', 'reasoning_text', 'summary_text'];

/**
 * Reads `input`: a text, or a list of items. Adds what is left out of results of tools to `ignored`. @throws ParameterFailure at the first
 * that is no item, or too many for `maxItems`
 */
export function readInput(input: unknown, maxItems: number, ignored: string[]): ChatItem[] {
  if (typeof input === 'string') return [{ message: { role: 'user', content: input } }];
  if (!Array.isArray(input)) throw new ParameterFailure('input: a text, or a list of items', 'input');
  if (input.length > maxItems) {
    throw new ParameterFailure(
      `input: ${input.length} items cannot fit a context of ${maxItems} tokens`,
      'input',
      'context_too_long',
    );
  }
  return input.map((item: unknown, index) => readItem(item, `input.${index}`, ignored));
}

type Given = Readonly<Record<string, unknown>>;

function readItem(item: unknown, where: string, ignored: string[]): ChatItem {
  if (!isObject(item)) throw new ParameterFailure(`${where}: an item is an object with a type`, where);
  const given = withoutNulls(item);
  const { type, id } = given;
  // Only output has the id of an answer's item; the id that a message of the client has means nothing here.
  if (type === 'item_reference' || (type === undefined && given['role'] === undefined && typeof id === 'string'))
    return { id: textAt(given, 'id', where), referredAt: where };
  return { message: messageOfItem(given, where, ignored) };
}

function messageOfItem(item: Given, where: string, ignored: string[]): Message {
  const { type = 'message' } = item;
  switch (type) {
    case 'message':
      return { role: textAt(item, 'role', where), content: textOf(item['content'], `${where}.content`) };
    case 'function_call':
      return callOf(item, textAt(item, 'arguments', where), where);
    case 'custom_tool_call':
      return callOf(item, customArguments(textAt(item, 'input', where)), where);
    case 'function_call_output':
    case 'custom_tool_call_output':
      return {
        role: 'tool',
        tool_call_id: textAt(item, 'call_id', where),
        content: textOf(item['output'], `${where}.output`, ignored),
      };
    case 'reasoning': {
      const content = textOf(item['content'] ?? [], `${where}.content`);
      return {
        role: 'assistant',
        reasoning: content === '' ? textOf(item['summary'] ?? [], `${where}.summary`) : content,
      };
    }
    default:
      throw new ParameterFailure(
        `${where}.type: ${JSON.stringify(type).slice(0, 64)} is not supported; use message, function_call, function_call_output, custom_tool_call, custom_tool_call_output, reasoning or item_reference`,
        `${where}.type`,
      );
  }
}

function callOf(item: Given, json: string, where: string): Message {
  const called = { name: flatName(textAt(item, 'name', where), item['namespace']), arguments: json };
  return {
    role: 'assistant',
    tool_calls: [{ id: textAt(item, 'call_id', where), type: 'function', function: called }],
  };
}

function textAt(item: Given, key: string, where: string): string {
  const value = item[key];
  if (typeof value === 'string' && (value !== '' || key === 'arguments' || key === 'input')) return value;
  throw new ParameterFailure(
    `${where}.${key}: ${value === undefined ? 'is missing' : 'a text that is not empty'}`,
    `${where}.${key}`,
  );
}

/** Returns the text of a content: a text, or parts of text. `leftOut`: takes the paths of others; undefined where they are refused. */
function textOf(content: unknown, where: string, leftOut?: string[]): string {
  if (typeof content === 'string') return content;
  if (!Array.isArray(content)) throw new ParameterFailure(`${where}: a text, or a list of parts of text`, where);
  const texts = content.map((part: unknown, index) => {
    const { type, text, refusal } = (isObject(part) ? part : {}) as Given;
    const isText = TEXTS.some((name) => name === type);
    if (isText && typeof text === 'string') return text;
    if (type === 'refusal' && typeof refusal === 'string') return refusal;
    const at = `${where}.${index}`;
    if (leftOut && !isText && typeof type === 'string') return leftOutPart(type, at, leftOut);
    throw new ParameterFailure(`${at}: only text is supported, as {"type": "input_text", "text": …}`, at);
  });
  return joinParts(texts);
}

/**
 * Returns the messages that the parts of a conversation make: an assistant's reasoning, text and calls become one message, in whatever
 * order text and calls stand, and system messages at the beginning become one with the instructions, since templates seldom take two.
 */
export function messagesOf(items: readonly ChatItem[], instructions: string | undefined): Messages {
  const messages: Message[] = instructions === undefined ? [] : [{ role: 'system', content: instructions }];
  // Lists of calls that were made here, to which further calls are added.
  const joinedCalls = new Set<unknown>();
  for (const { message } of items) {
    const last = messages.at(-1);
    if (!message) continue;
    const joined =
      last && (joinedSystem(last, message, messages.length) ?? joinedAssistant(last, message, joinedCalls));
    if (joined) messages[messages.length - 1] = joined;
    else messages.push(message);
  }
  return messages.map((message) =>
    message['content'] === undefined && message['tool_calls'] === undefined ? { ...message, content: '' } : message,
  );
}

function joinedSystem(last: Message, next: Message, numMessages: number): Message | undefined {
  const isSystem = ({ role }: Message): boolean => role === 'system' || role === 'developer';
  if (numMessages > 1 || !isSystem(last) || !isSystem(next)) return undefined;
  return { ...last, content: `${String(last['content'])}\n\n${String(next['content'])}` };
}

/** Returns a message of both parts; undefined when the next part begins another message. */
function joinedAssistant(last: Message, next: Message, joinedCalls: Set<unknown>): Message | undefined {
  if (last['role'] !== 'assistant' || next['role'] !== 'assistant') return undefined;
  const { tool_calls: calls } = last as { readonly tool_calls?: readonly unknown[] };
  const { tool_calls: more } = next as { readonly tool_calls?: readonly unknown[] };
  if (more && calls && joinedCalls.has(calls)) {
    (calls as unknown[]).push(...more);
    return last;
  }
  if (more) {
    const all = [...(calls ?? []), ...more];
    joinedCalls.add(all);
    return { ...last, tool_calls: all };
  }
  const { content: text } = next;
  if (text === undefined) return undefined;
  // A text after calls is of their answer: an answer of its own would come after their results.
  if (calls) return { ...last, content: textAfter(last['content'], text) };
  return last['content'] === undefined ? { ...last, ...next } : undefined;
}

function textAfter(before: unknown, text: unknown): unknown {
  return typeof before === 'string' && typeof text === 'string' ? before + text : text;
}
