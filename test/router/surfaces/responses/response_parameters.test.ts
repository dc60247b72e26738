/** Bodies of `/v1/responses` as chats: items as messages, tools, formats; what is refused, with its path. Budget: 1 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { ParameterFailure, type BodyLimits } from '../../../../services/router/api/parameter_failure.ts';
import { readChatBody } from '../../../../services/router/surfaces/openai/parameters.ts';
import { messagesOf, readInput } from '../../../../services/router/surfaces/responses/response_input.ts';
import {
  asResponseError,
  readResponseBody,
} from '../../../../services/router/surfaces/responses/response_parameters.ts';
import { refusal } from '../../../support/failures.ts';

const limits: BodyLimits = { vocabSize: 100, maxModelLen: 64, isStrict: false };
type Read = ReturnType<typeof readResponseBody>;
const read = (keys: object, more: Partial<BodyLimits> = {}): Read =>
  readResponseBody(Buffer.from(JSON.stringify({ input: 'x', ...keys })), { ...limits, ...more });
const messages = (keys: object): Read['template']['messages'] => read(keys).template.messages;

const user = { role: 'user', content: 'x' };

describe('the input', () => {
  test('is a text, or items, with the instructions before them', () => {
    assert.deepEqual(messages({}), [user]);
    assert.deepEqual(messages({ input: [user] }), [user]);
    assert.deepEqual(messages({ instructions: 'Be brief.' }), [{ role: 'system', content: 'Be brief.' }, user]);
    const parts = [
      { type: 'input_text', text: 'x' },
      { type: 'input_text', text: 'y' },
    ];
    assert.deepEqual(messages({ input: [{ type: 'message', role: 'user', content: parts }] }), [
      { role: 'user', content: 'x\ny' },
    ]);
  });

  test('system messages at its begin are one with the instructions; later ones stay', () => {
    const input = [
      { role: 'developer', content: 'a' },
      { role: 'system', content: 'b' },
      user,
      { role: 'system', content: 'c' },
    ];
    const rest = [user, { role: 'system', content: 'c' }];
    assert.deepEqual(messages({ input }), [{ role: 'developer', content: 'a\n\nb' }, ...rest]);
    assert.deepEqual(messages({ input, instructions: 'i' }), [{ role: 'system', content: 'i\n\na\n\nb' }, ...rest]);
  });

  const reasoning = { type: 'reasoning', id: 'rs_1', summary: [], content: [{ type: 'reasoning_text', text: 'hm' }] };
  const said = {
    type: 'message',
    id: 'msg_1',
    role: 'assistant',
    status: 'completed',
    content: [{ type: 'output_text', text: 'Let me see.', annotations: [], logprobs: [] }],
  };
  const call = (id: string, more: object = {}): object => {
    return { type: 'function_call', id: `fc_${id}`, call_id: id, name: 'tide', arguments: '{"at":1}', ...more };
  };
  const result = (id: string): object => ({ type: 'function_call_output', call_id: id, output: 'high' });
  const called = (id: string, name = 'tide', json = '{"at":1}'): object => {
    return { id, type: 'function', function: { name, arguments: json } };
  };

  test('an assistant’s reasoning, text and calls are one message, and each result is one', () => {
    const input = [user, reasoning, said, call('a'), call('b'), result('a'), result('b'), said, user];
    assert.deepEqual(messages({ input }), [
      user,
      { role: 'assistant', reasoning: 'hm', content: 'Let me see.', tool_calls: [called('a'), called('b')] },
      { role: 'tool', tool_call_id: 'a', content: 'high' },
      { role: 'tool', tool_call_id: 'b', content: 'high' },
      { role: 'assistant', content: 'Let me see.' },
      user,
    ]);
  });

  test('text that stands after calls, before their results, is of the same message', () => {
    const later = { ...said, content: [{ type: 'output_text', text: ' And so on.' }] };
    const results = [result('a'), result('b')];
    const tools = ['a', 'b'].map((id) => ({ role: 'tool', tool_call_id: id, content: 'high' }));
    const answer = { role: 'assistant', reasoning: 'hm', tool_calls: [called('a'), called('b')] };
    assert.deepEqual(messages({ input: [user, reasoning, call('a'), said, call('b'), ...results] }), [
      user,
      { ...answer, content: 'Let me see.' },
      ...tools,
    ]);
    assert.deepEqual(messages({ input: [user, reasoning, said, call('a'), call('b'), later, ...results, said] }), [
      user,
      { ...answer, content: 'Let me see. And so on.' },
      ...tools,
      { role: 'assistant', content: 'Let me see.' },
    ]);
  });

  test('two answers in a row stay two, and each has its own reasoning', () => {
    assert.deepEqual(messages({ input: [said, said] }).length, 2);
    assert.deepEqual(messages({ input: [reasoning, said, reasoning, said] }), [
      { role: 'assistant', reasoning: 'hm', content: 'Let me see.' },
      { role: 'assistant', reasoning: 'hm', content: 'Let me see.' },
    ]);
    assert.deepEqual(messages({ input: [said, reasoning] }).at(-1), {
      role: 'assistant',
      reasoning: 'hm',
      content: '',
    });
    const summed = { type: 'reasoning', summary: [{ type: 'summary_text', text: 'short' }] };
    assert.deepEqual(messages({ input: [summed, call('a')] }), [
      { role: 'assistant', reasoning: 'short', tool_calls: [called('a')] },
    ]);
  });

  test('calls of custom tools and of namespaces have the name and arguments of their functions', () => {
    const custom = { type: 'custom_tool_call', call_id: 'c', name: 'patch', input: '*** "x"' };
    const inside = call('d', { namespace: 'mcp__a__' });
    const output = { type: 'custom_tool_call_output', call_id: 'c', output: [{ type: 'input_text', text: 'done' }] };
    assert.deepEqual(messages({ input: [custom, inside, output] }), [
      {
        role: 'assistant',
        tool_calls: [called('c', 'patch', '{"input":"*** \\"x\\""}'), called('d', 'mcp__a__tide')],
      },
      { role: 'tool', tool_call_id: 'c', content: 'done' },
    ]);
  });

  test('what is stored elsewhere waits for it, and the whole is read as if it had been sent', () => {
    for (const keys of [
      { previous_response_id: 'resp_1' },
      { input: [{ type: 'item_reference', id: 'msg_1' }, user] },
    ]) {
      const { response, template } = read(keys);
      assert.deepEqual([response.isContinuing, template.messages], [true, []]);
    }
    const { response } = read({ input: [{ id: 'msg_1' }, user] });
    assert.deepEqual(response.items, [{ id: 'msg_1', referredAt: 'input.0' }, { message: user }]);
    const stored = readInput([reasoning, said], 9, []);
    const own = { ...said, id: undefined };
    assert.deepEqual(
      messagesOf([...stored, { message: user }], 'i'),
      messages({ input: [reasoning, own, user], instructions: 'i' }),
    );
  });

  test.each([
    ['input', { input: 7 }],
    ['input', { input: [] }],
    ['input', { input: null }],
    ['input', { input: Array.from({ length: 65 }, () => user) }],
    ['input.1', { input: [user, 'y'] }],
    ['input.0.type', { input: [{ type: 'computer_call', id: 'x' }] }],
    ['input.0.role', { input: [{ type: 'message', content: 'x' }] }],
    ['input.0.content', { input: [{ role: 'user' }] }],
    [
      'input.0.content.1',
      { input: [{ role: 'user', content: [{ type: 'input_text', text: 'a' }, { type: 'input_image' }] }] },
    ],
    ['input.0.arguments', { input: [{ type: 'function_call', call_id: 'a', name: 'f' }] }],
    ['input.0.call_id', { input: [{ type: 'function_call_output', output: 'x' }] }],
    ['input.0.output', { input: [{ type: 'function_call_output', call_id: 'a' }] }],
    ['background', { background: true }],
    ['conversation', { conversation: 'conv_1' }],
    ['prompt', { prompt: { id: 'pmpt_1' } }],
    ['max_output_tokens', { max_output_tokens: 0 }],
    ['min_tokens', { max_output_tokens: 2, min_tokens: 3 }],
    ['text.format.type', { text: { format: { type: 'xml' } } }],
    ['text.format.schema', { text: { format: { type: 'json_schema', name: 'a' } } }],
    ['include.0', { include: ['all'] }],
    ['truncation', { truncation: 'middle' }],
  ])('%s is named where it is wrong: %j', (param, keys) => {
    const { message, param: named } = refusal(() => read(keys));
    assert.equal(named, param, message);
    assert(message.includes(param), message);
  });
});

const schema = { type: 'object', properties: { at: { type: 'integer' } } };
const fn = (name: string, more: object = {}): object => ({ type: 'function', name, parameters: schema, ...more });
const chatFn = (name: string, more: object = {}): object => {
  return { type: 'function', function: { name, parameters: schema, ...more } };
};

describe('tools', () => {
  test('functions are those of a chat', () => {
    const tools = [fn('tide', { description: 'd', strict: null }), fn('order', { strict: false })];
    const chat = readChatBody(
      Buffer.from(
        JSON.stringify({
          messages: [user],
          tools: [chatFn('tide', { description: 'd' }), chatFn('order', { strict: false })],
        }),
      ),
      limits,
    );
    assert.deepEqual(read({ tools }).tools, chat.tools);
    assert.deepEqual(read({ tools }).template, chat.template);
  });

  test('custom ones are functions of one text, namespaces are flattened, other kinds are left out by name', () => {
    const tools = [
      { type: 'web_search' },
      { type: 'custom', name: 'patch', description: 'd', format: { type: 'text' } },
      {
        type: 'namespace',
        name: 'crm',
        description: 'n',
        tools: [fn('tide'), { type: 'custom', name: 'note' }, { type: 'mcp' }],
      },
    ];
    const { tools: wish, response, ignored } = read({ tools, unheard_of: 1 });
    const text = { type: 'object', properties: { input: { type: 'string' } }, required: ['input'] };
    assert.deepEqual(wish.tools, [
      { type: 'function', function: { name: 'patch', description: 'd', parameters: text } },
      chatFn('crm.tide'),
      { type: 'function', function: { name: 'crm.note', parameters: text } },
    ]);
    assert.deepEqual(response.tools, {
      patch: { name: 'patch', isCustom: true },
      'crm.tide': { name: 'tide', namespace: 'crm', isCustom: false },
      'crm.note': { name: 'note', namespace: 'crm', isCustom: true },
    });
    assert.deepEqual(ignored, ['unheard_of', 'tools.0.web_search', 'tools.2.tools.2.mcp']);
    assert.deepEqual(response.repeated['tools'], tools);
  });

  test('a choice names a tool, or the only ones that may be called', () => {
    const tools = [fn('a'), fn('b'), { type: 'custom', name: 'c' }];
    const choice = (tool_choice: unknown): unknown[] => {
      const { choice: chosen, tools: left } = read({ tools, tool_choice }).tools;
      return [chosen, left.map(({ function: { name } }) => name)];
    };
    assert.deepEqual(choice('auto'), ['auto', ['a', 'b', 'c']]);
    assert.deepEqual(choice('none'), ['none', []]);
    assert.deepEqual(choice({ type: 'function', name: 'b' }), [{ name: 'b' }, ['a', 'b', 'c']]);
    assert.deepEqual(choice({ type: 'custom', name: 'c' }), [{ name: 'c' }, ['a', 'b', 'c']]);
    const some = {
      type: 'allowed_tools',
      mode: 'required',
      tools: [
        { type: 'function', name: 'b' },
        { type: 'mcp', server_label: 's' },
      ],
    };
    assert.deepEqual(choice(some), ['required', ['b']]);
  });

  test.each([
    ['tools.1.name', { tools: [fn('a'), { type: 'function' }] }],
    ['tools.1.name', { tools: [{ type: 'web_search' }, fn('not a name')] }],
    ['tools.0.tools.1.name', { tools: [{ type: 'namespace', name: 'n', tools: [fn('a'), fn('a')] }] }],
    ['tools.0.tools.0.name', { tools: [{ type: 'namespace', name: 'n', tools: [{ type: 'function', name: '' }] }] }],
    ['tools.0.name', { tools: [{ type: 'custom', name: '' }] }],
    ['tools.0.tools', { tools: [{ type: 'namespace', name: 'n' }] }],
    ['tools.0.parameters', { tools: [fn('a', { parameters: 7 })] }],
    ['tools', { tools: Array.from({ length: 129 }, (_, i) => fn(`f${i}`)) }],
    ['tool_choice', { tool_choice: 'required' }],
    ['tool_choice.name', { tools: [fn('a')], tool_choice: { type: 'function', name: 'b' } }],
    ['tool_choice.name', { tools: [fn('a')], tool_choice: { type: 'function' } }],
    ['tool_choice.type', { tools: [fn('a')], tool_choice: { type: 'web_search' } }],
    ['tool_choice', { tools: [fn('a')], tool_choice: { type: 'allowed_tools' } }],
  ])('%s is named where it is wrong', (param, keys) => {
    const { message, param: named } = refusal(() => read(keys));
    assert.equal(named, param, message);
  });
});

test('parameters are those of a chat under their own names', () => {
  const format = { type: 'json_schema', name: 'n', schema, strict: true };
  const body = read({
    temperature: 0.5,
    top_p: 0.9,
    max_output_tokens: 7,
    parallel_tool_calls: false,
    stream: true,
    seed: 3,
    reasoning: { effort: 'low' },
    text: { format },
    truncation: 'auto',
    top_logprobs: 2,
    prompt_cache_key: 'k',
    metadata: { a: 'b' },
    store: false,
    stream_options: { include_obfuscation: false },
  });
  const same = readChatBody(
    Buffer.from(
      JSON.stringify({
        messages: [user],
        temperature: 0.5,
        top_p: 0.9,
        max_completion_tokens: 7,
        parallel_tool_calls: false,

        stream: true,
        seed: 3,
        reasoning_effort: 'low',
        truncate_prompt_tokens: -1,
        logprobs: true,
        top_logprobs: 2,
        response_format: { type: 'json_schema', json_schema: { schema, strict: true } },
      }),
    ),
    limits,
  );
  const { response, ...chat } = body;
  assert.deepEqual(chat, same);
  assert.deepEqual([response.isStored, response.hasLogprobs, response.items], [false, true, []]);
  assert.deepEqual(
    ['metadata', 'prompt_cache_key', 'max_output_tokens', 'truncation'].map((key) => response.repeated[key]),
    [{ a: 'b' }, 'k', 7, 'auto'],
  );
});

test('errors of a chat that come later have the paths of this body', () => {
  const own = (param: string): unknown => {
    const error = asResponseError(new ParameterFailure(`${param}: is wrong`, param), ['tools.0', 'tools.2.tools.1']);
    assert(error instanceof ParameterFailure);
    assert.equal(error.message, `${error.param}: is wrong`);
    return error.param;
  };
  assert.equal(own('tools.1.function.strict'), 'tools.2.tools.1.strict');
  assert.equal(own('response_format.json_schema.schema'), 'text.format.schema');
  assert.equal(own('messages'), 'input');
  assert.equal(own('temperature'), 'temperature');
  const other = new Error('x');
  assert.equal(asResponseError(other, []), other);
});
