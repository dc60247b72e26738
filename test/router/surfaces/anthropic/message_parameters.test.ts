/** Bodies of Anthropic's API as chats: messages, tools, choices, thinking, and what is refused with which path. Budget: 1 s. */
import assert from 'node:assert/strict';
import { describe, expect, test } from 'vitest';
import { readCountBody, readMessagesBody } from '../../../../services/router/surfaces/anthropic/message_parameters.ts';
import { ParameterFailure, type BodyLimits } from '../../../../services/router/api/parameter_failure.ts';
import { readChatBody, type ChatBody } from '../../../../services/router/surfaces/openai/parameters.ts';

const limits: BodyLimits = { vocabSize: 100, maxModelLen: 64, isStrict: false };
const user = { role: 'user', content: 'x' };
const bytes = (body: object): Buffer => Buffer.from(JSON.stringify(body));
const read = (keys: object, own: BodyLimits = limits): ChatBody =>
  readMessagesBody(bytes({ max_tokens: 8, messages: [user], ...keys }), own);
const turns = (...messages: object[]): ChatBody['template'] => read({ messages }).template;
const tool = (name: string, more: object = {}): object => ({ name, input_schema: { type: 'object' }, ...more });

test('a body is the chat that says the same', () => {
  const schema = { type: 'object', properties: { place: { type: 'string' } } };
  const own = readMessagesBody(
    bytes({
      model: 'm',
      max_tokens: 9,
      temperature: 0.5,
      top_p: 0.9,
      top_k: 5,
      stop_sequences: ['a', 'b'],
      stream: true,
      system: [{ type: 'text', text: 'Be brief.', cache_control: { type: 'ephemeral' } }],
      messages: [
        { role: 'user', content: [{ type: 'text', text: 'Tide?' }] },
        {
          role: 'assistant',
          content: [
            { type: 'thinking', thinking: 'Ask.', signature: 's' },
            { type: 'redacted_thinking', data: 'abc' },
            { type: 'text', text: 'I ask.' },
            { type: 'tool_use', id: 'c1', name: 'tide', input: { place: 'mill' } },
          ],
        },
        {
          role: 'user',
          content: [
            { type: 'tool_result', tool_use_id: 'c1', content: [{ type: 'text', text: '9:15' }], is_error: false },
            { type: 'text', text: 'And now?' },
          ],
        },
      ],
      tools: [{ name: 'tide', description: 'High tide', input_schema: schema, cache_control: { type: 'ephemeral' } }],
      tool_choice: { type: 'auto', disable_parallel_tool_use: true },
      thinking: { type: 'enabled', budget_tokens: 1_024 },
      metadata: { user_id: 'x' },
      service_tier: 'auto',
    }),
    limits,
  );
  const call = { id: 'c1', type: 'function', function: { name: 'tide', arguments: '{"place":"mill"}' } };
  const chat = readChatBody(
    bytes({
      model: 'm',
      max_tokens: 9,
      temperature: 0.5,
      top_p: 0.9,
      top_k: 5,
      stop: ['a', 'b'],
      stream: true,
      messages: [
        { role: 'system', content: 'Be brief.' },
        { role: 'user', content: 'Tide?' },
        { role: 'assistant', content: 'I ask.', reasoning_content: 'Ask.', tool_calls: [call] },
        { role: 'tool', content: '9:15', tool_call_id: 'c1', name: 'tide' },
        { role: 'user', content: 'And now?' },
      ],
      tools: [{ type: 'function', function: { name: 'tide', description: 'High tide', parameters: schema } }],
      tool_choice: 'auto',
      parallel_tool_calls: false,
      chat_template_kwargs: { enable_thinking: true },
    }),
    limits,
  );
  assert.deepEqual(own, { ...chat, ignored: ['thinking.budget_tokens'] });
});

