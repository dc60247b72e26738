/** The output items of an answer of `/v1/responses`, made from the pieces of its text as they come. */
import type { ChatLogprob } from '../openai/chat.ts';
import type { OutputDelta } from '../../../../shared/text/output/output_delta.ts';
import { customInput, type NamedTool } from './response_tools.ts';

/** State of an item; `incomplete`: the answer has ended within it. */
type ItemStatus = 'in_progress' | 'completed' | 'incomplete';

/** Kind of an output item: the type that clients see, but for a message's. */
export type ItemKind = 'message' | 'reasoning' | 'function_call' | 'custom_tool_call';

/** An output item in OpenAI's form. */
export type OutputItem = Readonly<Record<string, unknown>> & { readonly id: string; readonly type: ItemKind };

/** A change of the output: an item begins, has more text, or ends; `index` is that of the item. */
export type ItemChange =
  | { readonly change: 'added'; readonly index: number; readonly item: OutputItem }
  | {
      readonly change: 'text';
      readonly index: number;
      readonly item: OutputItem;
      readonly text: string;
      readonly logprobs: readonly ChatLogprob[];
    }
  | { readonly change: 'done'; readonly index: number; readonly item: OutputItem; readonly text: string };

/** Prefixes of the ids of items, by kind. */
const prefixes: Readonly<Record<ItemKind, string>> = {
  message: 'msg_',
  reasoning: 'rs_',
  function_call: 'fc_',
  custom_tool_call: 'ctc_',
};

interface OpenItem {
  readonly kind: ItemKind;
  readonly id: string;
  readonly call?: { readonly id: string; readonly name: string; readonly namespace?: string };
  readonly texts: string[];
  readonly logprobs: ChatLogprob[];
}

/** Options of {@link OutputItems}. */
interface OutputItemsOptions {
  readonly newId: () => string;
  /** The request's tools, by the name of their function. */
  readonly tools: Readonly<Record<string, NamedTool>>;
}

/** The output of one answer. */
export class OutputItems {
  readonly #options: OutputItemsOptions;
  readonly #done: OutputItem[] = [];
  #open: OpenItem | undefined;
  /** Log-probabilities of tokens whose text has not come yet. */
  #waiting: ChatLogprob[] = [];

  constructor(options: OutputItemsOptions) {
    this.#options = options;
  }

  /** The items that have ended. */
  get items(): readonly OutputItem[] {
    return this.#done;
  }

  /** Adds pieces of the answer, with the log-probabilities of the tokens that they came with. */
  push(pieces: readonly OutputDelta[], logprobs: readonly ChatLogprob[] = []): ItemChange[] {
    this.#waiting.push(...logprobs);
    const changes = pieces.flatMap((piece) => this.#add(piece));
    // Tokens of reasoning and calls have no place for log-probabilities.
    if (this.#open && this.#open.kind !== 'message') this.#waiting = [];
    return changes;
  }

  /** Ends the answer; `isCut`: within its last item. An answer without any text is an empty message. */
  end(isCut: boolean): ItemChange[] {
    const empty = this.#open || this.#done.length > 0 ? [] : this.#begin('message');
    return [...empty, ...this.#close(isCut ? 'incomplete' : 'completed')];
  }

  #add(piece: OutputDelta): ItemChange[] {
    if (piece.kind === 'call') {
      const { tools } = this.#options;
      const tool = Object.hasOwn(tools, piece.name) ? tools[piece.name] : undefined;
      const call = {
        id: piece.id,
        name: tool?.name ?? piece.name,
        ...(tool?.namespace === undefined ? {} : { namespace: tool.namespace }),
      };
      return this.#begin(tool?.isCustom ? 'custom_tool_call' : 'function_call', call);
    }
    const kind = piece.kind === 'content' ? 'message' : piece.kind;
    const begun = kind === 'arguments' || this.#open?.kind === kind ? [] : this.#begin(kind);
    const open = this.#open;
    if (!open) return begun;
    open.texts.push(piece.text);
    // The text of a custom tool is known when its arguments are whole.
    if (open.kind === 'custom_tool_call') return begun;
    const logprobs = kind === 'message' ? this.#waiting : [];
    if (kind === 'message') this.#waiting = [];
    open.logprobs.push(...logprobs);
    const index = this.#done.length;
    return [...begun, { change: 'text', index, item: shown(open, 'in_progress'), text: piece.text, logprobs }];
  }

  #begin(kind: ItemKind, call?: OpenItem['call']): ItemChange[] {
    const closed = this.#close('completed');
    const open: OpenItem = {
      kind,
      id: prefixes[kind] + this.#options.newId() + this.#options.newId(),
      texts: [],
      logprobs: [],
      ...(call ? { call } : {}),
    };
    this.#open = open;
    return [...closed, { change: 'added', index: this.#done.length, item: shown(open, 'in_progress') }];
  }

  #close(status: ItemStatus): ItemChange[] {
    const open = this.#open;
    if (!open) return [];
    this.#open = undefined;
    const index = this.#done.length;
    const text = textOf(open);
    const item = shown(open, status, text);
    this.#done.push(item);
    const late: ItemChange[] =
      open.kind === 'custom_tool_call' ? [{ change: 'text', index, item, text, logprobs: [] }] : [];
    return [...late, { change: 'done', index, item, text }];
  }
}

function textOf({ kind, texts }: OpenItem): string {
  const text = texts.join('');
  return kind === 'custom_tool_call' ? customInput(text) : text;
}

/** Returns an item as clients see it; without `text` it has only begun. */
function shown({ kind, id, call, logprobs }: OpenItem, status: ItemStatus, text?: string): OutputItem {
  switch (kind) {
    case 'message':
      return {
        id,
        type: kind,
        status,
        role: 'assistant',
        content: text === undefined ? [] : [partOf(kind, text, logprobs)],
      };
    case 'reasoning':
      return {
        id,
        type: kind,
        status,
        summary: [],
        encrypted_content: null,
        content: text === undefined ? [] : [partOf(kind, text)],
      };
    case 'function_call':
    case 'custom_tool_call': {
      const { id: callId = '', ...named } = call ?? {};
      const key = kind === 'function_call' ? 'arguments' : 'input';
      return { id, type: kind, status, call_id: callId, ...named, [key]: text ?? '' };
    }
  }
}

/** Returns the part of an item's content that has its text. */
export function partOf(
  kind: 'message' | 'reasoning',
  text: string,
  logprobs: readonly ChatLogprob[] = [],
): Readonly<Record<string, unknown>> {
  if (kind === 'reasoning') return { type: 'reasoning_text', text };
  return { type: 'output_text', text, annotations: [], logprobs };
}
