/**
 * Marks in the place of a chat's texts. A chat of the same shape whose texts are marks, rendered, tells which texts a template keeps,
 * whatever it does with their blanks, quotes and escapes.
 */
import { hasText, isCalling, type Messages } from './chat_messages.ts';

type Message = Messages[number];

/** A text of a chat, by its mark. */
interface Mark {
  readonly mark: string;
  /** Index of its message. */
  readonly message: number;
  readonly kind: 'content' | 'reasoning' | 'call';
  /**
   * Whether a template may leave the text out: reasoning of turns that are over, the text next to calls where no spelling keeps it. A
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
  readonly #prefix: string;
  readonly #pattern: RegExp;
  readonly #resultOf: RegExp;
  readonly #marks: Mark[] = [];

  /** `taken`: what else is rendered, whose texts must not look like marks. */
  constructor(messages: Messages, taken: string) {
    let prefix = 'qz';
    while (taken.toLowerCase().includes(prefix)) prefix += 'z';
    this.#prefix = prefix;
    this.#pattern = new RegExp(`${prefix}[0-9a-z]{5}w`, 'g');
    this.#resultOf = new RegExp(`result of [^:\\s]*_${prefix}[0-9a-z]{5}w:`, 'g');
    this.messages = messages.map((message, index) => this.#marked(message, index));
  }

  /** Returns what the text, rendered from these messages, has lost; undefined where it has none of them: it is the same for every chat. */
  lossesIn(text: string): Losses | undefined {
    // The name of a call that a result repeats does not keep the call.
    const own = text.toLowerCase().replace(this.#resultOf, '');
    const found = new Set(own.match(this.#pattern));
    const lost = this.#marks.filter(({ mark }) => !found.has(mark));
    if (lost.length === this.#marks.length) return undefined;
    const needed = lost.filter(({ isOptional }) => !isOptional);
    const kept = this.#marks.filter(({ mark }) => found.has(mark));
    // A template that renders one message is not made for chats of several.
    const isRendered = (kind: Mark['kind']): boolean => {
      const messages = new Set(kept.filter((one) => one.kind === kind).map(({ message }) => message));
      return messages.size > 1;
    };
    const kinds = new Set((['content', 'reasoning', 'call'] as const).filter(isRendered));
    return {
      numMessages: new Set(needed.map(({ message }) => message)).size,
      first: needed.find(({ kind }) => kinds.has(kind))?.message,
      numOptional: lost.length - needed.length,
    };
  }

  #mark(message: number, kind: Mark['kind'], isOptional = false): string {
    const mark = `${this.#prefix}${this.#marks.length.toString(36).padStart(5, '0')}w`;
    this.#marks.push({ mark, message, kind, isOptional });
    return mark;
  }

  #marked(message: Message, index: number): Message {
    const calls = message['tool_calls'];
    const marked: Record<string, unknown> = { ...message };
    const isAnswer = message['role'] === 'assistant';
    if (hasText(message['content'])) marked['content'] = this.#mark(index, 'content', isCalling(message));
    // One text under several names.
    let reasoning: string | undefined;
    for (const name of ['reasoning', 'reasoning_content', 'thinking'])
      if (isAnswer && hasText(message[name])) marked[name] = reasoning ??= this.#mark(index, 'reasoning', true);
    if (Array.isArray(calls)) marked['tool_calls'] = calls.map((call: unknown) => this.#markedCall(call, index));
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
