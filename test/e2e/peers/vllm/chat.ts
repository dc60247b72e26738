/** vLLM's checks of `/v1/chat/completions`: log-probabilities, streams, structured output, samples (`chat/test_chat`). */
import assert from 'node:assert/strict';
import { Ajv } from 'ajv';
import { assertUsage, assertUsageChunks, CHAT, contentsOf, type Api, type Body, type ChatView } from '../api.ts';
import { answer, messages, model } from '../samples.ts';
import type { Check, PeerSuite } from '../suite.ts';

const greedy = { model, messages, temperature: 0 };

/** Defines the checks of `chat/test_chat`. */
export function chatChecks(suite: PeerSuite, api: Api): void {
  suite.group('chat/test_chat', (check) => {
    logprobs(check, api);
    turns(check, api);
    streamOptions(check, api);
    structuredOutputs(check, api);
    responseFormats(check, api);
    forms(check, api);
    samples(check, api);
  });
}

function logprobs(check: Check, api: Api): void {
  const short = { ...greedy, max_completion_tokens: 5 };
  check('no_logprobs', async () => {
    const { choices } = await api.chat({ ...short, logprobs: false });
    assert.equal(choices[0]?.logprobs, null);
  });
  for (const [name, numTop] of [
    ['zero_logprobs', 0],
    ['some_logprobs', 5],
  ] as const) {
    check(name, async () => {
      const { choices } = await api.chat({ ...short, logprobs: true, top_logprobs: numTop });
      const content = choices[0]?.logprobs?.content;
      assert.equal(content?.length, 5);
      for (const { token, logprob, top_logprobs: top } of content) {
        assert.equal(top.length, numTop);
        if (numTop > 0) assert.deepEqual([top[0]?.token, top[0]?.logprob], [token, logprob], 'greedy takes the best');
      }
    });
  }
  check('too_many_logprobs stream+not', async () => {
    for (const more of [
      { stream: true, top_logprobs: 21 },
      { stream: false, top_logprobs: 30 },
    ]) {
      const { error } = await api.refused(CHAT, { ...short, logprobs: true, ...more });
      assert.equal(error.param, 'top_logprobs');
    }
    const { choices } = await api.chat({ ...short, max_completion_tokens: 10 });
    assert(choices[0]?.message.content);
  });
  const talk = [...messages, { role: 'assistant', content: answer }, { role: 'user', content: 'Where was it kept?' }];
  for (const numTop of [1, 0]) {
    check(`prompt_logprobs ${numTop}`, async () => {
      const wish = { model, messages: talk, temperature: 0, return_token_ids: true, prompt_logprobs: numTop };
      const { prompt_logprobs: list, prompt_token_ids: ids, choices } = await api.chat(wish);
      assert(list && ids);
      assert.equal(list.length, ids.length);
      assert.equal(list[0], null);
      for (const [i, one] of list.slice(1).entries()) {
        assert(one?.[String(ids[i + 1])], `token ${i + 1} is among its alternatives`);
        assert(Object.keys(one).length >= Math.max(1, numTop) && Object.keys(one).length <= numTop + 1);
      }
      assert(!Object.hasOwn(choices[0]!, 'prompt_logprobs'), 'they stand next to the choices');
    });
  }
  check('prompt_logprobs None', async () => {
    const all = await api.chat({ model, messages: talk, temperature: 0 });
    assert(Object.hasOwn(all, 'prompt_logprobs'));
    assert.equal(all.prompt_logprobs, null);
  });
  check('prompt_logprobs -1 refused', async () => {
    const { error } = await api.refused(CHAT, { model, messages: talk, prompt_logprobs: -1 });
    assert.equal(error.param, 'prompt_logprobs');
  });
}

