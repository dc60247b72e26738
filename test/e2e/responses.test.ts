/** `/v1/responses` as OpenAI's official client sees it. Budget: 30 s. */
import assert from 'node:assert/strict';
import OpenAI, { APIError } from 'openai';
import type {
  FunctionTool,
  Response as Answer,
  ResponseCreateParamsNonStreaming,
  ResponseCreateParamsStreaming,
  ResponseInputItem,
  ResponseStreamEvent,
} from 'openai/resources/responses/responses';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Cluster } from '../support/cluster.ts';
import { NEVER_SILENT, until } from '../support/until.ts';
import { answer, messages, model, openPrompt } from './peers/samples.ts';

let cluster: Cluster;
let client: OpenAI;
beforeAll(async () => {
  cluster = await Cluster.inProcess('--local-prefill-tokens', '48');
  client = new OpenAI({ baseURL: `${cluster.url}/v1`, apiKey: 'none', maxRetries: 0 });
});
afterAll(async () => {
  await cluster.close();
});

const input = messages as ResponseInputItem[];
const [system, question] = messages;
assert(system && question);

type More = Partial<ResponseCreateParamsNonStreaming> & Readonly<Record<string, unknown>>;
const create = (more: More = {}): Promise<Answer> =>
  client.responses.create({ model, input, temperature: 0, ...more } as ResponseCreateParamsNonStreaming);

/** Returns the error that a request is refused with. */
async function refusal(ask: () => Promise<unknown>): Promise<APIError> {
  try {
    await ask();
  } catch (error) {
    assert(error instanceof APIError, String(error));
    return error;
  }
  return assert.fail('it was accepted');
}

/** Returns the prompt's length of a chat with these messages. */
async function promptTokens(chat: object[], more: object = {}): Promise<number> {
  const body = { model, messages: chat, max_tokens: 1, ...more };
  const { usage } = await client.chat.completions.create(body as never);
  return (usage as unknown as { prompt_tokens: number }).prompt_tokens;
}

test('an answer is that of the chat, with its usage and what was asked', async () => {
  const wish = { metadata: { berth: '4' }, prompt_cache_key: 'k', max_output_tokens: 100, top_p: 0.5 };
  const response = await create({ input: question.content, instructions: system.content, ...wish });
  assert.equal(response.output_text, answer);
  const { id, object, status, error, incomplete_details: incomplete, output, usage, model: served } = response;
  assert.deepEqual([object, status, error, incomplete, served], ['response', 'completed', null, null, model]);
  assert.match(id, /^resp_[0-9a-f]{32}$/);
  const [item] = output;
  assert(output.length === 1 && item?.type === 'message');
  assert.deepEqual([item.role, item.status], ['assistant', 'completed']);
  assert.deepEqual(item.content, [{ type: 'output_text', text: answer, annotations: [], logprobs: [] }]);
  assert(usage);
  assert.equal(usage.input_tokens, await promptTokens(messages as object[]));
  assert.equal(usage.total_tokens, usage.input_tokens + usage.output_tokens);
  assert(usage.output_tokens > 1 && usage.input_tokens_details.cached_tokens < usage.input_tokens);
  const {
    metadata,
    prompt_cache_key: key,
    max_output_tokens: most,
    top_p: topP,
    temperature,
    store,
  } = {
    ...response,
    store: (response as unknown as { store: boolean }).store,
  };
  assert.deepEqual([metadata, key, most, topP, temperature, store], [wish.metadata, 'k', 100, 0.5, 0, true]);
  assert.equal(response.instructions, system.content);
});

