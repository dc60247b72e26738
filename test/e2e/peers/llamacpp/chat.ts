/** llama.cpp's checks of chats (`test_chat_completion`). */
import assert from 'node:assert/strict';
import { CHAT, contentsOf, type Api, type Body, type ChatChunk, type ChatView } from '../api.ts';
import { answer, CONTEXT, messages, model, openPrompt } from '../samples.ts';
import type { Check, PeerSuite } from '../suite.ts';

const greedy = { messages, temperature: 0 };
/** Build of the server, as llama.cpp names its own. */
const BUILD = /^b[\da-z]/;

/** Defines the checks of `test_chat_completion`. */
export function chatChecks(suite: PeerSuite, api: Api): void {
  suite.group('llama.cpp/test_chat_completion', (check) => {
    answers(check, api);
    template(check, api);
    formats(check, api);
    invalid(check, api);
    logprobs(check, api);
    lengths(check, api);
  });
}

function answers(check: Check, api: Api): void {
  const wish = { ...greedy, model: null, max_tokens: 8 };
  for (const path of [CHAT, '/chat/completions']) {
    check(`POST ${path}`, async () => {
      const parts = [messages[0], { role: 'user', content: [{ type: 'text', text: messages[1]!.content }] }];
      for (const list of [messages, parts]) {
        const { id, choices, usage } = await api.answer<ChatView>(path, { ...wish, messages: list });
        assert.match(id, /cmpl/);
        const [{ message, finish_reason: finish }] = choices as [ChatView['choices'][number]];
        assert.deepEqual([message.role, finish, usage.completion_tokens], ['assistant', 'length', 8]);
        assert(message.content && answer.startsWith(message.content));
        const { count } = await api.answer<{ count: number }>('/tokenize', { messages });
        assert.equal(usage.prompt_tokens, count);
      }
    });
  }
  check('system_fingerprint present', async () => {
    const { system_fingerprint: print } = await api.chat(wish);
    assert.match(print ?? '', BUILD);
    const chunks = [...(await api.chatStream(wish)), ...(await api.completionStream({ prompt: openPrompt }))];
    for (const chunk of chunks) assert.equal(chunk.system_fingerprint, print);
  });
  check("stream shape: first chunk role + content null/''", async () => {
    const chunks = await api.chatStream(wish);
    const { finish_reason: wanted } = (await api.chat(wish)).choices[0]!;
    const [first, ...rest] = chunks.map(({ choices: [choice] }) => choice!);
    assert.deepEqual([first?.delta.role, first?.delta.content ?? ''], ['assistant', '']);
    for (const { delta } of rest) assert(!Object.hasOwn(delta, 'role'));
    for (const chunk of chunks) assert.deepEqual([chunk.id, chunk.model], [chunks[0]?.id, model]);
    const last = rest.pop();
    assert.equal(last?.finish_reason, wanted);
    assert(!Object.hasOwn(last.delta, 'content'));
    for (const { delta, finish_reason: finish } of rest)
      assert.deepEqual([finish, typeof delta.content], [null, 'string']);
  });
  check('unknown model name answered (gpt-3.5-turbo-instruct)', async () => {
    const { choices } = await api.chat({ ...wish, model: 'gpt-3.5-turbo-instruct' });
    assert.equal(choices[0]?.finish_reason, 'length');
  });
}

function template(check: Check, api: Api): void {
  check('assistant prefill (last message assistant)', async () => {
    const begun = answer.split(' ').slice(0, 3).join(' ');
    const prefilled = [...messages, { role: 'assistant', content: begun }];
    const { choices } = await api.chat({ ...greedy, messages: prefilled, continue_final_message: true });
    assert.equal(`${begun}${choices[0]?.message.content}`, answer);
    // Without the flag the list is rendered as any other.
    const { count } = await api.answer<{ count: number }>('/tokenize', { messages: prefilled });
    assert.equal((await api.chat({ ...greedy, messages: prefilled, max_tokens: 1 })).usage.prompt_tokens, count);
  });
  check('apply-template', async () => {
    const talk = [
      { role: 'system', content: 'You are a test.' },
      { role: 'user', content: 'Hi there' },
    ];
    const { prompt } = await api.answer<{ prompt: string }>('/apply-template', { messages: talk });
    const rendered =
      '<|im_start|>system\nYou are a test.<|im_end|>\n<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n';
    assert.equal(prompt.replace('<|endoftext|>', ''), rendered);
    const { tokens } = await api.answer<{ tokens: number[] }>('/tokenize', { messages: talk });
    assert.deepEqual(tokens, await api.tokens(prompt), 'the prompt is what a chat encodes');
  });
  check('timings_per_token', async () => {
    const wish = { ...greedy, max_tokens: 10, timings_per_token: true, stream_options: { include_usage: true } };
    const chunks = (await api.chatStream(wish)) as (ChatChunk & { timings?: Record<string, number> })[];
    const { choices, timings } = chunks.at(-1)!;
    assert.deepEqual(choices, []);
    assert(timings && typeof timings['prompt_per_second'] === 'number');
    assert.equal(timings['predicted_n'], 10);
  });
}

