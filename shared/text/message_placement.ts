/**
 * Places the messages of chats for one template: finds the spelling in which the template keeps every text.
 *
 *   as they are ──► every text is in the prompt? ──► used
 *        │ no, or it raises
 *        ▼
 *   one change, then two, …, those that explain what was lost ──► the first that keeps every text, else the one that loses least
 *
 * The question is asked of a chat of the same shape whose texts are marks, once a shape: roles in order, and which fields are there.
 */
import { hash } from 'node:crypto';
import type { ToolFamily } from './output/tool_families.ts';
import { hasText, type Messages } from './chat_messages.ts';
import {
  AS_THEY_ARE,
  type Change,
  changesOf,
  type Chat,
  spelled,
  type Spelling,
  type TemplateTraits,
} from './spellings.ts';
import { StepsExceeded } from './template/steps.ts';
import { hasArgumentText, type Losses, MarkedChat } from './text_marks.ts';

/** Shapes whose spelling is kept (P1): the older half goes. */
const MAX_SHAPES = 1_000;
/** Spellings of a shape that are tried (P1), and changes in one. */
const MAX_TRIES = 64;
const MAX_CHANGES = 4;
/** Messages that are rendered to find a spelling (P1): long chats are tried in fewer spellings, and the longest as they are. */
const MAX_MESSAGES = 10_000;
const MIN_TRIES = 8;
const MAX_LENGTH = 2_000;

/** How the chats of a shape are placed. */
export interface Placement {
  readonly spelling: Spelling;
  /** Index of the first message that is left out in every spelling; undefined when none is, or the template renders no text of its kind. */
  readonly lost: number | undefined;
}

/** Renders a spelled chat. @throws Error with what the template raises */
type Render = (chat: Chat) => string;

/** Finds and keeps the spellings of one template. */
export class MessagePlacement {
  readonly #traits: TemplateTraits;
  readonly #family: ToolFamily;
  readonly #known = new Map<string, Placement>();

  constructor(traits: TemplateTraits, family: ToolFamily) {
    this.#traits = traits;
    this.#family = family;
  }

