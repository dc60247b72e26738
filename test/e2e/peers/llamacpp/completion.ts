/** llama.cpp's checks of completions, of its own routes, and of the server around them. */
import assert from 'node:assert/strict';
import { gzipSync } from 'node:zlib';
import OpenAI from 'openai';
import { Cluster } from '../../../support/cluster.ts';
import { CHAT, COMPLETIONS, textsOf, type Api, type CompletionView } from '../api.ts';
import { messages, model, openPrompt } from '../samples.ts';
import type { Check, PeerSuite } from '../suite.ts';

/** A page of another origin, which the cluster is started to allow. */
export const PAGE = 'https://page.example';

/** Defines the checks of `test_completion`, as far as they can be asked of OpenAI's endpoint, and of native routes. */
export function completionChecks(suite: PeerSuite, api: Api, url: () => string): void {
  suite.group('llama.cpp/test_completion(OAI part)', (check) => {
    library(check, url);
    seeds(check, api);
    tokens(check, api);
    nativeRoutes(check, api);
  });
}

function library(check: Check, url: () => string): void {
  check('openai library', async () => {
    const client = new OpenAI({ baseURL: `${url()}/v1`, apiKey: 'none', maxRetries: 0 });
    const wish = { model, prompt: 'I believe the meaning of life is', max_tokens: 8, temperature: 0 };
    const { choices } = await client.completions.create(wish);
    assert.equal(choices[0]?.finish_reason, 'length');
    let text = '';
    for await (const chunk of await client.completions.create({ ...wish, stream: true })) {
      assert.equal(chunk.choices.length, 1);
      text += chunk.choices[0]!.text;
    }
    assert.notEqual(text, '');
    assert.equal(text, choices[0].text);
  });
}

function seeds(check: Check, api: Api): void {
  const wish = { model, prompt: openPrompt, max_tokens: 16, temperature: 2 };
  const textWith = async (seed: number): Promise<string> => (await api.complete({ ...wish, seed })).choices[0]!.text;
  check('stream vs non stream', async () => {
    const chunks = await api.completionStream({ ...wish, seed: 42 });
    assert.deepEqual(textsOf(chunks), [await textWith(42)]);
  });
  check('same seed same', async () => {
    const all = await Promise.all([42, 42, 42, 42].map(textWith));
    assert.equal(new Set(all).size, 1);
  });
  check('different seed different', async () => {
    const all = await Promise.all([0, 1, 2, 3].map(textWith));
    assert.equal(new Set(all).size, 4);
  });
  check('parallel 6', async () => {
    const all = await Promise.all(Array.from({ length: 6 }, (_, i) => textWith(100 + i)));
    for (const [i, text] of all.entries()) {
      assert(text.length > 10);
      assert.equal(await textWith(100 + i), text, 'a request among others is answered as alone');
    }
  });
}

function tokens(check: Check, api: Api): void {
  const wish = { model, max_tokens: 8, temperature: 0 };
  const textsFor = async (prompt: unknown): Promise<string[]> =>
    (await api.complete({ ...wish, prompt })).choices.map(({ text }) => text);
  check('tokens input, batch of tokens equal', async () => {
    const ids = await api.tokens(openPrompt);
    const [text] = await textsFor(openPrompt);
    assert.deepEqual(await textsFor(ids), [text]);
    assert.deepEqual(await textsFor([ids, ids]), [text, text]);
  });
  check('mixed string+tokens', async () => {
    const [text] = await textsFor(openPrompt);
    assert.deepEqual(await textsFor([await api.tokens(openPrompt), openPrompt]), [text, text]);
  });
}

function nativeRoutes(check: Check, api: Api): void {
  const native = (path: string, body: () => Promise<void>): void => {
    check(`native endpoint ${path}`, body);
  };
  native('/completion', async () => {
    const { content, tokens: ids } = await api.answer<{ content: string; tokens: number[] }>('/completion', {
      prompt: openPrompt,
      n_predict: 8,
      return_tokens: true,
    });
    assert.equal(await api.text(ids), content);
  });
  native('/slots', async () => {
    const slots = await api.get<{ is_processing: boolean }[]>('/slots');
    for (const { is_processing: isProcessing } of slots) assert.equal(isProcessing, false);
  });
  native('/props', async () => {
    const { total_slots: numSlots } = await api.get<{ total_slots: number }>('/props');
    assert(numSlots >= 1);
  });
  native('/infill', async () => {
    const wish = { input_prefix: 'The Heron came', prompt: '', input_suffix: 'of oil.', n_predict: 8 };
    assert.equal(typeof (await api.answer<{ content: unknown }>('/infill', wish)).content, 'string');
  });
  native('/embedding', async () => {
    const [first] = await api.answer<{ embedding: number[][] }[]>('/embedding', { content: 'Nadia likes figs.' });
    assert(first && first.embedding[0]!.length > 1);
  });
  native('/v1/messages', async () => {
    const wish = { model, max_tokens: 50, messages: [messages[1]], system: messages[0]!.content, temperature: 0 };
    const {
      type,
      role,
      content,
      stop_reason: reason,
      usage,
    } = await api.answer<{
      type: string;
      role: string;
      content: { type: string; text: string }[];
      stop_reason: string;
      usage: { input_tokens: number; cache_read_input_tokens: number; output_tokens: number };
    }>('/v1/messages', wish);
    assert.deepEqual([type, role, content[0]?.type], ['message', 'assistant', 'text']);
    const chat = await api.chat({ messages, temperature: 0, max_tokens: 50 });
    assert.equal(content[0]?.text, chat.choices[0]?.message.content);
    assert.equal(reason, 'end_turn');
    // Anthropic's API counts what was read from a cache apart.
    assert.deepEqual(
      [usage.input_tokens + usage.cache_read_input_tokens, usage.output_tokens],
      [chat.usage.prompt_tokens, chat.usage.completion_tokens],
    );
  });
  native('/v1/health', async () => {
    assert.equal((await api.get<{ status: string }>('/v1/health')).status, 'ok');
  });
  native('/models', async () => {
    assert.deepEqual(await api.get('/models'), await api.get('/v1/models'));
  });
}