describe('a stream', () => {
  const streamed = async (more: More = {}): Promise<{ events: ResponseStreamEvent[]; final: Answer }> => {
    const stream = client.responses.stream({ model, input, temperature: 0, ...more } as never);
    const events: ResponseStreamEvent[] = [];
    for await (const event of stream) events.push(event);
    return { events, final: (await stream.finalResponse()) as unknown as Answer };
  };
  const deltasOf = (events: readonly ResponseStreamEvent[]): string =>
    events.map((event) => (event.type === 'response.output_text.delta' ? event.delta : '')).join('');

  test('has numbered events, and the answer at its end', async () => {
    const { events, final } = await streamed();
    assert.deepEqual(
      events.map(({ sequence_number: number }) => number),
      events.map((_, i) => i),
    );
    const types = events.map(({ type }) => type.replace('response.', ''));
    const head = ['created', 'in_progress', 'output_item.added', 'content_part.added'];
    const tail = ['output_text.done', 'content_part.done', 'output_item.done', 'completed'];
    assert.deepEqual(types.slice(0, 4), head);
    assert.deepEqual(types.slice(-4), tail);
    assert.deepEqual(new Set(types.slice(4, -4)), new Set(['output_text.delta']));
    expect(types.length).toBeGreaterThan(12);
    assert.equal(deltasOf(events), answer);
    assert.equal(final.output_text, answer);
    const stored = await client.responses.retrieve(final.id);
    assert.deepEqual([stored.output_text, stored.usage], [answer, final.usage]);
  });

  test('and a whole answer that reach their length are incomplete', async () => {
    const cut = { max_output_tokens: 3, input: openPrompt };
    const whole = await create(cut);
    const { events, final } = await streamed(cut);
    for (const { status, incomplete_details: details, output, usage, output_text: text } of [whole, final]) {
      assert.deepEqual([status, details], ['incomplete', { reason: 'max_output_tokens' }]);
      const [item] = output;
      assert(item?.type === 'message' && item.status === 'incomplete');
      assert.equal(usage?.output_tokens, 3);
      assert.equal(text, whole.output_text);
    }
    assert(whole.output_text !== '');
    assert.equal(events.at(-1)?.type, 'response.incomplete');
  });

  test('of a client that leaves ends the request, and stores nothing', async () => {
    const stream = await client.responses.create({
      model,
      input: openPrompt,
      stream: true,
      max_output_tokens: 1_500,
      ignore_eos: true,
    } as ResponseCreateParamsStreaming);
    let id = '';
    for await (const event of stream) {
      if (event.type === 'response.created') ({ id } = event.response);
      if (event.type === 'response.output_text.delta') break;
    }
    const request = await until('the request has ended', async () =>
      (await cluster.requests(1)).find(({ phase }) => phase === 'cancelled'),
    );
    assert.equal(request.finish_reason, 'abort');
    assert.equal((await refusal(() => client.responses.retrieve(id))).status, 404);
  });

  test('has the named events of server-sent events', async () => {
    const response = await fetch(`${cluster.url}/v1/responses`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model, input, temperature: 0, stream: true }),
    });
    assert.match(response.headers.get('content-type') ?? '', /^text\/event-stream/);
    const blocks = (await response.text()).split('\n\n').filter((block) => block.startsWith('event: '));
    expect(blocks.length).toBeGreaterThan(12);
    for (const block of blocks) {
      const [, name, json = ''] = /^event: (\S+)\ndata: (.*)$/.exec(block) ?? [];
      assert.equal((JSON.parse(json) as { type: string }).type, name);
    }
  });
});

/** A tool, and the text with which the demo model's format calls it. */
const tool: FunctionTool = {
  type: 'function',
  name: 'check_tide',
  description: 'When the tide is high',
  strict: false,
  parameters: { type: 'object', properties: { place: { type: 'string' } }, required: ['place'] },
};
const forced = (text: string): More => ({ structured_outputs: { choice: [text] } });
const call = (name: string, values: object): string => JSON.stringify({ name, arguments: values });