function turns(check: Check, api: Api): void {
  const first = { model, messages, max_completion_tokens: 5, logprobs: true, top_logprobs: 5 };
  check('single_chat_session', async () => {
    const { id, choices, usage } = await api.chat(first);
    assert(id !== '');
    assert.equal(choices.length, 1);
    const [{ message, finish_reason: finish }] = choices as [ChatView['choices'][number]];
    assert.deepEqual([message.role, finish], ['assistant', 'length']);
    assert((message.content ?? '').length >= 5);
    assertUsage(usage);
    const { prompt_tokens: prompt } = usage;
    assert.deepEqual(usage, { prompt_tokens: prompt, completion_tokens: 5, total_tokens: prompt + 5 });
  });
  check('multi-turn', async () => {
    const { message } = (await api.chat(first)).choices[0]!;
    const question = { role: 'user', content: 'Who keeps the sealed flag?' };
    const next = await api.chat({ model, messages: [...messages, message, question], max_completion_tokens: 5 });
    assert.equal(typeof next.choices[0]?.message.content, 'string');
    assert(next.usage.prompt_tokens > (await api.chat(first)).usage.prompt_tokens + 5, 'the answer is in the prompt');
  });
  check('chat_streaming', async () => {
    const wish = { ...greedy, max_completion_tokens: 10 };
    const whole = (await api.chat(wish)).choices[0]!;
    const chunks = await api.chatStream(wish);
    for (const { choices } of chunks) {
      assert.equal(choices.length, 1);
      assert.equal(choices[0]?.delta.role ?? 'assistant', 'assistant');
    }
    const finishes = chunks.map(({ choices }) => choices[0]?.finish_reason ?? null);
    assert.deepEqual(finishes, [...finishes.slice(0, -1).fill(null), whole.finish_reason]);
    assert.deepEqual(contentsOf(chunks), [whole.message.content]);
    assert(chunks.at(-1)?.choices[0]?.delta.content, 'the last text comes with the finish reason');
  });
}

function streamOptions(check: Check, api: Api): void {
  const wish = { ...greedy, max_completion_tokens: 10 };
  const streamed = async (options: object, where: 'none' | 'last' | 'all', more: Body = {}): Promise<number> => {
    const chunks = await api.chatStream({ ...wish, ...more, stream_options: options });
    assertUsageChunks(chunks, where);
    const counts = chunks.flatMap(({ usage }) => (usage ? [usage.completion_tokens] : []));
    assert.deepEqual(
      counts,
      [...counts].sort((a, b) => a - b),
    );
    return counts.at(-1) ?? 0;
  };
  check('stream_options include_usage False', async () => {
    await streamed({ include_usage: false }, 'none');
  });
  check('stream_options usage True, continuous False', async () => {
    await streamed({ include_usage: true, continuous_usage_stats: false }, 'last');
  });
  check('stream_options usage True alone', async () => {
    await streamed({ include_usage: true }, 'last');
  });
  for (const [name, include] of [
    ['None', null],
    ['True', true],
  ] as const) {
    check(`stream False + stream_options refused (${name})`, async () => {
      const { error } = await api.refused(CHAT, { ...wish, stream: false, stream_options: { include_usage: include } });
      assert.equal(error.param, 'stream_options');
    });
  }
  check('continuous_usage_stats True', async () => {
    const options = { include_usage: true, continuous_usage_stats: true };
    assert.equal(await streamed(options, 'all', { min_tokens: 10 }), 10);
  });
  check('stream_options {}', async () => {
    await streamed({}, 'none');
  });
}

const languages = ['Python', 'Java', 'JavaScript', 'C++', 'C#', 'PHP', 'TypeScript', 'Ruby', 'Swift', 'Kotlin'];
const address = String.raw`((25[0-5]|(2[0-4]|1\d|[1-9]|)\d)\.){3}(25[0-5]|(2[0-4]|1\d|[1-9]|)\d)`;
/** A record of a person, bounded, so that the demo model closes it. */
const person = {
  type: 'object',
  properties: {
    name: { type: 'string', maxLength: 10 },
    age: { type: 'integer', minimum: 0, maximum: 150 },
    skills: { type: 'array', items: { type: 'string', maxLength: 10 }, minItems: 3, maxItems: 4 },
    work_history: {
      type: 'array',
      maxItems: 1,
      items: {
        type: 'object',
        properties: {
          company: { type: 'string', maxLength: 10 },
          duration: { type: 'integer', minimum: 0, maximum: 99 },
          position: { type: 'string', maxLength: 10 },
        },
        required: ['company', 'position'],
        additionalProperties: false,
      },
    },
  },
  required: ['name', 'age', 'skills', 'work_history'],
  additionalProperties: false,
};

