/** Events of a streamed answer at every split of its text: their order, and that they make the answer's own items. Budget: 5 s. */
import assert from 'node:assert/strict';
import { accumulateResponse } from 'openai/lib/responses/ResponseAccumulator';
import type { Response, ResponseStreamEvent } from 'openai/resources/responses/responses';
import { describe, test } from 'vitest';
import { eventsOf, type ResponseEvent } from '../../../../services/router/surfaces/responses/response_events.ts';
import { OutputItems, type OutputItem } from '../../../../services/router/surfaces/responses/response_items.ts';
import { OutputFormat } from '../../../../shared/text/output/output_format.ts';

const tools = {
  tide: { name: 'tide', isCustom: false },
  'crm.order': { name: 'order', namespace: 'crm', isCustom: false },
  patch: { name: 'patch', isCustom: true },
};
const whole =
  '<think>\nThe tide, at 4.\n</think>\n\nOne moment.\n<tool_call>\n{"name": "tide", "arguments": {"at": [4, {"x": "}"}]}}\n</tool_call>\n' +
  '<tool_call>\n{"name": "patch", "arguments": {"input": "+ \\"a\\"\\n"}}\n</tool_call>\n' +
  '<tool_call>\n{"name": "crm.order", "arguments": {}}\n</tool_call>';

interface Streamed {
  readonly events: readonly ResponseEvent[];
  readonly items: readonly OutputItem[];
}

/** Streams a text that arrives in these pieces. */
function streamed(pieces: readonly string[], isCut = false): Streamed {
  let numIds = 0;
  const newId = (): string => String(numIds++).padStart(16, '0');
  const format = new OutputFormat({ tools: 'hermes', reasoning: 'think', responseTemplate: undefined });
  const parser = format.parser({ tools: new Map(), hasTools: true, isParallel: true, prefix: '', newId });
  assert(parser);
  const output = new OutputItems({ newId: () => 'id', tools });
  const changes = [...pieces.map((piece) => parser.push(piece)), parser.end()].flatMap((deltas) => output.push(deltas));
  return { events: [...changes, ...output.end(isCut)].flatMap(eventsOf), items: output.items };
}

/** Returns the output that OpenAI's client makes of the events. */
function accumulated(events: readonly ResponseEvent[]): unknown {
  const response = { id: 'resp', output: [], status: 'in_progress' } as unknown as Response;
  let snapshot = accumulateResponse({ type: 'response.created', response, sequence_number: 0 });
  // Without the last word on each item, so that the deltas alone make it.
  for (const event of events.filter(({ type }) => type !== 'response.output_item.done'))
    snapshot = accumulateResponse(event as unknown as ResponseStreamEvent, snapshot);
  return snapshot.output;
}

const withStatus = (items: readonly OutputItem[], status: string): unknown =>
  items.map((item) => ({ ...item, status }));

const expected = streamed([whole]).items;

test('the items are those of the text', () => {
  const shown = expected.map((item) => [item.type, item['name'], item['namespace'], item['input'], item['arguments']]);
  assert.deepEqual(shown, [
    ['reasoning', undefined, undefined, undefined, undefined],
    ['message', undefined, undefined, undefined, undefined],
    ['function_call', 'tide', undefined, undefined, '{"at": [4, {"x": "}"}]}'],
    ['custom_tool_call', 'patch', undefined, '+ "a"\n', undefined],
    ['function_call', 'order', 'crm', undefined, '{}'],
  ]);
  const [reasoning, message, call] = expected;
  assert.deepEqual(reasoning!['content'], [{ type: 'reasoning_text', text: 'The tide, at 4.' }]);
  assert.deepEqual(message!['content'], [
    { type: 'output_text', text: 'One moment.\n', annotations: [], logprobs: [] },
  ]);
  assert.deepEqual(
    expected.map(({ status }) => status),
    expected.map(() => 'completed'),
  );
  assert.match(String(call!['call_id']), /^call_\w+$/);
});

