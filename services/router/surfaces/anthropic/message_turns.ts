/** Messages of Anthropic's API, content blocks included, as messages of a chat template. */
import { exactTextOf } from '../../api/exact_texts.ts';
import { isObject } from '../../api/neutral_value.ts';
import { ParameterFailure } from '../../api/parameter_failure.ts';
import { joinParts, leftOutPart } from '../../api/text_parts.ts';

/**
 * Beginning of the line that Claude Code writes before its system prompt for Anthropic's billing. It differs with every request, so
 * that no two prompts would share a block.
 */
const BILLING_LINE = /^x-anthropic-billing-header:[^\n]*\n?/;

/**
 * A reminder of Claude Code, which it puts after results of tools. As a message of the user it would look like a new question, for which
 * templates drop the reasoning of all earlier turns, and with it every block after it.
 */
const REMINDER = /^\s*<system-reminder>(?:(?!<\/system-reminder>)[^])*<\/system-reminder>\s*$/;

interface Call {
  readonly id: string;
  readonly type: 'function';
  /** Arguments are JSON text, as a model writes them. */
  readonly function: { readonly name: string; readonly arguments: string };
}

/** One message for the chat template. */
interface Turn {
  readonly role: string;
  content: string;
  reasoning_content?: string;
  tool_calls?: Call[];
  readonly tool_call_id?: string;
  readonly name?: string;
}

/** Messages for a chat template. */
export interface Turns {
  readonly messages: readonly Readonly<Record<string, unknown>>[];
  /** Whether the answer continues the text of the last message, an assistant's. */
  readonly isContinuing: boolean;
}

type Block = Readonly<Record<string, unknown>>;

/**
 * Reads the system prompt and the messages. Adjacent messages of a role are one; a tool result is a message of the role `tool`.
 * `maxMessages` is the context length, because a message takes at least one token.
 * Adds what is left out of results to `ignored`. @throws ParameterFailure naming the path of the first block that is not supported
 */
export function readTurns(system: unknown, messages: unknown, maxMessages: number, ignored: string[]): Turns {
  if (!Array.isArray(messages) || messages.length === 0)
    throw new ParameterFailure('messages: a list of at least one message', 'messages');
  if (messages.length > maxMessages)
    throw new ParameterFailure(
      `messages: ${messages.length} of them cannot fit a context of ${maxMessages} tokens`,
      'messages',
      'context_too_long',
    );
  const writer = new TurnWriter();
  if (system !== undefined)
    for (const { text } of textBlocks(system, 'system')) writer.text('system', text.replace(BILLING_LINE, ''));
  for (const [index, message] of messages.entries()) readMessage(writer, message, `messages.${index}`, ignored);
  return writer.end(`messages.${messages.length - 1}`);
}

function readMessage(writer: TurnWriter, message: unknown, where: string, ignored: string[]): void {
  if (!isObject(message)) refuse(where, 'a message is an object with role and content');
  writer.begin();
  const { role, content } = message;
  if (role === 'assistant')
    for (const { block, path } of blocksOf(content, `${where}.content`)) readAssistantBlock(writer, block, path);
  else if (role === 'user')
    for (const { block, path } of blocksOf(content, `${where}.content`)) readUserBlock(writer, block, path, ignored);
  else if (role === 'system')
    for (const { text } of textBlocks(content, `${where}.content`)) writer.text('system', text);
  else refuse(`${where}.role`, 'user, assistant or system');
}

function readUserBlock(writer: TurnWriter, block: Block, path: string, ignored: string[]): void {
  switch (block['type']) {
    case 'text':
      writer.text('user', stringOf(block, 'text', path));
      return;
    case 'tool_result': {
      const { content } = block;
      const blocks = content === undefined || content === null ? [] : blocksOf(content, `${path}.content`);
      const texts = blocks.map((one) => resultText(one.block, one.path, ignored));
      writer.result(stringOf(block, 'tool_use_id', path), joinParts(texts));
      return;
    }
    default:
      refuseBlock(block, path, 'text and tool_result');
  }
}

/** Returns the text of a block of a result: its own, that of a document, or what says that something was left out. */
function resultText(block: Block, path: string, ignored: string[]): string {
  const { type, source } = block;
  if (type === 'text') return stringOf(block, 'text', path);
  if (typeof type !== 'string') refuseBlock(block, path, 'text');
  const isText = type === 'document' && isObject(source) && source['type'] === 'text';
  return isText ? stringOf(source, 'data', `${path}.source`) : leftOutPart(type, path, ignored);
}