function structuredOutputs(check: Check, api: Api): void {
  /** Asks with six seeds, which do not all give the same answer; a later turn repeats the first one. */
  const contents = async (wish: Body): Promise<string[]> => {
    const all: string[] = [];
    for (let seed = 0; seed < 6; seed++) {
      const earlier =
        all.length > 0
          ? [
              { role: 'assistant', content: all[0] },
              { role: 'user', content: 'Another.' },
            ]
          : [];
      const { choices } = await api.chat({ model, messages: [...messages, ...earlier], temperature: 2, seed, ...wish });
      assert.equal(choices[0]?.finish_reason, 'stop');
      all.push(choices[0].message.content ?? '');
    }
    assert(new Set(all).size > 1, `different seeds answer differently: ${all.join(' ')}`);
    return all;
  };
  check('structured_outputs choice', async () => {
    const wish = { max_completion_tokens: 20, structured_outputs: { choice: languages } };
    for (const content of await contents(wish)) assert(languages.includes(content), content);
  });
  check('structured_outputs json', async () => {
    const isPerson = new Ajv().compile(person);
    for (const content of await contents({ max_completion_tokens: 1_000, structured_outputs: { json: person } }))
      assert(isPerson(JSON.parse(content)), content);
  });
  check('structured_outputs regex', async () => {
    const whole = new RegExp(`^${address}$`);
    for (const content of await contents({ max_completion_tokens: 20, structured_outputs: { regex: address } }))
      assert.match(content, whole);
  });
  check('structured_outputs type_error refused', async () => {
    const { error } = await api.refused(CHAT, { ...greedy, structured_outputs: { regex: { 1: 'Python', 2: 'C++' } } });
    assert.match(error.param ?? '', /^structured_outputs/);
  });
  check('structured_outputs choice logprobs', async () => {
    const { choices } = await api.chat({
      ...greedy,
      max_completion_tokens: 20,
      logprobs: true,
      top_logprobs: 5,
      structured_outputs: { choice: languages },
    });
    const { message, logprobs: list } = choices[0]!;
    assert(languages.includes(message.content ?? ''));
    assert(list && list.content.length > 0);
    for (const { logprob, top_logprobs: top } of list.content)
      for (const one of [logprob, ...top.map((other) => other.logprob)])
        assert(typeof one === 'number' && one >= -9_999 && one <= 0, `${one}`);
  });
}

function responseFormats(check: Check, api: Api): void {
  const parsed = (text: string | null | undefined): unknown => {
    try {
      return JSON.parse(text ?? '');
    } catch {
      return undefined;
    }
  };
  const ask = async (more: Body): Promise<string> =>
    (await api.chat({ ...greedy, max_completion_tokens: 60, ...more })).choices[0]?.message.content ?? '';
  check('response_format json_object', async () => {
    // The bias closes the object as soon as it may be closed, which the demo model seldom does by itself.
    const [brace] = await api.tokens('}');
    const content = await ask({ response_format: { type: 'json_object' }, logit_bias: { [String(brace)]: 100 } });
    const value = parsed(content);
    assert(typeof value === 'object' && value !== null && !Array.isArray(value), content);
  });
  check('response_format json_schema', async () => {
    const result = { type: 'integer', minimum: 0, maximum: 9 };
    const schema = { type: 'object', properties: { result }, required: ['result'], additionalProperties: false };
    assert.equal(parsed(await ask({})), undefined, 'the model writes no JSON by itself');
    const format = { type: 'json_schema', json_schema: { name: 'foo_test', schema } };
    const [first, second] = [await ask({ response_format: format }), await ask({ response_format: format })];
    assert.match(first, /^\{\s?"result":\s?\d\s?\}$/);
    assert.equal(second, first);
  });
  check('response_format text', async () => {
    assert.equal(await ask({ response_format: { type: 'text' } }), answer);
  });
}

