/**
 * Marks in the place of a chat's texts. A chat of the same shape whose texts are marks, rendered, tells which texts a template keeps,
 * whatever it does with their blanks, quotes and escapes.
 */
import type { Messages } from './chat_messages.ts';
import { RESULT_OF } from './tool_texts.ts';

type Message = Messages[number];

/** A text of a chat, by its mark. */
interface Mark {
  readonly mark: string;
  /** Index of its message. */
  readonly message: number;
  readonly kind: 'content' | 'reasoning' | 'call';
  /**
   * Whether a template may leave the text out: reasoning of turns that are over, the text beside calls where no spelling keeps it. A
   * spelling that keeps it is preferred.
   */
  readonly isOptional: boolean;
}

/** Texts that a rendered chat has lost. */
export interface Losses {
  /** Messages with a lost text. */
  readonly numMessages: number;
  /** Index of the first of them whose text is of a kind that the template renders of several others; undefined where there is none. */
  readonly first: number | undefined;
  /** Number of lost texts that a template may leave out. */
  readonly numOptional: number;
}

/** A chat whose texts are marks. */
export class MarkedChat {
  readonly messages: Messages;
  readonly #marks: Mark[] = [];

  constructor(messages: Messages) {
    this.messages = messages.map((message, index) => this.#marked(message, index));
  }

  /** Returns what the text, rendered from these messages, has lost; undefined where it has none of them: it is the same for every chat. */
  lossesIn(text: string): Losses | undefined {
    // The name of a call that a result repeats does not keep the call.
    const lower = text.replace(RESULT_OF, '').toLowerCase();
    const lost = this.#marks.filter(({ mark }) => !lower.includes(mark));
    if (lost.length === this.#marks.length) return undefined;
    const needed = lost.filter(({ isOptional }) => !isOptional);
    const kept = this.#marks.filter((one) => !lost.includes(one));
    // A template that renders one message is not made for chats of several.
    const isRendered = (kind: Mark['kind']): boolean =>
      new Set(kept.filter((one) => one.kind === kind).map(({ message }) => message)).size > 1;
    return {
      numMessages: new Set(needed.map(({ message }) => message)).size,
      first: needed.find(({ kind }) => isRendered(kind))?.message,
      numOptional: lost.length - needed.length,
    };
  }

  #mark(message: number, kind: Mark['kind'], isOptional = false): string {
    const mark = `qz${this.#marks.length.toString(36).padStart(5, '0')}w`;
    this.#marks.push({ mark, message, kind, isOptional });
    return mark;
  }

  #marked(message: Message, index: number): Message {
    const calls = message['tool_calls'];
    const isCalling = Array.isArray(calls) && calls.length > 0;
    const marked: Record<string, unknown> = { ...message };
    const isAnswer = message['role'] === 'assistant';
    if (hasText(message['content'])) marked['content'] = this.#mark(index, 'content', isAnswer && isCalling);
    // One text under several names.
    let reasoning: string | undefined;
    for (const name of ['reasoning', 'reasoning_content', 'thinking'])
      if (isAnswer && hasText(message[name])) marked[name] = reasoning ??= this.#mark(index, 'reasoning', true);
    if (isCalling) marked['tool_calls'] = calls.map((call: unknown) => this.#markedCall(call, index));
    return marked;
  }

  #markedCall(call: unknown, index: number): unknown {
    const { function: called } = (call ?? {}) as { readonly function?: Readonly<Record<string, unknown>> };
    if (!called) return call;
    const { name, arguments: values } = called;
    if (hasArgumentText(values)) {
      const json = JSON.stringify({ [ARGUMENT]: this.#mark(index, 'call') });
      const marked = typeof values === 'string' ? json : (JSON.parse(json) as unknown);
      return { ...(call as object), function: { ...called, arguments: marked } };
    }
    if (typeof name !== 'string') return call;
    return { ...(call as object), function: { ...called, name: `${name}_${this.#mark(index, 'call')}` } };
  }
}

/** Name of the argument that is a mark. */
const ARGUMENT = 'argument';
/** An object whose first value is a text. */
const TEXT_FIRST = /^\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*"/;

/** Whether the arguments of a call, as JSON text or an object, begin with a text; other calls are known by their names. */
export function hasArgumentText(values: unknown): boolean {
  if (typeof values === 'string') return TEXT_FIRST.test(values);
  return typeof values === 'object' && values !== null && typeof Object.values(values)[0] === 'string';
}

function hasText(value: unknown): value is string {
  return typeof value === 'string' && value.trim() !== '';
}
