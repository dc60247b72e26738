/**
 * Spellings of a chat: the forms in which chat templates take messages and tools that mean the same. Each change moves as little text as
 * possible, and says the same of the beginning of a chat whatever comes after it, so that a prompt stays the prefix of the next one.
 *
 *   systemInTurns     a system message that is not the first becomes part of the turn before it, or of the one after it
 *   toolDefaults      tools have every field that the API lets clients leave out
 *   filled            a message without content has an empty one
 *   shortIds          ids of calls are nine letters or digits (Mistral)
 *   argumentsAsText   arguments of calls are the JSON text that the model wrote (DeepSeek)
 *   thinking          reasoning has the name `thinking` as well (gpt-oss, LFM2.5)
 *   thinkingAlone     and the text next to calls belongs to it, where a template takes one of them only (gpt-oss)
 *   textApart         the text next to calls is a message of its own before them
 *   oneCallEach       each call is a message of its own, with its result after it (Llama 3)
 *   joinedTurns       messages of one role in a row are one
 *   withoutSystem     the first system message is part of the user's first (Gemma 2)
 *   callTexts         calls are text of the assistant (ChatML)
 *   callsAsText       and their results are text of the user (Phi-3.5, Gemma)
 */
import type { ToolDefinition } from './template_input.ts';
import type { ToolFamily } from './output/tool_families.ts';
import { forTemplate, hasText, isCalling, type Messages } from './chat_messages.ts';
import { instructions, toolsJson, withCallsAsText, withoutSystem, withShortIds, withSystemText } from './tool_texts.ts';

type Message = Messages[number];

/** Names of the changes, those that explain more of what templates refuse first. */
const changes = [
  ...(['systemInTurns', 'toolDefaults', 'filled', 'shortIds', 'argumentsAsText', 'thinking', 'thinkingAlone'] as const),
  ...(['textApart', 'oneCallEach', 'joinedTurns', 'withoutSystem', 'callTexts', 'callsAsText'] as const),
] as const;
/** A change of a spelling. */
export type Change = (typeof changes)[number];
/** A spelling: the changes that it makes. */
export type Spelling = ReadonlySet<Change>;
/** The messages as they came. */
export const AS_THEY_ARE: Spelling = new Set();

/** Messages and tools of a chat. */
export interface Chat {
  readonly messages: Messages;
  readonly tools: readonly ToolDefinition[];
}

/** A template's source says these things of what it reads. */
export interface TemplateTraits {
  readonly knowsDeveloper: boolean;
  readonly knowsToolRole: boolean;
  readonly readsTools: boolean;
  readonly readsCalls: boolean;
  readonly readsThinking: boolean;
  /** Whether it reads the tools from a key of the system message, as text (Phi-4-mini). */
  readonly readsToolsOfMessage: boolean;
}

/** Returns the chat as the template is to have it; the tools are among the messages when it reads none. */
export function spelled(
  { messages, tools }: Chat,
  spelling: Spelling,
  traits: TemplateTraits | undefined,
  family: ToolFamily,
): Chat {
  let own = messages;
  if (spelling.has('systemInTurns')) own = withSystemInTurns(own);
  if (spelling.has('thinkingAlone')) own = withThinkingAlone(own);
  if (spelling.has('textApart')) own = withTextApart(own);
  if (spelling.has('oneCallEach')) own = withOneCallEach(own);
  const isLosingCalls = tools.length > 0 && traits?.readsCalls === false;
  if (spelling.has('callsAsText')) own = withCallsAsText(own, family, false);
  else if (isLosingCalls) own = withCallsAsText(own, family, traits.knowsToolRole);
  else if (spelling.has('callTexts')) own = withCallsAsText(own, family, true);
  if (spelling.has('joinedTurns')) own = withJoinedTurns(own);
  own = forTemplate(own, traits?.knowsDeveloper === true, spelling.has('argumentsAsText'));
  if (spelling.has('thinking') || spelling.has('thinkingAlone')) own = withThinking(own);
  const described = spelling.has('toolDefaults') ? tools.map(withDefaults) : tools;
  if (tools.length > 0 && traits && !traits.readsTools) own = withTools(own, described, traits, family);
  if (spelling.has('filled'))
    own = own.map((message) => ('content' in message ? message : { ...message, content: '' }));
  if (spelling.has('shortIds')) own = withShortIds(own);
  if (spelling.has('withoutSystem')) own = withoutSystem(own);
  return { messages: own, tools: described };
}