function readAssistantBlock(writer: TurnWriter, block: Block, path: string): void {
  switch (block['type']) {
    case 'text':
      writer.text('assistant', stringOf(block, 'text', path));
      return;
    case 'thinking':
      writer.thinking(stringOf(block, 'thinking', path));
      return;
    case 'redacted_thinking':
      // Nobody but Anthropic can read it.
      return;
    case 'tool_use': {
      const { input } = block;
      // A text is what the model wrote in place of an object, which the answer had as it was.
      if (!isObject(input) && typeof input !== 'string') refuse(`${path}.input`, 'an object');
      const json = typeof input === 'string' ? input : (exactTextOf(input) ?? JSON.stringify(input));
      writer.call(stringOf(block, 'id', path), stringOf(block, 'name', path), json);
      return;
    }
    default:
      refuseBlock(block, path, 'text, thinking and tool_use');
  }
}

/** Collects messages; those that follow one of the same role continue it. */
class TurnWriter {
  readonly #turns: Turn[] = [];
  /** Names of the called tools by call id, as many as the body has calls. */
  readonly #names = new Map<string, string>();
  /** Whether the message that is read has had a text. */
  #hasText = false;

  /** Begins the next message of the body. */
  begin(): void {
    this.#hasText = false;
  }

  text(role: string, text: string): void {
    if (text === '') return;
    const last = this.#turns.at(-1);
    if (role === 'user' && last?.role === 'tool' && REMINDER.test(text)) {
      last.content += `\n\n${text}`;
      return;
    }
    const turn = this.#turnOf(role);
    // Messages of the assistant are pieces of one answer, joined as they were generated.
    const isPiece = role === 'assistant' && !this.#hasText;
    turn.content = isPiece ? turn.content + text : joinParts([turn.content, text]);
    this.#hasText = true;
  }

  thinking(text: string): void {
    const turn = this.#turnOf('assistant');
    turn.reasoning_content = (turn.reasoning_content ?? '') + text;
  }

  call(id: string, name: string, json: string): void {
    this.#names.set(id, name);
    const turn = this.#turnOf('assistant');
    (turn.tool_calls ??= []).push({ id, type: 'function', function: { name, arguments: json } });
  }

  result(id: string, content: string): void {
    const name = this.#names.get(id);
    this.#turns.push({ role: 'tool', content, tool_call_id: id, ...(name === undefined ? {} : { name }) });
  }

  /** Returns the messages. `where` is the path of the last one. */
  end(where: string): Turns {
    const last = this.#turns.at(-1);
    if (last?.role === 'assistant' && last.tool_calls)
      refuse(where, 'a tool_use block of the last message has no result: send its tool_result in a user message');
    const isContinuing = last?.role === 'assistant' && last.content !== '';
    const messages = last?.role === 'assistant' && !isContinuing ? this.#turns.slice(0, -1) : this.#turns;
    if (messages.length === 0) refuse('messages', 'at least one message with a text');
    return { messages: messages.map((turn) => ({ ...turn })), isContinuing };
  }

  #turnOf(role: string): Turn {
    const last = this.#turns.at(-1);
    if (last?.role === role) return last;
    const turn: Turn = { role, content: '' };
    this.#turns.push(turn);
    return turn;
  }
}

/** Returns the blocks of a content with their paths; a text is one block. */
function blocksOf(content: unknown, where: string): { readonly block: Block; readonly path: string }[] {
  if (typeof content === 'string') return [{ block: { type: 'text', text: content }, path: where }];
  if (!Array.isArray(content)) refuse(where, 'a text, or a list of content blocks');
  return content.map((block: unknown, index) => {
    const path = `${where}.${index}`;
    if (!isObject(block)) refuse(path, 'a content block is an object with type');
    return { block, path };
  });
}

/** Returns the texts of a content that has nothing else. */
function textBlocks(content: unknown, where: string): { readonly text: string }[] {
  return blocksOf(content, where).map(({ block, path }) => {
    if (block['type'] !== 'text') refuseBlock(block, path, 'text');
    return { text: stringOf(block, 'text', path) };
  });
}

function stringOf(block: Block, key: string, path: string): string {
  const value = block[key];
  if (typeof value !== 'string') refuse(`${path}.${key}`, 'a text');
  return value;
}

function refuseBlock({ type }: Block, path: string, known: string): never {
  const kind = typeof type === 'string' ? `"${type.slice(0, 64)}"` : 'this kind';
  refuse(path, `a block of type ${kind} is not supported here; supported are ${known}`);
}

function refuse(path: string, what: string): never {
  throw new ParameterFailure(`${path}: ${what}`, path);
}