describe('tools', () => {
  const chatTools = [
    {
      type: 'function',
      function: { name: tool.name, description: tool.description, strict: false, parameters: tool.parameters },
    },
  ];

  test('a call comes back as an item, and its result continues the conversation as in a chat', async () => {
    const ask = { tools: [tool], ...forced(call('check_tide', { place: 'pier' })) };
    const first = await create(ask);
    const [called] = first.output;
    assert(first.output.length === 1 && called?.type === 'function_call');
    assert.deepEqual([called.name, called.status], ['check_tide', 'completed']);
    assert.deepEqual(JSON.parse(called.arguments), { place: 'pier' });
    const result: ResponseInputItem = { type: 'function_call_output', call_id: called.call_id, output: 'At 6.' };
    const chat = [
      ...messages,
      {
        role: 'assistant',
        tool_calls: [
          { id: called.call_id, type: 'function', function: { name: called.name, arguments: called.arguments } },
        ],
      },
      { role: 'tool', tool_call_id: called.call_id, content: 'At 6.' },
    ];
    const numTokens = await promptTokens(chat, { tools: chatTools });
    const rest = { tools: [tool], ...forced('It is high at 6.') };
    const sent = await create({ ...rest, input: [...input, called, result] });
    const continued = await create({ ...rest, input: [result], previous_response_id: first.id });
    const referred = await create({
      ...rest,
      input: [...input, { type: 'item_reference', id: called.id ?? '' }, result],
    });
    for (const { output_text: text, usage } of [sent, continued, referred])
      assert.deepEqual([text, usage?.input_tokens], ['It is high at 6.', numTokens]);
    assert.equal(continued.previous_response_id, first.id);
  });

  test('a streamed call has its arguments piece by piece', async () => {
    const stream = client.responses.stream({
      model,
      input,
      tools: [tool],
      ...forced(call('check_tide', { place: 'the old pier' })),
    } as never);
    const deltas: string[] = [];
    stream.on('response.function_call_arguments.delta', ({ delta }) => deltas.push(delta));
    const { output } = (await stream.finalResponse()) as unknown as Answer;
    const [called] = output;
    assert(called?.type === 'function_call');
    assert.equal(deltas.join(''), called.arguments);
    assert.deepEqual(JSON.parse(called.arguments), { place: 'the old pier' });
    expect(deltas.length).toBeGreaterThan(2);
  });

  test('custom tools and namespaces keep their form; tools of other kinds are named in a header', async () => {
    const tools = [
      { type: 'web_search' },
      { type: 'custom', name: 'patch' },
      { type: 'namespace', name: 'tides', description: 'Tides', tools: [tool] },
    ];
    const of = async (text: string): Promise<{ answer: Answer; headers: Headers }> => {
      const body = { model, input, tools, ...forced(text) } as unknown as ResponseCreateParamsNonStreaming;
      const { data, response } = await client.responses.create(body).withResponse();
      return { answer: data, headers: response.headers };
    };
    const patched = await of(call('patch', { input: '+ "a"\n' }));
    const [patch] = patched.answer.output;
    assert(patch?.type === 'custom_tool_call');
    assert.deepEqual([patch.name, patch.input], ['patch', '+ "a"\n']);
    assert.equal(patched.headers.get('x-penstock-ignored'), 'tools.0.web_search');
    const [inside] = (await of(call('tides.check_tide', { place: 'pier' }))).answer.output;
    assert(inside?.type === 'function_call');
    assert.deepEqual([inside.name, inside.namespace], ['check_tide', 'tides']);
  });
});

test('an answer that is continued has the conversation before it, but not its instructions', async () => {
  const first = await create({ input: question.content, instructions: system.content });
  const second = await create({ input: 'And now?', previous_response_id: first.id, ...forced('No.') });
  const third = await create({
    input: 'Why?',
    instructions: 'Be brief.',
    previous_response_id: second.id,
    max_output_tokens: 1,
  });
  const chat = [question, { role: 'assistant', content: answer }, { role: 'user', content: 'And now?' }];
  assert.equal(second.usage?.input_tokens, await promptTokens(chat));
  const longer = [...chat, { role: 'assistant', content: 'No.' }, { role: 'user', content: 'Why?' }];
  const head = { role: 'system', content: 'Be brief.' };
  assert.equal(third.usage?.input_tokens, await promptTokens([head, ...longer]));
});

test('log-probabilities are with the text when they are asked for', async () => {
  const { output } = await create({ include: ['message.output_text.logprobs'], top_logprobs: 2 });
  const [item] = output;
  assert(item?.type === 'message');
  const [part] = item.content;
  assert(part?.type === 'output_text');
  assert.equal(
    part.logprobs
      ?.map(({ token }) => token)
      .join('')
      .replace(/<\|im_end\|>$/, ''),
    answer,
  );
  for (const { top_logprobs: top } of part.logprobs ?? []) assert.equal(top.length, 2);
});

test('text.format makes the answer JSON of a schema', async () => {
  const schema = {
    type: 'object',
    additionalProperties: false,
    required: ['berth', 'isFree'],
    properties: { berth: { type: 'integer', minimum: 1, maximum: 9 }, isFree: { type: 'boolean' } },
  };
  const { output_text: text } = await create({
    text: { format: { type: 'json_schema', name: 'berth', schema, strict: true } },
  });
  const { berth, isFree } = JSON.parse(text) as { berth: number; isFree: boolean };
  assert(berth >= 1 && berth <= 9 && typeof isFree === 'boolean', text);
});