/** Returns the changes that would change this chat for this template. */
export function changesOf({ messages, tools }: Chat, traits: TemplateTraits): Change[] {
  const isSystem = ({ role }: Message): boolean => role === 'system' || role === 'developer';
  const hasCalls = messages.some(({ tool_calls: calls }) => Array.isArray(calls) && calls.length > 0);
  const hasReasoning = messages.some(
    (message) => message['role'] === 'assistant' && reasoningOf(message) !== undefined,
  );
  const beginsWithSystem = messages.slice(0, 1).some(isSystem) || (tools.length > 0 && !traits.readsTools);
  const applies: Readonly<Record<Change, boolean>> = {
    systemInTurns: messages.some((message, i) => i > 0 && isSystem(message)),
    toolDefaults: tools.some((tool) => withDefaults(tool) !== tool),
    filled: messages.some((message) => !('content' in message)),
    shortIds: hasCalls,
    argumentsAsText: hasCalls,
    thinking: hasReasoning && traits.readsThinking,
    thinkingAlone: hasReasoning && hasCalls && traits.readsThinking,
    textApart: messages.some((message) => isCalling(message) && hasText(message['content'])),
    oneCallEach: messages.some(({ tool_calls: calls }) => Array.isArray(calls) && calls.length > 1),
    joinedTurns: [messages, withSystemInTurns(messages)].some((own) => withJoinedTurns(own) !== own),
    withoutSystem: beginsWithSystem,
    callTexts: hasCalls,
    callsAsText: hasCalls || messages.some(({ role }) => role === 'tool'),
  };
  return changes.filter((change) => applies[change]);
}

function reasoningOf({ reasoning, reasoning_content: other, thinking }: Message): string | undefined {
  return [reasoning, other, thinking].find((text): text is string => typeof text === 'string' && text !== '');
}

/** Joins two texts as paragraphs of one. */
function joined(before: unknown, after: unknown): string {
  return [before, after].filter((text) => typeof text === 'string' && text !== '').join('\n\n');
}

/**
 * System messages at the beginning become one. A later one is added to the question or result before it; after an answer it is put before
 * the question that follows, and is a question where none does.
 */
function withSystemInTurns(messages: Messages): Messages {
  const placed: Message[] = [];
  /** Texts that wait for the next question. */
  let waiting = '';
  const flush = (): void => {
    if (waiting !== '') placed.push({ role: 'user', content: waiting });
    waiting = '';
  };
  for (const message of messages) {
    const { role, content } = message;
    const before = placed.at(-1);
    if (role !== 'system' && role !== 'developer') {
      if (role === 'user' && waiting !== '') {
        placed.push({ ...message, content: joined(waiting, content) });
        waiting = '';
        continue;
      }
      flush();
      placed.push(message);
    } else if (!before && waiting === '') placed.push(message);
    else if (before && waiting === '' && before['role'] !== 'assistant')
      placed[placed.length - 1] = { ...before, content: joined(before['content'], content) };
    else waiting = joined(waiting, content);
  }
  flush();
  return placed;
}

/**
 * Returns a function that hands out each result once: that of a call by its id, else the first of those whose id is no call's; without an id
 * those that are left.
 */