describe('messages', () => {
  test('the line of billing, which differs with every request, is left out of the system prompt', () => {
    const billing = (hash: string): string =>
      `x-anthropic-billing-header: cc_version=2.1.15.${hash}; cc_entrypoint=cli;`;
    const text = { type: 'text', text: 'Be brief.' };
    const wanted = [{ role: 'system', content: 'Be brief.' }, user];
    assert.deepEqual(read({ system: [{ type: 'text', text: billing('a1') }, text] }).template.messages, wanted);
    assert.deepEqual(read({ system: `${billing('b2')}\nBe brief.` }).template.messages, wanted);
    assert.deepEqual(read({ system: billing('c3') }).template.messages, [user]);
    const quoted = `It says ${billing('d4')}`;
    assert.deepEqual(read({ system: quoted }).template.messages[0], { role: 'system', content: quoted });
  });

  test('adjacent messages of a role are one; pieces of an answer are joined as they were generated', () => {
    assert.deepEqual(turns(user, { role: 'user', content: [{ type: 'text', text: 'y' }] }).messages, [
      { role: 'user', content: 'x\ny' },
    ]);
    const said = (text: string): object => ({ role: 'assistant', content: [{ type: 'text', text }] });
    assert.deepEqual(turns(user, said('a'), said(' b'), user).messages[1], { role: 'assistant', content: 'a b' });
    const parts = { role: 'assistant', content: ['a', 'b'].map((text) => ({ type: 'text', text })) };
    assert.deepEqual(turns(user, parts, user).messages[1], { role: 'assistant', content: 'a\nb' });
    assert.deepEqual(turns({ role: 'system', content: 's' }, user).messages, [{ role: 'system', content: 's' }, user]);
  });

  test('a last message of the assistant is continued, unless it says nothing', () => {
    const continued = turns(user, { role: 'assistant', content: 'The tide' });
    assert.deepEqual([continued.continueFinalMessage, continued.addGenerationPrompt], [true, false]);
    const empty = turns(user, { role: 'assistant', content: [] });
    assert.deepEqual([empty.continueFinalMessage, empty.addGenerationPrompt, empty.messages], [false, true, [user]]);
  });

  test('every result is a message of its own, and knows the name of its tool', () => {
    const uses = ['a', 'b'].map((id) => ({ type: 'tool_use', id, name: `f_${id}`, input: {} }));
    const results = ['b', 'a', 'z'].map((id) => ({ type: 'tool_result', tool_use_id: id }));
    const { messages } = turns(user, { role: 'assistant', content: uses }, { role: 'user', content: results });
    assert.deepEqual(messages.slice(2), [
      { role: 'tool', content: '', tool_call_id: 'b', name: 'f_b' },
      { role: 'tool', content: '', tool_call_id: 'a', name: 'f_a' },
      { role: 'tool', content: '', tool_call_id: 'z' },
    ]);
  });

  test('a reminder after results belongs to the last of them; words of the user do not', () => {
    const uses = [{ type: 'tool_use', id: 'a', name: 'f', input: {} }];
    const reminder = { type: 'text', text: '<system-reminder>\nThe list is empty.\n</system-reminder>' };
    const words = { type: 'text', text: `${reminder.text}\nStop.\n${reminder.text}` };
    const result = { type: 'tool_result', tool_use_id: 'a', content: 'done' };
    const { messages } = turns(
      user,
      { role: 'assistant', content: uses },
      { role: 'user', content: [result, reminder, words, reminder] },
    );
    assert.deepEqual(messages.slice(2), [
      { role: 'tool', content: `done\n\n${reminder.text}`, tool_call_id: 'a', name: 'f' },
      { role: 'user', content: `${words.text}\n${reminder.text}` },
    ]);
  });

  test('an input that is a text is what the model wrote in place of an object', () => {
    const use = { type: 'tool_use', id: 'c', name: 'f', input: '{"a": 1' };
    const result = { type: 'tool_result', tool_use_id: 'c', content: 'bad' };
    const { messages } = turns(user, { role: 'assistant', content: [use] }, { role: 'user', content: [result] });
    expect(messages[1]).toMatchObject({ tool_calls: [{ function: { name: 'f', arguments: '{"a": 1' } }] });
  });
});

describe('tools and choices', () => {
  test('tools of other types are skipped and named', () => {
    const { tools, ignored } = read({
      tools: [{ type: 'web_search_20250305', name: 'web_search' }, tool('f', { type: 'custom' }), tool('g')],
    });
    assert.deepEqual(
      tools.tools.map(({ function: { name } }) => name),
      ['f', 'g'],
    );
    assert.deepEqual(ignored, ['tools.0:web_search_20250305']);
  });

  test.each([
    [{ type: 'auto' }, 'auto', ['f'], true],
    [{ type: 'any' }, 'required', ['f'], true],
    [{ type: 'tool', name: 'f', disable_parallel_tool_use: true }, { name: 'f' }, ['f'], false],
    [{ type: 'none' }, 'none', [], true],
  ])('the choice %j', (choice, wanted, names, isParallel) => {
    const { tools } = read({ tools: [tool('f')], tool_choice: choice });
    assert.deepEqual([tools.choice, tools.isParallel], [wanted, isParallel]);
    assert.deepEqual(
      tools.tools.map(({ function: { name } }) => name),
      names,
    );
  });
});

