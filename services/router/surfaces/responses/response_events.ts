/** The events of a streamed answer of `/v1/responses`: each change of its output in the events that OpenAI's clients read. */
import { partOf, type ItemChange, type OutputItem } from './response_items.ts';

/** An event without its number. */
export type ResponseEvent = Readonly<Record<string, unknown>> & { readonly type: string };

/** Returns the events of a change, in their order. */
export function eventsOf(change: ItemChange): ResponseEvent[] {
  const { index, item } = change;
  const at = { item_id: item.id, output_index: index };
  switch (change.change) {
    case 'added':
      return [{ type: 'response.output_item.added', output_index: index, item }, ...partEvents(at, item, 'added')];
    case 'text': {
      const type = `${textEvents[item.type]}.delta`;
      return [{ type, ...at, ...contentAt(item), delta: change.text, ...logprobsOf(item, change.logprobs) }];
    }
    case 'done': {
      const whole = { [wholeKeys[item.type]]: change.text };
      const name = item.type === 'function_call' ? { name: item['name'] } : {};
      const type = `${textEvents[item.type]}.done`;
      const logprobs = logprobsOf(item, (partsOf(item)[0]?.['logprobs'] ?? []) as readonly unknown[]);
      return [
        { type, ...at, ...contentAt(item), ...name, ...whole, ...logprobs },
        ...partEvents(at, item, 'done'),
        { type: 'response.output_item.done', output_index: index, item },
      ];
    }
  }
}

type JsonFields = Readonly<Record<string, unknown>>;

/** Prefixes of the types of events about an item's text. */
const textEvents = {
  message: 'response.output_text',
  reasoning: 'response.reasoning_text',
  function_call: 'response.function_call_arguments',
  custom_tool_call: 'response.custom_tool_call_input',
} as const satisfies Record<OutputItem['type'], string>;

/** Keys of the whole text in the event that ends it. */
const wholeKeys = {
  message: 'text',
  reasoning: 'text',
  function_call: 'arguments',
  custom_tool_call: 'input',
} as const satisfies Record<OutputItem['type'], string>;

function hasParts({ type }: OutputItem): boolean {
  return type === 'message' || type === 'reasoning';
}

function partsOf(item: OutputItem): readonly JsonFields[] {
  return (item['content'] ?? []) as readonly JsonFields[];
}

function contentAt(item: OutputItem): JsonFields {
  return hasParts(item) ? { content_index: 0 } : {};
}

function logprobsOf({ type }: OutputItem, logprobs: readonly unknown[]): JsonFields {
  return type === 'message' ? { logprobs } : {};
}

function partEvents(at: JsonFields, item: OutputItem, change: 'added' | 'done'): ResponseEvent[] {
  const { type } = item;
  if (type !== 'message' && type !== 'reasoning') return [];
  const part = partsOf(item)[0] ?? partOf(type, '');
  return [{ type: `response.content_part.${change}`, ...at, content_index: 0, part }];
}
