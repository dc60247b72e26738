/**
 * Tools as text, for chat templates that read none: what a system message says of them, and calls and their results of earlier turns as
 * messages that any template knows.
 */
import type { ToolDefinition } from './template_input.ts';
import { isJson } from './output/argument_types.ts';
import { toolFamilies, type ToolFamily } from './output/tool_families.ts';
import type { Messages } from './chat_messages.ts';

type Message = Messages[number];

/** Returns a call as the model is to write it; `values` as a text is JSON. */
function written(family: ToolFamily, name: string, values: unknown): string {
  const json = typeof values === 'string' ? (/\S/.test(values) ? values : '{}') : JSON.stringify(values);
  if (family === 'pythonic') return `[${pythonCall(name, isJson(json) ? JSON.parse(json) : undefined)}]`;
  return toolFamilies[family].write?.(name, json) ?? `{"name": "${name}", "arguments": ${json}}`;
}

function pythonCall(name: string, values: unknown): string {
  const fields = typeof values === 'object' && values !== null ? Object.entries(values) : [];
  return `${name}(${fields.map(([key, value]) => `${key}=${pythonText(value)}`).join(', ')})`;
}

function pythonText(value: unknown): string {
  if (value === null) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (Array.isArray(value)) return `[${value.map(pythonText).join(', ')}]`;
  if (typeof value !== 'object') return JSON.stringify(value);
  return `{${Object.entries(value)
    .map(([key, one]) => `${JSON.stringify(key)}: ${pythonText(one)}`)
    .join(', ')}}`;
}

/** Returns the description of a tool as JSON, with its parameters as the client wrote them. */
function describedJson({ function: described, exactParameters }: ToolDefinition): string {
  if (exactParameters === undefined) return JSON.stringify(described);
  const fields = Object.entries(described).map(([key, value]) => {
    return `${JSON.stringify(key)}:${key === 'parameters' ? exactParameters : JSON.stringify(value)}`;
  });
  return `{${fields.join()}}`;
}

/** Returns the tools' descriptions as a template of Phi-4 reads them, from the system message. */
export function toolsJson(tools: readonly ToolDefinition[]): string {
  return `[${tools.map(describedJson).join()}]`;
}

/** Returns what a system message says of the tools. */
export function instructions(tools: readonly ToolDefinition[], family: ToolFamily): string {
  const form =
    family === 'pythonic' ? '[NAME(PARAMETER=VALUE, ...), ...]' : written(family, 'NAME', '{"PARAMETER": VALUE, ...}');
  return [
    'You can call these functions:',
    ...tools.map(describedJson),
    'To call a function, answer with nothing but this, once for each call:',
    form,
    'Call one only if it is needed; otherwise answer as usual.',
  ].join('\n');
}

/** Adds a text to the system message that a chat begins with, or a system message with the text. */
export function withSystemText(messages: Messages, text: string): Messages {
  const [first, ...rest] = messages;
  if (first?.['role'] !== 'system') return [{ role: 'system', content: text }, ...messages];
  const before = typeof first['content'] === 'string' && first['content'] !== '' ? `${first['content']}\n\n` : '';
  return [{ ...first, content: before + text }, ...rest];
}

/** Moves the system message into the first message of the user, for templates that know no system messages. */
export function withoutSystem(messages: Messages): Messages {
  const [first, second, ...rest] = messages;
  if (first?.['role'] !== 'system' || second?.['role'] !== 'user') return messages;
  return [{ ...second, content: `${String(first['content'])}\n\n${String(second['content'])}` }, ...rest];
}

/**
 * Returns the messages with calls as text of the assistant, and their results as text of the user unless the template `knowsResults`.
 */
export function withCallsAsText(messages: Messages, family: ToolFamily, knowsResults: boolean): Messages {
  const names = new Map<unknown, string>();
  const result: Message[] = [];
  let isBehindResult = false;
  for (const message of messages) {
    const { role, tool_calls: calls, tool_call_id: id, name, content = '', ...rest } = message;
    const before = result.at(-1);
    if (role === 'tool' && !knowsResults) {
      const called = typeof name === 'string' ? name : names.get(id);
      const text = `Result of ${called ?? 'the call'}: ${String(content)}`;
      if (isBehindResult && before)
        result[result.length - 1] = { ...before, content: `${String(before['content'])}\n${text}` };
      else result.push({ role: 'user', content: text });
      isBehindResult = true;
      continue;
    }
    if (role === 'user' && isBehindResult && before) {
      // Many templates refuse two messages of the user in a row.
      result[result.length - 1] = { ...before, content: `${String(before['content'])}\n\n${String(content)}` };
    } else if (Array.isArray(calls) && calls.length > 0) {
      const texts = (calls as readonly Call[]).map(({ id: callId, function: called }) => {
        names.set(callId, called?.name ?? '');
        return written(family, called?.name ?? '', called?.arguments ?? {});
      });
      result.push({ ...rest, role, content: [...(content === '' ? [] : [String(content)]), ...texts].join('\n') });
    } else result.push(message);
    isBehindResult = false;
  }
  return result;
}

interface Call {
  readonly id?: unknown;
  readonly function?: { readonly name?: string; readonly arguments?: unknown };
}

/** Length of a call's id that templates of Mistral ask for. */
const SHORT_ID = 9;

/** Returns the messages with ids of calls in the form that templates of Mistral ask for: nine letters or digits. */
export function withShortIds(messages: Messages): Messages {
  const short = (id: unknown): string =>
    String(id)
      .replace(/[^A-Za-z0-9]/g, '')
      .slice(-SHORT_ID)
      .padStart(SHORT_ID, '0');
  return messages.map((message) => {
    const { tool_calls: calls, tool_call_id: id } = message;
    if (typeof id === 'string') return { ...message, tool_call_id: short(id) };
    if (!Array.isArray(calls)) return message;
    return { ...message, tool_calls: (calls as readonly Call[]).map((call) => ({ ...call, id: short(call.id) })) };
  });
}
