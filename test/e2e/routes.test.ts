/** Small routes, and keys of answers that peers have: aliases, the API's description, cut prompts, names of tokens. Budget: 20 s. */
import assert from 'node:assert/strict';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Cluster } from '../support/cluster.ts';
import { Api, CHAT, COMPLETIONS, type Body, type ChatView, type CompletionView } from './peers/api.ts';
import { CONTEXT, END, messages, model, openPrompt } from './peers/samples.ts';

let cluster: Cluster;
const api = new Api(() => cluster.url);
beforeAll(async () => {
  cluster = await Cluster.inProcess('--local-prefill-tokens', '48');
});
afterAll(async () => {
  await cluster.close();
});

describe('the description of the API', () => {
  interface Operation {
    readonly summary: string;
    readonly parameters?: { readonly name: string; readonly in: string; readonly schema: object }[];
    readonly requestBody?: { readonly content: Record<string, { readonly schema: object }> };
    readonly responses: Record<string, { readonly description: string; readonly content?: object }>;
  }
  interface Document {
    readonly openapi: string;
    readonly info: { readonly title: string; readonly version: string };
    readonly paths: Record<string, Record<string, Operation>>;
    readonly components: { readonly schemas: Record<string, object> };
  }
  const document = (): Promise<Document> => api.get<Document>('/openapi.json');

  test('it is valid, and every reference and parameter of a path leads somewhere', async () => {
    const { openapi, info, paths, components } = await document();
    assert.match(openapi, /^3\.1\.\d$/);
    assert(info.title !== '' && /^\d+\.\d+\.\d+/.test(info.version));
    const ajv = new Ajv2020({ strict: false });
    for (const [name, schema] of Object.entries(components.schemas))
      assert(ajv.validateSchema(schema), `${name}: ${ajv.errorsText()}`);
    const refs = [...JSON.stringify({ paths, components }).matchAll(/"\$ref":"([^"]*)"/g)].map(([, ref = '']) => ref);
    expect(refs.length).toBeGreaterThan(10);
    for (const ref of refs) assert(components.schemas[ref.replace('#/components/schemas/', '')], ref);
    for (const [path, operations] of Object.entries(paths)) {
      assert.match(path, /^\//);
      for (const [method, { summary, parameters = [], requestBody, responses }] of Object.entries(operations)) {
        assert.match(method, /^(get|post|delete)$/);
        assert(summary !== path && summary !== '', `${path} has a summary`);
        assert(responses['200']?.description);
        assert.equal(
          requestBody !== undefined,
          method === 'post' && !['/ping', '/dashboard/login', '/dashboard/logout'].includes(path),
          `${path} has a body`,
        );
        const named = parameters.filter((one) => one.in === 'path').map(({ name }) => `{${name}}`);
        assert.deepEqual(path.match(/\{\w+\}/g) ?? [], named);
        for (const { schema } of parameters) assert(ajv.validateSchema(schema));
      }
    }
  });

  test('it names every route with its methods, as the error of an unknown path does', async () => {
    const { paths } = await document();
    const { error } = await api.refused('/v1/nothing', {}, 404);
    const listed = error.message.slice(error.message.indexOf('there are ') + 'there are '.length).split(', ');
    expect(listed.length).toBeGreaterThan(20);
    for (const one of listed) {
      const [methods = '', path = ''] = one.split(/ (?=\/)/);
      const described = Object.keys(paths[path.replace('*', '{model}')] ?? {}).map((method) => method.toUpperCase());
      assert.deepEqual(described.sort(), methods.split(' and ').sort(), one);
    }
    assert.equal(Object.keys(paths).length, listed.length + 1, 'the page at / is not in the list');
  });

  test('a stored answer has a path with its id, and other methods of it are refused by those that are there', async () => {
    const { paths } = await document();
    assert.deepEqual(Object.keys(paths['/v1/responses/{id}'] ?? {}).sort(), ['delete', 'get']);
    const response = await api.fetch('/v1/responses/resp_1', { method: 'PUT' });
    assert.deepEqual([response.status, response.headers.get('allow')], [405, 'GET, HEAD, DELETE']);
  });

  test('its schemas accept what the server accepts, and refuse what it refuses', async () => {
    const { paths, components } = await document();
    const ajv = new Ajv2020({ strict: false });
    ajv.addSchema({ $id: 'api', components });
    const schemaOf = (path: string): object => {
      const { schema } = paths[path]!['post']!.requestBody!.content['application/json']!;
      return JSON.parse(JSON.stringify(schema).replaceAll('"#/', '"api#/')) as object;
    };
    const good: [string, Body][] = [
      [
        CHAT,
        { model, messages, max_tokens: 1, seed: 5, stop: ['x'], logit_bias: { 5: 1 }, truncate_prompt_tokens: -1 },
      ],
      [CHAT, { messages: [{ role: 'user', content: [{ type: 'text', text: 'a' }] }], max_tokens: 1, user: 'u', n: 2 }],
      [COMPLETIONS, { prompt: ['a', [1, 2]], max_tokens: 1, logprobs: 1, echo: true, use_beam_search: false }],
      ['/invocations', { prompt: [1, 2], max_tokens: 1 }],
      ['/tokenize', { messages, add_special_tokens: true }],
      ['/detokenize', { tokens: [1, 2, 3] }],
      ['/apply-template', { messages }],
      ['/v1/embeddings', { input: ['a', [1, 2]] }],
      ['/v1/responses', { input: messages, max_output_tokens: 1, tools: [{ type: 'web_search' }], background: false }],
      ['/v1/responses', { input: 'a', max_output_tokens: 1, text: { format: { type: 'text' } }, store: false }],
    ];
    for (const [path, body] of good) {
      assert(ajv.validate(schemaOf(path), body), `${path}: ${ajv.errorsText()}`);
      const response = await api.post(path, body);
      assert.equal(response.status, 200, await response.text());
    }
    const bad: [string, Body][] = [
      [CHAT, { messages: [] }],
      [CHAT, { messages: [{ content: 'x' }] }],
      [CHAT, { messages, temperature: 3 }],
      [CHAT, { messages, logit_bias: { 5: 200 } }],
      [CHAT, { messages, use_beam_search: true }],
      [COMPLETIONS, { prompt: 7 }],
      [COMPLETIONS, { prompt: 'a', n: 0 }],
      [COMPLETIONS, { prompt: 'a', truncation_side: 'top' }],
      ['/detokenize', { tokens: ['a'] }],
      ['/v1/embeddings', { input: 7 }],
      ['/v1/responses', { input: 7 }],
      ['/v1/responses', { input: 'a', background: true }],
      ['/v1/responses', { input: [{ type: 'computer_call' }] }],
    ];
    for (const [path, body] of bad) {
      assert(!ajv.validate(schemaOf(path), body), `${path}: ${JSON.stringify(body)}`);
      await api.refused(path, body);
    }
  });
});

describe('aliases', () => {
  const sampled = { model, temperature: 1.5, seed: 3, max_tokens: 8 };
  test('paths without /v1, and /invocations, answer as OpenAI’s paths do, streams too', async () => {
    const chat = { ...sampled, messages };
    const completion = { ...sampled, prompt: [openPrompt, 'Nadia likes'] };
    const { choices } = await api.chat(chat);
    for (const path of ['/chat/completions', '/invocations'])
      assert.deepEqual((await api.answer<ChatView>(path, chat)).choices, choices);
    const { choices: texts } = await api.complete(completion);
    for (const path of ['/completions', '/invocations']) {
      assert.deepEqual((await api.answer<CompletionView>(path, completion)).choices, texts);
      const streamed = ['', ''];
      for (const {
        choices: [one],
      } of await api.events<CompletionView>(path, completion))
        streamed[one!.index] = `${streamed[one!.index]}${one!.text}`;
      assert.deepEqual(
        streamed,
        texts.map(({ text }) => text),
      );
    }
  });

  test('a model, also by the path without /v1; one that is not served; a wrong method', async () => {
    assert.deepEqual(await api.get(`/models/${model}`), await api.get(`/v1/models/${model}`));
    for (const path of ['/models/other', '/v1/models/other/one']) assert.equal((await api.fetch(path)).status, 404);
    assert.equal((await api.fetch(`/models/${model}`, { method: 'POST' })).status, 405);
    await api.refused('/apply-template', { model: 'other', messages }, 404);
    assert.equal((await api.fetch('/tokenizer_info?model=other')).status, 404);
    assert.deepEqual(await api.get(`/tokenizer_info?model=${model}`), await api.get('/tokenizer_info'));
  });

  test('large bodies of /invocations, and ones of neither kind', async () => {
    const ids = Array.from({ length: 1_500 }, (_, i) => 3 + (i % 1_000));
    const wish = { model, prompt: ids, max_tokens: 2, temperature: 0, user: 'x'.repeat(40_000) };
    const { usage } = await api.answer<CompletionView>('/invocations', wish);
    assert.equal(usage.prompt_tokens, 1_500);
    const { error } = await api.refused('/invocations', { model, input: 'Hello' });
    assert.match(error.message, /neither messages.*nor prompt/);
  });
});

describe('prompts that are cut', () => {
  const wish = { model, messages, temperature: 0, max_tokens: 4, return_token_ids: true };
  test('a chat keeps its last tokens, or its first', async () => {
    const { prompt_token_ids: whole } = await api.chat(wish);
    const ids = async (more: object): Promise<unknown> => (await api.chat({ ...wish, ...more })).prompt_token_ids;
    assert.deepEqual(await ids({ truncate_prompt_tokens: 20 }), whole?.slice(-20));
    assert.deepEqual(await ids({ truncate_prompt_tokens: 20, truncation_side: 'right' }), whole?.slice(0, 20));
    assert.deepEqual(await ids({ truncate_prompt_tokens: 1_000 }), whole);
  });

  test('-1 makes any prompt fit: text and ids, also more of either than could fit; the output is the cut prompt’s', async () => {
    const long = 'Nadia likes figs. '.repeat(6_000);
    const { choices, usage } = await api.complete({
      model,
      prompt: long,
      temperature: 0,
      max_tokens: 8,
      truncate_prompt_tokens: -1,
      return_token_ids: true,
    });
    assert.equal(usage.prompt_tokens, CONTEXT - 8);
    const kept = choices[0]?.prompt_token_ids;
    assert(kept && long.endsWith(await api.text(kept.slice(-40))));
    const again = await api.complete({ model, prompt: kept, temperature: 0, max_tokens: 8 });
    assert.equal(again.choices[0]?.text, choices[0]?.text);
    const ids = Array.from({ length: 5_000 }, (_, i) => 3 + (i % 1_000));
    const ofIds = await api.complete({ model, prompt: ids, truncate_prompt_tokens: -1, return_token_ids: true });
    assert.deepEqual(ofIds.choices[0]?.prompt_token_ids, ids.slice(-(CONTEXT - 16)));
    const talk = [{ role: 'user', content: 'water '.repeat(3_000) }];
    const chat = await api.chat({ model, messages: talk, max_tokens: 5, truncate_prompt_tokens: -1 });
    assert.equal(chat.usage.prompt_tokens, CONTEXT - 5);
    await api.refused(CHAT, { model, messages: talk, max_tokens: 5 });
  });

  test('each prompt is cut, and echoed as far as it is left, with its log-probabilities', async () => {
    const prompt = [openPrompt, [5, 6, 7, 8, 9]];
    const { choices } = await api.complete({
      model,
      prompt,
      max_tokens: 1,
      temperature: 0,
      truncate_prompt_tokens: 3,
      echo: true,
      logprobs: 0,
      return_token_ids: true,
    });
    const want = [(await api.tokens(openPrompt)).slice(-3), [7, 8, 9]];
    for (const [i, { text, prompt_token_ids: ids, logprobs }] of choices.entries()) {
      assert.deepEqual(ids, want[i]);
      assert(text.startsWith(await api.text(want[i]!)));
      assert.equal(logprobs?.tokens.length, 4);
      assert.equal(logprobs.tokens.join(''), text);
    }
  });
});

test('tokens named by their ids, in a chat and its stream', async () => {
  const wish = { model, messages, temperature: 0, logprobs: true, top_logprobs: 2 };
  const more = { return_token_ids: true, return_tokens_as_token_ids: true };
  const { logprobs, token_ids: ids } = (await api.chat({ ...wish, ...more })).choices[0]!;
  const plain = (await api.chat(wish)).choices[0]!.logprobs!;
  assert(logprobs && ids);
  assert.deepEqual(
    logprobs.content.map(({ token }) => token),
    ids.map((id) => `token_id:${id}`),
  );
  assert.deepEqual(
    logprobs.content.map(({ logprob, bytes }) => [logprob, bytes]),
    plain.content.map(({ logprob, bytes }) => [logprob, bytes]),
  );
  for (const { top_logprobs: top } of logprobs.content)
    for (const { token } of top) assert.match(token, /^token_id:\d+$/);
  const chunks = await api.chatStream({ ...wish, ...more });
  assert.deepEqual(
    chunks.flatMap(({ choices }) => choices[0]?.logprobs?.content ?? []),
    logprobs.content,
  );
});

test('what ended a choice: a text, a token of the request, an end token; nothing when it was the length', async () => {
  const wish = { model, prompt: openPrompt, temperature: 0, max_tokens: 12, return_token_ids: true };
  const ends = async (more: object): Promise<unknown[]> => {
    const {
      finish_reason: finish,
      stop_reason: reason,
      matched_stop: matched,
    } = (await api.complete({ ...wish, ...more })).choices[0]!;
    const last = (await api.completionStream({ ...wish, ...more })).at(-1)!.choices[0]!;
    assert.deepEqual([last.finish_reason, last.stop_reason, last.matched_stop], [finish, reason, matched]);
    return [finish, reason, matched];
  };
  const { token_ids: ids } = (await api.complete(wish)).choices[0]!;
  assert.deepEqual(await ends({}), ['length', null, null]);
  assert.deepEqual(await ends({ stop: ['zzz', ':'] }), ['stop', ':', ':']);
  assert.deepEqual(await ends({ stop_token_ids: [ids![3]] }), ['stop', ids![3], ids![3]]);
  const bias = { logit_bias: { [String(END.id)]: 100 } };
  assert.deepEqual(await ends(bias), ['stop', null, END.id]);
  // Each of several samples has its own.
  const chat = await api.chat({ model, messages, temperature: 2, n: 4, max_tokens: 12, seed: 1 });
  for (const { finish_reason: finish, matched_stop: matched } of chat.choices)
    assert.equal(matched, finish === 'length' ? null : END.id);
});

test('the fingerprint is that of the model’s format and of this version, in every answer and chunk', async () => {
  const { system_fingerprint: print } = await api.chat({ messages, max_tokens: 1 });
  const { version } = await api.get<{ version: string }>('/version');
  assert.match(print ?? '', new RegExp(`^b[0-9a-f]{12}-${version}$`));
  const chunks = [
    ...(await api.completionStream({ prompt: openPrompt })),
    ...(await api.chatStream({ messages, max_tokens: 2, seed: 1, stream_options: { include_usage: true } })),
    await api.complete({ prompt: [5, 6], max_tokens: 1 }),
  ];
  for (const { system_fingerprint: own } of chunks) assert.equal(own, print);
});