function ownResults(
  calls: readonly { readonly id?: unknown }[],
  results: readonly Message[],
): (id: unknown) => Message | undefined {
  const byId = new Map<unknown, Message[]>(calls.map(({ id }) => [id, []]));
  const others: Message[] = [];
  // The first one is the last of its list.
  for (const one of [...results].reverse()) (byId.get(one['tool_call_id']) ?? others).push(one);
  const left = byId.values();
  let list = left.next();
  return (id) => {
    if (id !== undefined) return byId.get(id)?.pop() ?? others.pop();
    if (others.length > 0) return others.pop();
    while (list.done !== true && list.value.length === 0) list = left.next();
    return list.done === true ? undefined : list.value.pop();
  };
}

function withThinking(messages: Messages): Messages {
  return messages.map((message) => {
    const reasoning = message['role'] === 'assistant' ? reasoningOf(message) : undefined;
    return reasoning === undefined ? message : { ...message, thinking: reasoning };
  });
}

function withThinkingAlone(messages: Messages): Messages {
  return messages.map((message) => {
    const reasoning = reasoningOf(message);
    if (!isCalling(message) || reasoning === undefined || !hasText(message['content'])) return message;
    const all = joined(reasoning, message['content']);
    return { ...message, content: '', reasoning: all, reasoning_content: all, thinking: all };
  });
}

function withTextApart(messages: Messages): Messages {
  return messages.flatMap((message) => {
    if (!isCalling(message) || !hasText(message['content'])) return [message];
    const { content, ...calling } = message;
    return [
      { role: 'assistant', content },
      { ...calling, content: '' },
    ];
  });
}

/** Results keep their place where they belong to no call before them. */
function withOneCallEach(messages: Messages): Messages {
  const placed: Message[] = [];
  for (let at = 0; at < messages.length; at++) {
    const message = messages[at] ?? {};
    const calls = message['tool_calls'] as readonly { readonly id?: unknown }[] | undefined;
    if (!isCalling(message) || !calls || calls.length < 2) {
      placed.push(message);
      continue;
    }
    const results: Message[] = [];
    while (messages[at + 1]?.['role'] === 'tool') results.push(messages[++at] ?? {});
    const resultOf = ownResults(calls, results);
    for (const [i, call] of calls.entries()) {
      // Text and reasoning stand before the first call.
      const head = i === 0 ? message : { role: 'assistant', content: '' };
      placed.push({ ...head, tool_calls: [call] });
      const own = resultOf(call.id);
      if (own) placed.push(own);
    }
    for (let own = resultOf(undefined); own; own = resultOf(undefined)) placed.push(own);
  }
  return placed;
}

/** Messages of the user or the assistant in a row, without calls, become one. Returns the same list where there are none. */
function withJoinedTurns(messages: Messages): Messages {
  const placed: Message[] = [];
  for (const message of messages) {
    const last = placed.at(-1);
    const isSame =
      last?.['role'] === message['role'] && (message['role'] === 'user' || message['role'] === 'assistant');
    if (last && isSame && !isCalling(last)) {
      const reasoning = joined(reasoningOf(last), reasoningOf(message));
      const names = reasoning === '' ? {} : { reasoning, reasoning_content: reasoning };
      placed[placed.length - 1] = {
        ...last,
        ...message,
        ...names,
        content: joined(last['content'], message['content']),
      };
    } else placed.push(message);
  }
  return placed.length === messages.length ? messages : placed;
}

/** Returns the tool with what templates join to a text. It is the same object where nothing is absent. */
function withDefaults(tool: ToolDefinition): ToolDefinition {
  const { description, parameters } = tool.function;
  if (description !== undefined && parameters?.['properties'] !== undefined) return tool;
  const described = { ...tool.function, description: description ?? '' };
  if (parameters?.['properties'] !== undefined) return { ...tool, function: described };
  return { type: tool.type, function: { ...described, parameters: { type: 'object', properties: {}, ...parameters } } };
}

function withTools(
  messages: Messages,
  tools: readonly ToolDefinition[],
  { readsToolsOfMessage }: TemplateTraits,
  family: ToolFamily,
): Messages {
  if (!readsToolsOfMessage) return withSystemText(messages, instructions(tools, family));
  const [first, ...rest] = withSystemText(messages, '');
  return [{ ...first, tools: toolsJson(tools) }, ...rest];
}