describe('stored answers', () => {
  test('are returned and forgotten by their id', async () => {
    const made = await create();
    const { output_text: text, ...stored } = await client.responses.retrieve(made.id);
    assert.equal(text, answer);
    const own: Partial<Answer> = { ...made };
    delete own.output_text;
    assert.deepEqual(JSON.parse(JSON.stringify(stored)), JSON.parse(JSON.stringify(own)));
    const deleted = await fetch(`${cluster.url}/v1/responses/${made.id}`, { method: 'DELETE' });
    assert.deepEqual(await deleted.json(), { id: made.id, object: 'response', deleted: true });
    for (const ask of [
      () => client.responses.retrieve(made.id),
      () => client.responses.delete(made.id),
      () => create({ previous_response_id: made.id }),
      () => create({ input: [{ type: 'item_reference', id: made.output[0]?.id ?? '' }] }),
    ]) {
      const { status, message } = await refusal(ask);
      assert.equal(status, 404);
      assert.match(message, /is no (response|item) "\w+" here: it belongs to another router/);
    }
  });

  test('are none with store: false', async () => {
    const { id, output_text: text } = await create({ store: false });
    assert.equal(text, answer);
    assert.equal((await refusal(() => client.responses.retrieve(id))).status, 404);
  });

  test('of a router are 64 MiB at most, the newest', async () => {
    // A tool that is left out is no part of the prompt, but of the answer.
    const toolsOf = (length: number): never => [{ type: 'web_search', filters: 'x'.repeat(length) }] as never;
    const ids: string[] = [];
    // 74 of them are 64 MiB.
    for (let i = 0; i < 77; i++)
      ids.push((await create({ tools: toolsOf(900_000), input: 'Hi', max_output_tokens: 1 })).id);
    const large = await refusal(() => create({ tools: toolsOf(1_100_000), input: 'Hi', max_output_tokens: 1 }));
    assert.deepEqual([large.status, large.param], [400, 'tools']);
    assert.equal((await refusal(() => client.responses.retrieve(ids[0]!))).status, 404);
    for (const id of [ids[4]!, ids.at(-1)!]) assert.equal((await client.responses.retrieve(id)).id, id);
  });
});

test('what is refused is refused by its path', async () => {
  const refused: [param: string, status: number, more: More][] = [
    ['background', 400, { background: true }],
    ['previous_response_id', 404, { previous_response_id: 'resp_of_another_router' }],
    ['input.1.content.0', 400, { input: [question, { role: 'user', content: [{ type: 'input_image' }] }] as never }],
    ['input', 400, { input: 'water '.repeat(2_400) }],
    ['tools.1.name', 400, { tools: [tool, tool] }],
    ['text.format.schema', 400, { text: { format: { type: 'json_schema', name: 'a' } } as never }],
    ['model', 404, { model: 'none' }],
  ];
  for (const [param, status, more] of refused) {
    const error = await refusal(() => create(more));
    assert.deepEqual([error.param, error.status], [param, status], error.message);
    assert(error.type?.endsWith('error'), error.message);
  }
});

test('a stream that fails before its first event ends with an event of the error', async () => {
  // Its time runs out, and the instance that says nothing is not dropped before.
  // eslint-disable-next-line time/speed -- the instance is stopped: its own limit ends the request
  const times = ['--sse-keep-alive-ms', '300', '--request-timeout-ms', '2500', ...NEVER_SILENT];
  const slow = await Cluster.up('--prefill', '0', '--store', '0', ...times);
  const pid = slow.pidOf('decode-1');
  try {
    process.kill(pid, 'SIGSTOP');
    const own = new OpenAI({ baseURL: `${slow.url}/v1`, apiKey: 'none', maxRetries: 0 });
    const stream = await own.responses.create({ model, input, stream: true } as ResponseCreateParamsStreaming);
    const events: ResponseStreamEvent[] = [];
    for await (const event of stream) events.push(event);
    const [event] = events;
    assert(events.length === 1 && event?.type === 'error', JSON.stringify(events));
    assert.deepEqual([event.code, event.param, event.sequence_number], ['deadline_exceeded', null, 0]);
    assert.match(event.message, /./);
  } finally {
    process.kill(pid, 'SIGCONT');
    await slow.close();
  }
});