function formats(check: Check, api: Api): void {
  const ask = async (more: Body): Promise<string> => {
    const { choices } = await api.chat({ ...greedy, max_tokens: 20, ...more });
    return choices[0]?.message.content ?? '';
  };
  const format = (value: Body): Body => ({ response_format: value });
  const named = (value: object): string => `response_format ${JSON.stringify(value).replaceAll(/([:,])/g, '$1 ')}`;
  const constant = { type: 'json_object', schema: { const: '42' } };
  check(named(constant), async () => {
    assert.equal(await ask(format(constant)), '"42"');
  });
  const foo = { type: 'json_schema', json_schema: { schema: { const: 'foo' } } };
  check(named(foo), async () => {
    assert.equal(await ask(format(foo)), '"foo"');
  });
  const any = { type: 'json_object' };
  check(named(any), async () => {
    assert.match(await ask(format(any)), /^\{/);
  });
  for (const wrong of [
    { type: 'sound' },
    { type: 'json_object', schema: 123 },
    { type: 'json_object', schema: { type: 'hiccup' } },
  ]) {
    check(named(wrong), async () => {
      const { error } = await api.refused(CHAT, { ...greedy, ...format(wrong), max_tokens: 20 });
      assert.match(error.param ?? '', /^response_format/);
    });
  }
  check('json_schema', async () => {
    assert.equal(await ask({ json_schema: { const: '42' } }), '"42"');
  });
  check('grammar', async () => {
    assert.equal(await ask({ grammar: 'root ::= "a"{5,5}' }), 'aaaaa');
  });
}

function invalid(check: Check, api: Api): void {
  const lists: [string, unknown, string][] = [
    ['null', null, 'messages'],
    ['"string"', 'string', 'messages'],
    ['[123]', [123], 'messages.0'],
    ['[{}]', [{}], 'messages.0.role'],
    ['[{"role": 123}]', [{ role: 123 }], 'messages.0.role'],
    ['[{"role": "system", "content": 123}]', [{ role: 'system', content: 123 }], 'messages.0.content'],
    ['[{"role": "system", "content": "test"},', [{ role: 'system', content: 'test' }, {}], 'messages.1.role'],
    [
      '[{"role": "user", "content": "test"}, {"',
      ['user', 'assistant', 'assistant'].map((role) => ({ role, content: 'test' })),
      'messages',
    ],
  ];
  for (const [name, list, param] of lists) {
    check(`invalid messages ${name}`, async () => {
      const { error } = await api.refused(CHAT, { messages: list, max_tokens: 4 });
      assert.equal(error.param, param);
    });
  }
}

function logprobs(check: Check, api: Api): void {
  const wish = { ...greedy, max_tokens: 5, logprobs: true, top_logprobs: 10 };
  type Entries = NonNullable<ChatView['choices'][number]['logprobs']>['content'];
  const assertEntries = (entries: Entries, content: string | null | undefined): void => {
    assert.equal(entries.map(({ token }) => token).join(''), content);
    for (const { token, logprob, bytes, top_logprobs: top } of entries) {
      assert(logprob <= 0);
      assert.equal(Buffer.from(bytes ?? []).toString(), token);
      assert.equal(top.length, 10);
    }
  };
  check('logprobs: tokens concatenate, bytes, <=0', async () => {
    const { message, logprobs: list } = (await api.chat(wish)).choices[0]!;
    assert(list);
    assertEntries(list.content, message.content);
  });
  check('logprobs stream', async () => {
    const chunks = await api.chatStream(wish);
    const [, ...rest] = chunks.map(({ choices: [choice] }) => choice!);
    const entries = rest.flatMap(({ delta, logprobs: list, finish_reason: finish }) => {
      assert.equal(delta.role, undefined);
      if (finish === null) assert(list, 'a chunk with text has log-probabilities');
      return list?.content ?? [];
    });
    assertEntries(entries, contentsOf(chunks)[0]);
    assertEntries(entries, (await api.chat(wish)).choices[0]?.message.content);
  });
  check('logit_bias token ids -100', async () => {
    const plain = (await api.chat(greedy)).choices[0]!.message.content!;
    const words = ['flag', 'north', 'workshop'].filter((word) => plain.includes(word));
    assert(words.length > 0);
    const banned = await api.tokens(words.map((word) => ` ${word} ${word}`).join(''));
    const bias = Object.fromEntries(banned.map((id) => [String(id), -100]));
    const { content } = (await api.chat({ ...greedy, max_tokens: 64, logit_bias: bias })).choices[0]!.message;
    assert.notEqual(content, '');
    for (const word of words) assert(!content!.includes(` ${word}`), content!);
  });
}

function lengths(check: Check, api: Api): void {
  const long = { messages: Array.from({ length: 60 }, () => messages).flat() };
  const assertRefused = async (body: Body): Promise<void> => {
    const { error } = await api.refused(CHAT, body);
    assert.equal(error.code, 'context_length_exceeded');
    const [, length, numTokens] = /maximum context length is (\d+) .* you requested (\d+)/.exec(error.message) ?? [];
    assert.equal(Number(length), CONTEXT);
    assert(Number(numTokens) > CONTEXT);
  };
  check('context size exceeded 400', async () => {
    await assertRefused(long);
  });
  check('context size exceeded in stream: status 400', async () => {
    await assertRefused({ ...long, stream: true });
  });
}