test.each([
  [{ type: 'enabled', budget_tokens: 2_000 }, { enable_thinking: true }, true],
  [{ type: 'adaptive', display: 'omitted' }, { enable_thinking: true }, false],
  [{ type: 'disabled' }, { enable_thinking: false }, true],
])('thinking %j', (thinking, kwargs, includesReasoning) => {
  const { template, includesReasoning: includes } = read({ thinking });
  assert.deepEqual([template.kwargs, includes], [kwargs, includesReasoning]);
});

test('effort reaches the template in the words of chats, and unknown keys are named', () => {
  const { template, ignored } = read({ output_config: { effort: 'max' }, context_management: {} });
  assert.deepEqual([template.kwargs, ignored], [{ reasoning_effort: 'high' }, ['context_management']]);
  assert.throws(() => read({ context_management: {} }, { ...limits, isStrict: true }), /context_management/);
});

test('a count needs no length, and has the prompt of the request', () => {
  const body = { system: 's', messages: [user], tools: [tool('f')], thinking: { type: 'enabled', budget_tokens: 9 } };
  assert.deepEqual(readCountBody(bytes(body), limits).template, read(body).template);
});

const blocks = (role: string, ...content: object[]): object => ({ messages: [user, { role, content }] });
const result = (content: unknown): object => blocks('user', { type: 'tool_result', tool_use_id: 'c', content });
test.each<readonly [string, object, string]>([
  ['no length', { max_tokens: null }, 'max_tokens'],
  ['no new token', { max_tokens: 0 }, 'max_tokens'],
  ['no messages', { messages: [] }, 'messages'],
  ['more messages than tokens', { messages: Array.from({ length: 65 }, () => user) }, 'messages'],
  ['a message that is none', { messages: [user, 'x'] }, 'messages.1'],
  ['another role', { messages: [{ role: 'tool', content: 'x' }] }, 'messages.0.role'],
  ['no content', { messages: [{ role: 'user' }] }, 'messages.0.content'],
  ['an image', blocks('user', { type: 'text', text: 'a' }, { type: 'image', source: {} }), 'messages.1.content.1'],
  ['a document', blocks('user', { type: 'document', source: {} }), 'messages.1.content.0'],
  ['a part of a result without type', result([{ source: {} }]), 'messages.1.content.0.content.0'],
  ['a result without id', blocks('user', { type: 'tool_result' }), 'messages.1.content.0.tool_use_id'],
  ['a result of the assistant', blocks('assistant', { type: 'tool_result' }), 'messages.1.content.0'],
  ['an input that is no object', blocks('assistant', { type: 'tool_use', input: [] }), 'messages.1.content.0.input'],
  ['a call without result', blocks('assistant', { type: 'tool_use', id: 'c', name: 'f', input: {} }), 'messages.1'],
  ['a text that is none', blocks('user', { type: 'text', text: 1 }), 'messages.1.content.0.text'],
  ['a system prompt with an image', { system: [{ type: 'image' }] }, 'system.0'],
  ['nothing but an empty text', { messages: [{ role: 'user', content: '' }] }, 'messages'],
  ['a name with a space', { tools: [tool('a'), tool('b c')] }, 'tools.1.name'],
  ['two tools of one name', { tools: [{ type: 'bash_1', name: 'a' }, tool('a'), tool('a')] }, 'tools.2.name'],
  ['a tool without schema', { tools: [{ name: 'a' }] }, 'tools.0.input_schema'],
  ['129 tools', { tools: Array.from({ length: 129 }, (_, i) => tool(`f${i}`)) }, 'tools'],
  ['any tool of none', { tool_choice: { type: 'any' } }, 'tool_choice'],
  ['a tool that is not there', { tools: [tool('a')], tool_choice: { type: 'tool', name: 'b' } }, 'tool_choice.name'],
  ['a choice of another type', { tool_choice: { type: 'required' } }, 'tool_choice.type'],
  ['thinking of another type', { thinking: { type: 'on' } }, 'thinking.type'],
  ['an empty stop', { stop_sequences: [''] }, 'stop_sequences.0'],
  ['a temperature over 2', { temperature: 2.5 }, 'temperature'],
  ['servers of tools', { mcp_servers: [{ url: 'x' }] }, 'mcp_servers'],
  ['a begun thread', { thread: { type: 'create' } }, 'thread'],
  [
    'a turn of a thread',
    {
      messages: [{ role: 'user', content: [{ type: 'tool_result', tool_use_id: 'c', content: 'x' }] }],
      thread: { type: 'continue', previous_message_id: 'msg_1' },
    },
    'thread',
  ],
])('refused with its path: %s', (_, keys, path) => {
  assert.throws(
    () => read(keys),
    (error: unknown) => {
      assert(error instanceof ParameterFailure, String(error));
      assert.equal(error.param, path);
      assert(error.message.startsWith(path), error.message);
      return true;
    },
  );
});