function forms(check: Check, api: Api): void {
  const [system, question] = messages as [(typeof messages)[number], (typeof messages)[number]];
  const exact = { model, temperature: 0, seed: 0 };
  check('extra_fields_allowed (in a message)', async () => {
    const { choices } = await api.chat({ ...exact, messages: [system, { ...question, extra_field: '0' }] });
    assert.equal(choices[0]?.message.content, answer);
  });
  check('complex_message_content', async () => {
    const parts = [{ type: 'text', text: question.content }];
    const { choices } = await api.chat({ ...exact, messages: [system, { role: 'user', content: parts }] });
    assert.equal(choices[0]?.message.content, answer);
  });
  check('custom_role', async () => {
    const role = 'my-custom-role';
    const [text, parts] = [question.content, [{ type: 'text', text: question.content }]];
    const plain = await api.chat({ ...exact, messages: [system, { role, content: text }] });
    const complex = await api.chat({ ...exact, messages: [system, { role, content: parts }] });
    assert(plain.choices[0]?.message.content);
    assert.equal(complex.choices[0]?.message.content, plain.choices[0].message.content);
    assert.equal(complex.usage.prompt_tokens, plain.usage.prompt_tokens);
  });
  check('long_seed refused 400', async () => {
    for (const seed of ['-9223372036854775809', '9223372036854775808']) {
      const body = JSON.stringify({ model, messages, temperature: 0 }).replace('{', `{"seed":${seed},`);
      const { error } = await api.refused(CHAT, body);
      assert.equal(error.param, 'seed');
      assert.match(error.message, /greater_than_equal|less_than_equal/);
    }
  });
  for (const [name, seed] of [
    ['seed 2**63-1 accepted (vLLM bound)', '9223372036854775807'],
    ['seed negative accepted', '-5'],
  ] as const) {
    check(name, async () => {
      const body = JSON.stringify({ ...greedy, temperature: 2, max_tokens: 8 }).replace('{', `{"seed":${seed},`);
      const ask = async (): Promise<unknown> =>
        ((await (await api.post(CHAT, body)).json()) as ChatView).choices[0]?.message.content;
      const content = await ask();
      assert.equal(typeof content, 'string');
      assert.equal(await ask(), content, 'a seed is a run');
    });
  }
  check('invocations', async () => {
    const wish = { ...greedy, max_completion_tokens: 5, logprobs: false };
    const chat = await api.chat(wish);
    const invoked = await api.answer<ChatView>('/invocations', wish);
    assert.deepEqual(Object.keys(invoked).sort(), Object.keys(chat).sort());
    assert.deepEqual(invoked.choices, chat.choices);
    // The Python client's model_dump() has these keys whether or not they are in the answer.
    for (const key of ['id', 'choices', 'created', 'model', 'object', 'service_tier', 'system_fingerprint', 'usage'])
      assert(Object.hasOwn(invoked, key), key);
    for (const key of ['content', 'refusal', 'role', 'annotations', 'audio', 'function_call', 'tool_calls'])
      assert(Object.hasOwn(invoked.choices[0]!.message, key), `message.${key}`);
  });
}

function samples(check: Check, api: Api): void {
  const indexed = ({ choices }: ChatView, numChoices: number): string[] => {
    assert.deepEqual(
      choices.map(({ index }) => index),
      Array.from({ length: numChoices }, (_, i) => i),
    );
    return choices.map(({ message }) => message.content ?? '');
  };
  const wish = { model, messages, temperature: 2, max_completion_tokens: 20 };
  check('n=3', async () => {
    const contents = indexed(await api.chat({ ...wish, n: 3, seed: 42 }), 3);
    for (const content of contents) assert(content !== '');
    assert(new Set(contents).size > 1, 'each choice has random numbers of its own');
  });
  check('n=2 streaming', async () => {
    const contents = contentsOf(await api.chatStream({ ...wish, n: 2, seed: 42 }), 2);
    assert.deepEqual(contents, indexed(await api.chat({ ...wish, n: 2, seed: 42 }), 2));
    for (const content of contents) assert(content !== '');
  });
  check('n=2 seed', async () => {
    const ask = async (): Promise<string[]> => indexed(await api.chat({ ...wish, n: 2, seed: 43 }), 2);
    const contents = await ask();
    for (const content of contents) assert(content !== '');
    assert.deepEqual(await ask(), contents);
  });
  check('n=1', async () => {
    const [content] = indexed(await api.chat({ ...greedy, n: 1, max_completion_tokens: 20 }), 1);
    assert.equal(content, answer);
  });
}