/** Events of an answer as one text: each item's own, with a repeated delta once. */
function orderOf(events: readonly ResponseEvent[]): string {
  const names = events.map(({ type }) => type.replace('response.', ''));
  return names.filter((name, i) => name !== names[i - 1] || !name.endsWith('.delta')).join(' ');
}
const parts = (name: string): string =>
  `output_item.added content_part.added ${name}.delta ${name}.done content_part.done output_item.done`;
const arguments_ = (name: string): string => `output_item.added ${name}.delta ${name}.done output_item.done`;
const order = [
  ...[parts('reasoning_text'), parts('output_text'), arguments_('function_call_arguments')],
  ...[arguments_('custom_tool_call_input'), arguments_('function_call_arguments')],
].join(' ');

describe('at every split', () => {
  const splits = [
    Array.from(whole),
    ...Array.from({ length: whole.length }, (_, at) => [whole.slice(0, at), whole.slice(at)]),
    ...[2, 3, 5, 7].map((size) => whole.match(new RegExp(`[^]{1,${size}}`, 'g')) ?? []),
  ];
  test('the events have one order, and make the same items', () => {
    for (const pieces of splits) {
      const { events, items } = streamed(pieces);
      assert.deepEqual(items, expected);
      assert.equal(orderOf(events), order, JSON.stringify(pieces.slice(0, 2)));
      assert.deepEqual(accumulated(events), withStatus(expected, 'in_progress'));
      const done = events.filter(({ type }) => type === 'response.output_item.done');
      assert.deepEqual(
        done.map(({ item }) => item),
        expected,
      );
      for (const event of events) assert.equal(typeof event['output_index'], 'number', event.type);
    }
  });

  test('an answer that is cut anywhere closes its items, the last one as incomplete', () => {
    for (let at = 0; at <= whole.length; at++) {
      const { events, items } = streamed([whole.slice(0, at)], true);
      assert(items.length > 0);
      const statuses = items.map(({ status }) => status);
      assert.deepEqual(statuses, [...items.slice(1).map(() => 'completed'), 'incomplete'], whole.slice(0, at));
      const count = (name: string): number => events.filter(({ type }) => type === `response.${name}`).length;
      assert.equal(count('output_item.added'), items.length);
      assert.equal(count('output_item.done'), items.length);
      assert.equal(count('content_part.added'), count('content_part.done'));
    }
  });
});

test('an answer without text is a message without text', () => {
  const { events, items } = streamed([]);
  assert.deepEqual(
    items.map(({ type, content }) => [type, content]),
    [['message', [{ type: 'output_text', text: '', annotations: [], logprobs: [] }]]],
  );
  assert.equal(orderOf(events), parts('output_text').replace('output_text.delta ', ''));
});

test('log-probabilities are with the text of their tokens, and those of reasoning and calls are nowhere', () => {
  const output = new OutputItems({ newId: () => 'id', tools });
  const of = (token: string) => ({ token, logprob: -1, bytes: null, top_logprobs: [] });
  const changes = [
    ...output.push([{ kind: 'reasoning', text: 'r' }], [of('r')]),
    // A token whose text comes with the next one.
    ...output.push([], [of('</think>')]),
    ...output.push([{ kind: 'content', text: 'a' }], [of('a')]),
    ...output.push([], [of('b')]),
    ...output.push([{ kind: 'content', text: 'bc' }], [of('c')]),
    ...output.push([{ kind: 'call', index: 0, id: 'c', name: 'tide' }], [of('{')]),
    ...output.end(false),
  ];
  const texts = changes.flatMap((one) =>
    one.change === 'text' ? [[one.text, one.logprobs.map(({ token }) => token)]] : [],
  );
  assert.deepEqual(texts, [
    ['r', []],
    ['a', ['a']],
    ['bc', ['b', 'c']],
  ]);
  const [, message] = output.items;
  const [part] = message!['content'] as { logprobs: { token: string }[] }[];
  assert.deepEqual(
    part!.logprobs.map(({ token }) => token),
    ['a', 'b', 'c'],
  );
});