/** Defines the checks of `test_security`, `test_tokenize` and `test_basic`. */
export function serverChecks(suite: PeerSuite, api: Api): void {
  suite.group('llama.cpp/test_security', (check) => {
    security(check, api);
  });
  suite.group('llama.cpp/test_tokenize', (check) => {
    const text = 'What is the capital of France ?';
    check('tokenize detokenize round trip (vLLM field names)', async () => {
      const { tokens: ids } = await api.answer<{ tokens: number[] }>('/tokenize', { prompt: text });
      assert(ids.length > 5);
      assert.deepEqual(await api.answer('/detokenize', { tokens: ids }), { prompt: text });
    });
    check('tokenize content/with_pieces', async () => {
      const { tokens: pieces } = await api.answer<{ tokens: { id: number; piece: string | number[] }[] }>('/tokenize', {
        content: 'This is a test 媽 🤗',
        with_pieces: true,
      });
      for (const { id, piece } of pieces) assert(id > 0 && piece.length > 0);
    });
  });
  suite.group('llama.cpp/test_basic', (check) => {
    basics(check, api);
  });
}

function security(check: Check, api: Api): void {
  check('public /health', async () => {
    const health = await api.get<{ status: string; error?: unknown }>('/health');
    assert.deepEqual([health.status, health.error], ['ok', undefined]);
  });
  check('api key enforced (no option exists)', async () => {
    const closed = await Cluster.up('--prefill', '0', '--store', '0', '--api-key', 'secret');
    try {
      const own = new (api.constructor as typeof Api)(() => closed.url);
      const wish = { model, prompt: openPrompt, max_tokens: 2 };
      for (const headers of [{}, { authorization: 'Bearer wrong' }])
        assert.equal((await own.post(COMPLETIONS, wish, { headers: { ...JSON_TYPE, ...headers } })).status, 401);
      const right = await own.post(COMPLETIONS, wish, { headers: { ...JSON_TYPE, authorization: 'Bearer secret' } });
      assert.equal(((await right.json()) as CompletionView).choices.length, 1);
    } finally {
      await closed.close();
    }
  });
  check('CORS preflight', async () => {
    const response = await api.fetch(COMPLETIONS, {
      method: 'OPTIONS',
      headers: {
        origin: PAGE,
        'access-control-request-method': 'POST',
        'access-control-request-headers': 'Authorization',
      },
    });
    const header = (name: string): string => response.headers.get(`access-control-${name}`) ?? '';
    assert.equal(response.status, 200);
    assert.deepEqual([header('allow-origin'), header('allow-credentials')], [PAGE, 'true']);
    assert.match(header('allow-methods'), /^GET, POST\b/);
    assert.match(header('allow-headers'), /\*|authorization/i);
  });
}

const JSON_TYPE = { 'content-type': 'application/json' };

function basics(check: Check, api: Api): void {
  check('models', async () => {
    const { data } = await api.get<{ data: { id: string }[] }>('/v1/models');
    assert.deepEqual(
      data.map(({ id }) => id),
      [model],
    );
  });
  check('gzip request body', async () => {
    const body = gzipSync(JSON.stringify({ model, messages, max_tokens: 2 }));
    const headers = { ...JSON_TYPE, 'content-encoding': 'gzip' };
    const response = await api.post(CHAT, '', { headers, body });
    // Decoded, or refused in the form of an error.
    const text = await response.text();
    assert.match(String(response.status), /^(200|400|415)$/, text);
    if (response.status !== 200)
      assert.notEqual((JSON.parse(text) as { error: { message: string } }).error.message, '');
    assert.equal((await api.chat({ messages, max_tokens: 1 })).choices.length, 1, 'the connection is usable');
  });
  check('HEAD/GET on POST endpoint -> 405?', async () => {
    for (const method of ['GET', 'HEAD']) {
      const response = await api.fetch(CHAT, { method });
      assert.equal(response.status, 405);
      assert.equal(response.headers.get('allow'), 'POST');
    }
  });
}