  /** Returns how this chat is placed; `shape` is what else the template is given, as JSON. */
  of(chat: Chat, shape: string, render: Render): Placement {
    const key = hash('sha1', `${shape}${shapeOf(chat)}`, 'base64');
    const known = this.#known.get(key);
    if (known) return known;
    const placement = this.#find(chat, shape, render);
    if (this.#known.size === MAX_SHAPES)
      for (const older of [...this.#known.keys()].slice(0, MAX_SHAPES / 2)) this.#known.delete(older);
    this.#known.set(key, placement);
    return placement;
  }

  /** Yields the spellings of a chat that a template which refuses it may take, those with fewer changes first. */
  *candidates(chat: Chat, numTries: number, isHelpful: (change: Change) => boolean = () => true): Generator<Spelling> {
    const all = changesOf(chat, this.#traits).filter(isHelpful);
    for (let size = 1; size <= Math.min(MAX_CHANGES, all.length); size++)
      for (const chosen of combinations(all, size)) {
        if (numTries-- <= 0) return;
        yield new Set(chosen);
      }
  }

  #find({ messages, tools }: Chat, shape: string, render: Render): Placement {
    if (messages.length > MAX_LENGTH) return { spelling: AS_THEY_ARE, lost: undefined };
    const tried = (marked: MarkedChat, spelling: Spelling): Losses | 'raised' | 'loops' | undefined => {
      try {
        const chat = { messages: marked.messages, tools };
        return marked.lossesIn(render(spelled(chat, spelling, this.#traits, this.#family)));
      } catch (error) {
        return error instanceof StepsExceeded ? 'loops' : 'raised';
      }
    };
    const taken = `${shape}${JSON.stringify([messages, tools])}`;
    const own = new MarkedChat(messages, taken);
    const first = tried(own, AS_THEY_ARE);
    // A template that renders no message, or never ends, does so in any spelling.
    if (first === undefined || first === 'loops' || isWhole(first)) return { spelling: AS_THEY_ARE, lost: undefined };
    const chat = { messages: own.messages, tools };
    const isHelpful = (change: Change): boolean => first === 'raised' || helps(change, first, chat);
    const numTries = Math.min(MAX_TRIES, Math.max(MIN_TRIES, Math.floor(MAX_MESSAGES / messages.length)));
    let best: { readonly spelling: Spelling; readonly losses: Losses } | undefined =
      first === 'raised' ? undefined : { spelling: AS_THEY_ARE, losses: first };
    const spellings = [...this.candidates(chat, numTries, isHelpful)];
    // One spelling without end is enough: none is tried after it.
    let hasLooped = false;
    const isKeeping = (marked: MarkedChat) => (spelling: Spelling) => {
      const losses = hasLooped ? undefined : tried(marked, spelling);
      if (losses === 'loops') hasLooped = true;
      if (hasLooped || losses === undefined || losses === 'raised' || losses === 'loops') return false;
      if (marked === own && (!best || weightOf(losses) < weightOf(best.losses))) best = { spelling, losses };
      return isWhole(losses);
    };
    // With a turn after them as well, so that the next prompt is spelled in the same way; a template may refuse that one.
    const later = new MarkedChat(withTurn(messages), taken);
    const found =
      spellings.find((one) => isKeeping(later)(one) && isKeeping(own)(one)) ?? spellings.find(isKeeping(own));
    if (found) return { spelling: found, lost: undefined };
    return { spelling: best?.spelling ?? AS_THEY_ARE, lost: best?.losses.first };
  }
}

/** Returns the messages with an answer and a question after them. */
function withTurn(messages: Messages): Messages {
  if (messages.at(-1)?.['role'] === 'assistant') return messages;
  return [...messages, { role: 'assistant', content: 'answer' }, { role: 'user', content: 'question' }];
}

const isWhole = (losses: Losses | 'raised'): boolean => losses !== 'raised' && weightOf(losses) === 0;

/** A text that has to be there counts more than all that may be left out. */
function weightOf({ numMessages, numOptional }: Losses): number {
  return numMessages * 1e6 + numOptional;
}

/** Whether a change may bring back what was lost: reasoning has its own, everything else is tried with the others. */
function helps(change: Change, { numMessages, numOptional }: Losses, chat: Chat): boolean {
  if (numMessages > 0) return true;
  const mayKeepText = chat.messages.some(
    ({ content, tool_calls: calls }) => Array.isArray(calls) && content !== undefined,
  );
  return numOptional > 0 && (change.startsWith('thinking') || (change === 'textApart' && mayKeepText));
}

/** Yields the choices of `size` items, those with the first items first. */
function* combinations<T>(items: readonly T[], size: number, from = 0): Generator<T[]> {
  if (size === 0) yield [];
  else
    for (const [at, item] of items.entries())
      if (at >= from) for (const rest of combinations(items, size - 1, at + 1)) yield [item, ...rest];
}

/** A role or key that needs no quotes among others. */
const PLAIN = /^\w+$/;

/** Returns what templates may tell apart in a chat but the texts of its messages. Each chat is asked for its own: it has to be cheap. */
function shapeOf({ messages, tools }: Chat): string {
  let shape = JSON.stringify(tools);
  for (const message of messages) {
    shape += '\n';
    for (const key in message) {
      const value = message[key];
      shape += PLAIN.test(key) ? key : JSON.stringify(key);
      if (key === 'role' && typeof value === 'string')
        shape += PLAIN.test(value) ? `:${value} ` : `:${JSON.stringify(value)} `;
      else if (typeof value === 'string') shape += hasText(value) ? '=1 ' : '=0 ';
      else if (key === 'tool_calls' && Array.isArray(value)) shape += `(${value.map(callShape).join()}) `;
      else shape += `=${typeof value} `;
    }
  }
  return shape;
}

function callShape(call: unknown): string {
  const { function: called } = (call ?? {}) as { readonly function?: { readonly arguments?: unknown } };
  const values = called?.arguments;
  return hasArgumentText(values) ? 'text' : typeof values === 'string' && !hasText(values) ? 'none' : typeof values;
}
