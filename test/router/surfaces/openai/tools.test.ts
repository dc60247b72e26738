/** Tools of a chat's body: what is taken, what is refused with which path, and what is to be enforced. Budget: 1 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { messageOf } from '../../../../shared/text/answer_message.ts';
import { chunkDelta } from '../../../../services/router/surfaces/openai/chat_delta.ts';
import { ParsedChoice } from '../../../../services/router/api/parsed_choice.ts';
import type { BodyLimits } from '../../../../services/router/api/parameter_failure.ts';
import {
  readChatBody,
  readCompletionBody,
  readTokenizeBody,
} from '../../../../services/router/surfaces/openai/parameters.ts';
import type { CallForm, TextRule } from '../../../../shared/text/grammar/text_rule.ts';
import { toolRule } from '../../../../services/router/surfaces/openai/tool_grammar.ts';
import { schemasOf } from '../../../../services/router/surfaces/openai/tools.ts';
import { OutputFormat } from '../../../../shared/text/output/output_format.ts';
import { CountsFold } from '../../../../services/router/record/request_counts.ts';
import type { RequestEvent } from '../../../../services/router/record/request_events.ts';
import { refusal } from '../../../support/failures.ts';

const limits: BodyLimits = { vocabSize: 100, maxModelLen: 64, isStrict: false };
const messages = [{ role: 'user', content: 'x' }];
const chat = (keys: object): ReturnType<typeof readChatBody> =>
  readChatBody(Buffer.from(JSON.stringify({ messages, ...keys })), limits);

const parameters = { type: 'object', properties: { place: { type: 'string' } } };
const tool = (name: string, more: object = {}): object => ({
  type: 'function',
  function: { name, parameters, ...more },
});

test('tools go to the template as they are, without nulls', () => {
  const { tools, template } = chat({ tools: [tool('tide', { description: null, strict: null }), tool('f.g-h')] });
  assert.deepEqual(
    template.tools,
    ['tide', 'f.g-h'].map((name) => ({ type: 'function', function: { name, parameters } })),
  );
  assert.deepEqual([tools.choice, tools.isParallel], ['auto', true]);
  assert.deepEqual(
    [...schemasOf(tools)],
    [
      ['tide', parameters],
      ['f.g-h', parameters],
    ],
  );
});

test('no tools, and tools that are not to be called, leave the template without', () => {
  for (const keys of [{}, { tools: [] }, { tools: '' }, { tools: null }, { tools: [tool('f')], tool_choice: 'none' }])
    assert.deepEqual(chat(keys).template.tools, []);
  for (const choice of ['auto', 'none']) assert.deepEqual(chat({ tool_choice: choice }).tools.tools, []);
});

test('one call at most, and reasoning left out, where the client says so', () => {
  const { tools, includesReasoning } = chat({
    tools: [tool('f')],
    parallel_tool_calls: false,
    include_reasoning: false,
  });
  assert.deepEqual([tools.isParallel, includesReasoning], [false, false]);
  assert.equal(chat({}).includesReasoning, true);
});

test('the tools of a chat are tokens of /tokenize too', () => {
  const bytes = Buffer.from(JSON.stringify({ messages, tools: [tool('f')] }));
  assert.equal(readTokenizeBody(bytes, limits).template?.tools?.length, 1);
});

const many = Array.from({ length: 129 }, (_, i) => tool(`f${i}`));
test.each<readonly [string, object, string]>([
  ['a name with a space', { tools: [tool('a'), tool('b c')] }, 'tools.1.function.name'],
  ['an empty name', { tools: [tool('')] }, 'tools.0.function.name'],
  ['a name of 65 letters', { tools: [tool('x'.repeat(65))] }, 'tools.0.function.name'],
  ['no name', { tools: [{ type: 'function', function: {} }] }, 'tools.0.function.name'],
  ['two of one name', { tools: [tool('a'), tool('b'), tool('a')] }, 'tools.2.function.name'],
  ['129 tools', { tools: many }, 'tools'],
  ['a tool of another kind', { tools: [{ type: 'web_search' }] }, 'tools.0.type'],
  ['a function that is none', { tools: [{ type: 'function', function: 'f' }] }, 'tools.0.function'],
  ['parameters that are no schema', { tools: [tool('a', { parameters: [] })] }, 'tools.0.function.parameters'],
  ['no list', { tools: { a: 1 } }, 'tools'],
  ['a choice without tools', { tool_choice: 'required' }, 'tool_choice'],
  ['a choice that is none', { tools: [tool('a')], tool_choice: 'any' }, 'tool_choice'],
  [
    'a choice of another tool',
    { tools: [tool('a')], tool_choice: { type: 'function', function: { name: 'b' } } },
    'tool_choice.function.name',
  ],
  ['parallel calls that are no yes or no', { tools: [tool('a')], parallel_tool_calls: 1 }, 'parallel_tool_calls'],
])('%s is refused with its path', (_, keys, param) => {
  const failure = refusal(() => chat(keys));
  assert.equal(failure.param, param);
  assert.match(failure.message, new RegExp(`^${param.replaceAll('.', '\\.')}: `));
});

test('128 tools are taken; completions take none', () => {
  assert.equal(chat({ tools: many.slice(1) }).tools.tools.length, 128);
  const bytes = Buffer.from(JSON.stringify({ prompt: 'x', tools: [tool('a')] }));
  assert.equal(refusal(() => readCompletionBody(bytes, limits)).param, 'tools');
});

describe('what is to be enforced', () => {
  const all = [tool('a'), tool('b', { strict: true })];
  const ruleOf = (keys: object, form: CallForm | null = 'hermes', content?: TextRule): ReturnType<typeof toolRule> =>
    toolRule(chat({ tools: all, ...keys }).tools, form ?? undefined, content);
  const wanted = (keys: object): unknown => {
    const rule = ruleOf(keys);
    return rule && [rule.mustCall, rule.param, rule.tools.map(({ name, isStrict }) => [name, isStrict])];
  };
  const both = [
    ['a', false],
    ['b', true],
  ];

  test('is some call, the named one, or the arguments of a strict tool', () => {
    assert.deepEqual(wanted({ tool_choice: 'required' }), [true, 'tool_choice', both]);
    const named = { type: 'function', function: { name: 'a' } };
    assert.deepEqual(wanted({ tool_choice: named }), [true, 'tool_choice', [['a', false]]]);
    assert.deepEqual(wanted({}), [false, 'tools.1.function.strict', both]);
    assert.equal(wanted({ tools: [tool('a', { strict: false })] }), undefined);
    assert.equal(wanted({ tool_choice: 'none' }), undefined);
  });

  test('is written in the format of the model where that can be enforced, else as JSON', () => {
    const required = { tool_choice: 'required' };
    assert.equal(ruleOf(required)?.form, 'hermes');
    assert.equal(ruleOf(required, 'llama3_json')?.form, 'llama3_json');
    assert.equal(ruleOf(required, null)?.form, 'json');
    // A model whose format cannot be enforced writes as it likes when nothing has to be called.
    assert.equal(ruleOf({}, null), undefined);
  });

  test('goes with a rule for the text', () => {
    const content: TextRule = { kind: 'json_object', param: 'response_format' };
    assert.deepEqual(ruleOf({ tools: [tool('a')] }, 'hermes', content)?.content, content);
    assert.equal(ruleOf({ tool_choice: 'required' }, 'hermes', content)?.content, undefined);
    assert.equal(ruleOf({ tools: [] }, 'hermes', content), undefined);
  });
});

describe('answers', () => {
  const call = { kind: 'call', index: 0, id: 'call_1', name: 'f' } as const;
  const json = { kind: 'arguments', index: 0, text: '{"a": 1}' } as const;

  test('a message has its calls, and no content where there are only calls', () => {
    assert.deepEqual(messageOf([call, json], true), {
      role: 'assistant',
      content: null,
      refusal: null,
      tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'f', arguments: '{"a": 1}' } }],
    });
    assert.deepEqual(messageOf([], true), { role: 'assistant', content: '', refusal: null });
  });

  test('reasoning has both of its names, or is left out', () => {
    const deltas = [
      { kind: 'reasoning', text: 'A' },
      { kind: 'content', text: 'B' },
    ] as const;
    const message = { role: 'assistant', content: 'B', refusal: null };
    assert.deepEqual(messageOf(deltas, true), { ...message, reasoning: 'A', reasoning_content: 'A' });
    assert.deepEqual(messageOf(deltas, false), message);
    assert.equal(messageOf(deltas.slice(0, 1), false)['content'], null);
  });

  test('chunks begin a call with its name, and go on with its arguments', () => {
    assert.deepEqual(chunkDelta(call), {
      tool_calls: [{ index: 0, id: 'call_1', type: 'function', function: { name: 'f', arguments: '' } }],
    });
    assert.deepEqual(chunkDelta(json), { tool_calls: [{ index: 0, function: { arguments: '{"a": 1}' } }] });
    assert.deepEqual(chunkDelta({ kind: 'reasoning', text: 'A' }), { reasoning: 'A', reasoning_content: 'A' });
  });

  test('tokens of the reasoning are counted, with those of its markers', () => {
    const counts = new CountsFold();
    const trace = { emit: (event: RequestEvent) => counts.apply(event) };
    const format = new OutputFormat({ tools: 'hermes', reasoning: 'think', responseTemplate: undefined });
    const parser = format.parser({
      tools: new Map<string, unknown>(),
      hasTools: true,
      isParallel: true,
      prefix: '',
      newId: () => 'x',
    });
    assert(parser);
    const choice = new ParsedChoice(parser, trace, true);
    const token = { token: 0, logprob: [], topTokens: [], topLogprobs: [] } as never;
    for (const text of ['<think>', '\n', 'A', ' fact', '</think>', '\n\n', 'B'])
      choice.read({ text, tokens: [token], finish: undefined });
    assert.equal(counts.reasoningTokens, 5);
    const { pieces } = choice.read({ text: '<tool', tokens: [token], finish: 'stop' });
    assert.deepEqual(pieces, [{ kind: 'content', text: '<tool' }]);
    assert.equal(counts.reasoningTokens, 5);
  });
});
