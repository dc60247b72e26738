/** Parsed answers as content blocks of Anthropic's API: the events of a stream, and the content of a whole answer. */
import { createHash, type Hash } from 'node:crypto';
import { isObject } from '../../api/neutral_value.ts';
import type { OutputDelta } from '../../../../shared/text/output/output_delta.ts';

/** One event of a stream; its type is also the event's name. */
export interface MessageEvent {
  readonly type: string;
  readonly [key: string]: unknown;
}

type BlockKind = 'text' | 'thinking' | 'tool_use';

/** Turns the pieces of one answer into blocks, one after the other, as events. */
export class AnswerBlocks {
  #index = -1;
  #open: BlockKind | undefined;
  /** Digest of the open block's thinking, which is its signature. */
  #thinking: Hash | undefined;

  /** Returns the events of the next piece: a piece of another kind than the last one, and every call, is a block of its own. */
  push(piece: OutputDelta): MessageEvent[] {
    switch (piece.kind) {
      case 'content':
        return [
          ...(this.#open === 'text' ? [] : this.#start('text', { text: '', citations: null })),
          this.#delta({ type: 'text_delta', text: piece.text }),
        ];
      case 'reasoning': {
        const started = this.#open === 'thinking' ? [] : this.#start('thinking', { thinking: '', signature: '' });
        this.#thinking?.update(piece.text);
        return [...started, this.#delta({ type: 'thinking_delta', thinking: piece.text })];
      }
      case 'call':
        return this.#start('tool_use', { id: piece.id, name: piece.name, caller: { type: 'direct' }, input: {} });
      case 'arguments':
        return [this.#delta({ type: 'input_json_delta', partial_json: piece.text })];
    }
  }

  /** Returns the events that end the last block; empty without one. */
  end(): MessageEvent[] {
    if (this.#open === undefined) return [];
    const signature = this.#thinking?.digest('base64');
    this.#open = this.#thinking = undefined;
    return [
      ...(signature === undefined ? [] : [this.#delta({ type: 'signature_delta', signature })]),
      { type: 'content_block_stop', index: this.#index },
    ];
  }

  #start(kind: BlockKind, fields: object): MessageEvent[] {
    const ended = this.end();
    this.#open = kind;
    if (kind === 'thinking') this.#thinking = createHash('sha256');
    this.#index++;
    return [...ended, { type: 'content_block_start', index: this.#index, content_block: { type: kind, ...fields } }];
  }

  #delta(delta: object): MessageEvent {
    return { type: 'content_block_delta', index: this.#index, delta };
  }
}

/** Returns the content of a whole answer as JSON text. The input of a call is the text that the model wrote, in which numbers keep all digits. */
export function contentJson(pieces: readonly OutputDelta[]): string {
  const blocks = new AnswerBlocks();
  const content: { readonly fields: Record<string, unknown>; readonly json: string[] }[] = [];
  for (const event of [...pieces.flatMap((piece) => blocks.push(piece)), ...blocks.end()]) {
    if (event.type === 'content_block_start')
      content.push({ fields: { ...(event['content_block'] as object) }, json: [] });
    const last = content.at(-1);
    if (event.type !== 'content_block_delta' || !last) continue;
    for (const [key, text] of Object.entries(event['delta'] as Record<string, string>)) {
      if (key === 'partial_json') last.json.push(text);
      else if (key !== 'type') last.fields[key] = `${last.fields[key] as string}${text}`;
    }
  }
  return `[${content.map(({ fields, json }) => blockJson(fields, json.join(''))).join()}]`;
}

function blockJson({ input, ...fields }: Record<string, unknown>, json: string): string {
  if (input === undefined) return JSON.stringify(fields);
  return `${JSON.stringify(fields).slice(0, -1)},"input":${inputJson(json)}}`;
}

/** Returns the input of a call: the object that the model wrote, or its text when it wrote none. */
function inputJson(json: string): string {
  if (json.trim() === '') return '{}';
  try {
    if (isObject(JSON.parse(json))) return json;
  } catch {
    // The text says what was written.
  }
  return JSON.stringify(json);
}
