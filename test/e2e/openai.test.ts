/** The API as its official client sees it. Budget: 60 s. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import OpenAI, { APIError } from 'openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Cluster, harbour } from '../support/cluster.ts';
import { until } from '../support/until.ts';

interface Example {
  readonly messages: { role: 'system' | 'user'; content: string }[];
  readonly answer: string;
}
const examples = (JSON.parse(readFileSync(`${harbour}/examples.json`, 'utf8')) as { cases: Example[] }).cases;
const [example] = examples;
assert(example);
const model = 'harbour';

let cluster: Cluster;
let client: OpenAI;
beforeAll(async () => {
  // Prompts are computed elsewhere than answers, whatever that costs: the answers are right also then.
  cluster = await Cluster.inProcess('--policy', 'longest_prefix', '--local-prefill-tokens', '48');
  client = new OpenAI({ baseURL: `${cluster.url}/v1`, apiKey: 'none', maxRetries: 0 });
});
afterAll(async () => {
  await cluster.close();
});

/** The error that a request is refused with. */
async function refusal(body: Record<string, unknown>): Promise<APIError> {
  try {
    await client.chat.completions.create({ model, messages: example?.messages ?? [], ...body } as never);
  } catch (error) {
    assert(error instanceof APIError, String(error));
    return error;
  }
  return assert.fail(`${JSON.stringify(body)} was accepted`);
}

test('the 40 questions about harbour logs are answered right', async () => {
  for (const { messages, answer } of examples) {
    const { choices } = await client.chat.completions.create({ model, messages });
    assert.equal(choices[0]?.message.content, answer);
    assert.equal(choices[0].finish_reason, 'stop');
  }
  const requests = await cluster.requests();
  expect(requests.filter(({ attempts }) => (attempts[0]?.prefills.length ?? 0) > 0).length).toBeGreaterThan(20);
});

test('the stream is the answer, delta by delta, with usage at the end', async () => {
  const stream = await client.chat.completions.create({
    model,
    messages: example.messages,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = '';
  let finish: string | null = null;
  let usage: OpenAI.CompletionUsage | null | undefined;
  let numChunks = 0;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? '';
    finish = chunk.choices[0]?.finish_reason ?? finish;
    usage = chunk.usage ?? usage;
    numChunks++;
  }
  assert.equal(text, example.answer);
  assert.equal(finish, 'stop');
  expect(numChunks).toBeGreaterThan(5);
  expect(usage?.prompt_tokens).toBeGreaterThan(50);
  expect(usage?.prompt_tokens_details?.cached_tokens).toBeGreaterThan(0);
});

describe('log-probabilities of the prompt', () => {
  const prompt = 'The ship Alder loads grain at berth 4. The ship Birch waits.';
  interface Completed {
    readonly choices: readonly {
      readonly text: string;
      readonly prompt_token_ids: number[];
      readonly token_ids: number[];
      readonly prompt_logprobs?: (Record<
        string,
        { logprob: number; rank: number | null; decoded_token: string }
      > | null)[];
      readonly logprobs: {
        readonly tokens: string[];
        readonly token_logprobs: (number | null)[];
        readonly top_logprobs: (Record<string, number> | null)[];
        readonly text_offset: number[];
      };
    }[];
  }
  const complete = async (body: Record<string, unknown>): Promise<Completed['choices'][number]> => {
    const all = { prompt, max_tokens: 3, temperature: 0, return_token_ids: true, ...body };
    const response = await fetch(`${cluster.url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(all),
    });
    assert.equal(response.status, 200, await response.clone().text());
    return ((await response.json()) as Completed).choices[0]!;
  };

  test('echo: the prompt and its log-probabilities come before the output', async () => {
    const [plain, echoed] = [await complete({ logprobs: 2 }), await complete({ logprobs: 2, echo: true })];
    assert.equal(echoed.text, prompt + plain.text);
    const { tokens, token_logprobs: own, top_logprobs: top, text_offset: offsets } = echoed.logprobs;
    const numPrompt = echoed.prompt_token_ids.length;
    assert.equal(tokens.length, numPrompt + 3);
    assert.deepEqual([own[0], top[0]], [null, null]);
    // Rows of one step and of another, in which they were drawn from.
    assert.deepEqual(own.slice(numPrompt), plain.logprobs.token_logprobs);
    for (const [i, one] of own.slice(1).entries()) {
      const best = Math.max(...Object.values(top[i + 1]!));
      assert(one !== null && one <= best + 1e-6 && best < 0, `${i + 1}: ${one} of ${best}`);
    }
    assert.equal(tokens.slice(numPrompt).join(''), plain.text);
    offsets.slice(1).forEach((offset, i) => assert.equal(offset, offsets[i]! + tokens[i]!.length));
    // The prompt is another request's output: the same tokens have the same log-probabilities.
    const head = echoed.prompt_token_ids.slice(0, 5);
    const forced = await complete({
      prompt: head,
      logprobs: 0,
      max_tokens: 1,
      logit_bias: { [echoed.prompt_token_ids[5]!]: 100 },
    });
    assert.equal(forced.token_ids[0], echoed.prompt_token_ids[5]);
    assert(
      Math.abs(forced.logprobs.token_logprobs[0]! - own[5]!) < 1e-4,
      `${forced.logprobs.token_logprobs[0]} ${own[5]}`,
    );
  });

  test('prompt_logprobs: by token id, with rank and text, whatever is cached, on both endpoints', async () => {
    const { prompt_logprobs: list, prompt_token_ids: ids } = await complete({ prompt_logprobs: 3 });
    assert(list);
    assert.equal(list.length, ids.length);
    assert.equal(list[0], null);
    list.slice(1).forEach((one, i) => {
      const own = one![String(ids[i + 1])];
      assert(own && own.logprob <= 0);
      const ranked = Object.values(one!).filter(({ rank }) => rank !== null);
      assert.deepEqual(ranked.map(({ rank }) => rank).sort(), [1, 2, 3]);
      for (const { rank, logprob } of ranked) if (rank === 1) assert(logprob >= own.logprob);
    });
    const again = await complete({ prompt_logprobs: 3, logprobs: 1, echo: true });
    assert.deepEqual(again.prompt_logprobs, list);
    const chat = await fetch(`${cluster.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ messages: example.messages, max_tokens: 2, prompt_logprobs: 0, return_token_ids: true }),
    });
    const answer = (await chat.json()) as { prompt_logprobs: unknown[]; prompt_token_ids: number[] };
    assert.equal(answer.prompt_logprobs.length, answer.prompt_token_ids.length);
  });

  test('echo of the prompt alone: max_tokens 0, whole and streamed, as those who score texts send it', async () => {
    const whole = await client.completions.create({ model, prompt, max_tokens: 0, echo: true, logprobs: 2 });
    const want = await complete({ logprobs: 2, echo: true });
    const numPrompt = want.prompt_token_ids.length;
    const [choice] = whole.choices;
    assert.deepEqual([choice?.text, choice?.finish_reason], [prompt, 'length']);
    assert.deepEqual(choice?.logprobs?.token_logprobs, want.logprobs.token_logprobs.slice(0, numPrompt));
    assert.deepEqual([whole.usage?.prompt_tokens, whole.usage?.completion_tokens], [numPrompt, 0]);
    let [text, finish] = ['', ''];
    const stream = await client.completions.create({ model, prompt, max_tokens: 0, echo: true, stream: true });
    for await (const { choices } of stream) {
      text += choices[0]?.text ?? '';
      finish = choices[0]?.finish_reason ?? finish;
    }
    assert.deepEqual([text, finish], [prompt, 'length']);
    await assert.rejects(client.completions.create({ model, prompt, max_tokens: 0 }), /0 goes with echo/);
    await assert.rejects(
      client.chat.completions.create({ model, messages: example.messages, max_tokens: 0 }),
      /max_tokens/,
    );
  });

  test('echo in a stream; prompt_logprobs there are refused', async () => {
    const stream = await client.completions.create({
      model,
      prompt,
      max_tokens: 3,
      temperature: 0,
      logprobs: 1,
      echo: true,
      stream: true,
    });
    const texts: string[] = [];
    let numLogprobs = 0;
    for await (const { choices } of stream) {
      texts.push(choices[0]?.text ?? '');
      numLogprobs += choices[0]?.logprobs?.tokens?.length ?? 0;
    }
    assert.equal(texts[0], prompt);
    const { text, prompt_token_ids: ids } = await complete({});
    assert.equal(texts.slice(1).join(''), text);
    assert.equal(numLogprobs, ids.length + 3);
    const refused = await fetch(`${cluster.url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ prompt, stream: true, prompt_logprobs: 1 }),
    });
    assert.equal(refused.status, 400);
    assert.match(await refused.text(), /prompt_logprobs: are not available when stream is true/);
  });
});

test('logprobs: the chosen token is the likeliest, and probabilities are no more than one', async () => {
  const { choices } = await client.chat.completions.create({
    model,
    messages: example.messages,
    logprobs: true,
    top_logprobs: 3,
  });
  const content = choices[0]?.logprobs?.content ?? [];
  expect(content.length).toBeGreaterThan(5);
  for (const { token, logprob, top_logprobs: top } of content) {
    expect(top).toHaveLength(3);
    expect(top[0]?.token).toBe(token);
    expect(logprob).toBeLessThanOrEqual(0);
    expect(top.reduce((sum, entry) => sum + Math.exp(entry.logprob), 0)).toBeLessThanOrEqual(1.0001);
  }
  expect(content.map(({ token }) => token).join('')).toContain(example.answer);
});

test('a seed is a run: equal seeds give equal text, others differ', async () => {
  const ask = async (seed: number): Promise<string> => {
    const { choices } = await client.chat.completions.create({
      model,
      messages: example.messages,
      temperature: 2,
      seed,
      max_completion_tokens: 24,
    });
    return choices[0]?.message.content ?? '';
  };
  const [first, second, third] = [await ask(1), await ask(1), await ask(2)];
  assert.equal(first, second);
  assert.notEqual(first, third);
});

test('stop strings end the text before them, even across tokens, streamed or not', async () => {
  const stop = example.answer.slice(6, 14);
  const want = example.answer.slice(0, example.answer.indexOf(stop));
  const { choices } = await client.chat.completions.create({ model, messages: example.messages, stop });
  assert.equal(choices[0]?.message.content, want);
  assert.equal(choices[0].finish_reason, 'stop');
  let text = '';
  for await (const chunk of await client.chat.completions.create({
    model,
    messages: example.messages,
    stop: [stop],
    stream: true,
  })) {
    text += chunk.choices[0]?.delta.content ?? '';
  }
  assert.equal(text, want);
});

test('max_tokens ends with length; max_completion_tokens wins', async () => {
  const { choices, usage } = await client.chat.completions.create({
    model,
    messages: example.messages,
    max_tokens: 9,
    max_completion_tokens: 3,
  });
  assert.equal(choices[0]?.finish_reason, 'length');
  assert.equal(usage?.completion_tokens, 3);
});

test('logit_bias and penalties change what is chosen', async () => {
  const plain = await client.chat.completions.create({
    model,
    messages: example.messages,
    max_tokens: 1,
    logprobs: true,
  });
  const tokens = (await (
    await fetch(`${cluster.url}/tokenize`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ prompt: plain.choices[0]?.message.content, add_special_tokens: false }),
    })
  ).json()) as { tokens: number[] };
  const banned = await client.chat.completions.create({
    model,
    messages: example.messages,
    max_tokens: 1,
    logit_bias: { [String(tokens.tokens[0])]: -100 },
  });
  assert.notEqual(banned.choices[0]?.message.content, plain.choices[0]?.message.content);
});

test('penalties, min_p and stop tokens are honoured', async () => {
  const prompt = 'Nadia likes figs. Nadia likes figs. Nadia likes';
  const ask = async (more: object): Promise<{ ids: number[]; finish: string | undefined }> => {
    const { choices } = await client.completions.create({
      model,
      prompt,
      max_tokens: 12,
      temperature: 0,
      return_token_ids: true,
      ignore_eos: true,
      ...more,
    } as never);
    return { ids: (choices[0] as unknown as { token_ids: number[] }).token_ids, finish: choices[0]?.finish_reason };
  };
  const plain = await ask({});
  assert.equal(plain.finish, 'length');
  for (const penalty of [{ presence_penalty: 2 }, { frequency_penalty: 2 }, { repetition_penalty: 3 }]) {
    assert.notDeepEqual((await ask(penalty)).ids, plain.ids, JSON.stringify(penalty));
  }
  assert.deepEqual((await ask({ temperature: 2, seed: 3, min_p: 1 })).ids, plain.ids, 'min_p 1 leaves only the best');
  const stopped = await ask({ stop_token_ids: [plain.ids[2]] });
  assert.deepEqual([stopped.ids, stopped.finish], [plain.ids.slice(0, plain.ids.indexOf(plain.ids[2]!) + 1), 'stop']);
});

test('chat returns token ids when asked, and the answer ends at its own end token', async () => {
  const { choices, prompt_token_ids: promptIds } = (await client.chat.completions.create({
    model,
    messages: example.messages,
    return_token_ids: true,
  } as never)) as unknown as {
    choices: { token_ids: number[]; finish_reason: string }[];
    prompt_token_ids: number[];
  };
  assert.equal(promptIds[0], 0);
  assert.deepEqual([choices[0]?.token_ids.at(-1), choices[0]?.finish_reason], [2, 'stop']);
});

test('completions: text and ids, one prompt and several, streamed and not', async () => {
  const [a, b] = ['Locker 42 opens with code', 'Nadia likes'];
  const both = await client.completions.create({ model, prompt: [a, b], max_tokens: 5, temperature: 0 });
  const [onlyA, onlyB] = [
    await client.completions.create({ model, prompt: a, max_tokens: 5, temperature: 0 }),
    await client.completions.create({ model, prompt: b, max_tokens: 5, temperature: 0 }),
  ];
  assert.deepEqual(
    both.choices.map(({ text }) => text),
    [onlyA.choices[0]?.text, onlyB.choices[0]?.text],
  );
  assert.equal(both.usage?.prompt_tokens, (onlyA.usage?.prompt_tokens ?? 0) + (onlyB.usage?.prompt_tokens ?? 0));
  const ids = await client.completions.create({
    model,
    prompt: [
      [5, 6, 7],
      [8, 9],
    ],
    max_tokens: 3,
    temperature: 0,
  });
  assert.deepEqual(
    ids.choices.map(({ index }) => index),
    [0, 1],
  );
  const texts = ['', ''];
  for await (const { choices } of await client.completions.create({
    model,
    prompt: [a, b],
    max_tokens: 5,
    temperature: 0,
    stream: true,
  })) {
    for (const { index, text } of choices) texts[index] = `${texts[index]}${text}`;
  }
  assert.deepEqual(
    texts,
    both.choices.map(({ text }) => text),
  );
  const logprobs = await client.completions.create({ model, prompt: a, max_tokens: 3, temperature: 0, logprobs: 2 });
  assert.equal(logprobs.choices[0]?.logprobs?.token_logprobs?.length, 3);
  assert.equal(logprobs.choices[0].logprobs.tokens?.join(''), logprobs.choices[0].text);
});

test('tokenize and detokenize are each other’s inverse, messages render as chat does', async () => {
  const post = async (path: string, body: unknown): Promise<Record<string, unknown>> =>
    (await (
      await fetch(`${cluster.url}${path}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
      })
    ).json()) as Record<string, unknown>;
  const text = 'Mira keeps the red key in the north boathouse.';
  const { tokens, count } = await post('/tokenize', { prompt: text, add_special_tokens: false });
  assert.equal((tokens as number[]).length, count);
  assert.equal((await post('/detokenize', { tokens }))['prompt'], text);
  const chat = await post('/tokenize', { messages: example.messages });
  const { usage } = await client.chat.completions.create({ model, messages: example.messages, max_tokens: 1 });
  assert.equal(chat['count'], usage?.prompt_tokens);
});

test('models, health, metrics', async () => {
  assert.deepEqual(
    (await client.models.list()).data.map(({ id }) => id),
    [model],
  );
  assert.equal((await fetch(`${cluster.url}/health`)).status, 200);
  const metrics = await (await fetch(`${cluster.url}/metrics`)).text();
  for (const name of [
    'vllm:time_to_first_token_seconds_bucket',
    'vllm:num_requests_running',
    'vllm:prompt_tokens_total',
    'vllm:generation_tokens_total',
    'penstock_index_keys',
    'penstock_tier_blocks',
  ]) {
    assert(metrics.includes(name), name);
  }
});

describe('bad input gets an error object that says what to do', () => {
  const cases: [string, Record<string, unknown>, number, RegExp][] = [
    ['another model', { model: 'gpt-4' }, 404, /does not exist; this cluster serves `harbour`/],
    ['n', { n: 0 }, 400, /^400 n: Too small/],
    ['more samples than a request may have', { n: 257 }, 400, /^400 n: Too big.*256/],
    ['best_of', { n: 3, best_of: 2 }, 400, /^400 best_of: 2 is less than n, 3/],
    ['best_of of a stream', { n: 1, best_of: 2, stream: true }, 400, /^400 best_of: .*stream/],
    [
      'a tool with a bad name',
      { tools: [{ type: 'function', function: { name: 'f g', parameters: {} } }] },
      400,
      /tools\.0\.function\.name: letters, digits/,
    ],
    ['response_format', { response_format: { type: 'yaml' } }, 400, /response_format/],
    ['temperature', { temperature: 3 }, 400, /temperature/],
    [
      'an image',
      { messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'x' } }] }] },
      400,
      /messages/,
    ],
    ['no messages', { messages: [] }, 400, /messages/],
    ['logit_bias outside the vocabulary', { logit_bias: { '99999': 1 } }, 400, /vocabulary/],
    [
      'too long a prompt',
      { messages: [{ role: 'user', content: 'water '.repeat(3_000) }] },
      400,
      /maximum context length is 2048 tokens. However, you requested/,
    ],
    ['top_logprobs without logprobs', { top_logprobs: 3 }, 400, /needs logprobs/],
  ];
  test.each(cases)('%s', async (_name, body, status, pattern) => {
    const error = await refusal(body);
    assert.equal(error.status, status);
    assert.match(error.message, pattern);
    expect(error.type).toMatch(/error$/);
  });

  test('rubbish that is no JSON, and a path that does not exist', async () => {
    const rubbish = await fetch(`${cluster.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: '{"messages": [',
    });
    assert.equal(rubbish.status, 400);
    expect(((await rubbish.json()) as { error: { type: string } }).error.type).toBe('invalid_request_error');
    assert.equal((await fetch(`${cluster.url}/v1/nothing`)).status, 404);
  });

  test('neutral values are accepted', async () => {
    const { choices } = await client.chat.completions.create({
      model,
      messages: example.messages,
      n: 1,
      tools: [],
      user: 'u',
      response_format: { type: 'text' },
      store: false,
      max_tokens: 2,
    });
    assert.equal(choices.length, 1);
  });
});

async function post(path: string, body: unknown, headers: Record<string, string> = {}): Promise<Response> {
  return fetch(`${cluster.url}${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
}

interface ErrorView {
  readonly error: {
    readonly message: string;
    readonly type: string;
    readonly param: string | null;
    readonly code: string;
  };
}

async function errorOf(response: Response): Promise<ErrorView['error']> {
  return ((await response.json()) as ErrorView).error;
}

describe('parameters that OpenAI or vLLM document', () => {
  const messages = [{ role: 'user', content: 'Hello' }];
  const neutral: Record<string, unknown> = {
    n: 1,
    best_of: 1,
    use_beam_search: false,
    echo: false,
    length_penalty: 1,
    priority: 0,
    bad_words: [],
    response_format: { type: 'text' },
    skip_special_tokens: true,
    spaces_between_special_tokens: true,

    min_tokens: 0,
    stop: [],
    stop_token_ids: [],
    include_stop_str_in_output: false,
    ignore_eos: false,
    logit_bias: {},
    truncate_prompt_tokens: null,
    prompt_logprobs: null,
    allowed_token_ids: null,
    structured_outputs: null,
    guided_json: null,
    guided_regex: null,
    guided_choice: null,
    guided_grammar: null,
    structural_tag: null,
    return_tokens_as_token_ids: false,
    cache_salt: null,
    kv_transfer_params: null,
    vllm_xargs: null,

    user: 'u',
    store: true,
    metadata: { a: 'b' },
    service_tier: 'flex',
    prompt_cache_key: 'k',
    safety_identifier: 's',
    session_id: 'x',
    seed: 2 ** 62,
    top_k: -1,
    min_p: 0,
    repetition_penalty: 1,
    top_p: 1,
  };
  const neutralChat: Record<string, unknown> = {
    tools: [],
    tool_choice: 'auto',
    functions: [],
    function_call: 'none',
    parallel_tool_calls: false,
    modalities: ['text'],
    audio: null,
    prediction: null,
    verbosity: 'low',
    web_search_options: null,
    reasoning_effort: 'low',
    include_reasoning: true,
    chat_template: null,
    documents: null,
    top_logprobs: 0,
    add_generation_prompt: true,
    continue_final_message: false,
    chat_template_kwargs: {},
    echo: false,
    mm_processor_kwargs: null,
    media_io_kwargs: null,
    thinking_token_budget: null,
    add_special_tokens: false,
  };

  test('each is accepted at its neutral value, all at once, and as null; none of them is called ignored', async () => {
    const base = { messages, max_tokens: 2, temperature: 0 };
    const plain = (await (await post('/v1/chat/completions', base)).json()) as OpenAI.ChatCompletion;
    const all = await post('/v1/chat/completions', { ...base, ...neutral, ...neutralChat });
    assert.equal(all.status, 200, await all.clone().text());
    assert.equal(all.headers.get('x-penstock-ignored'), null);
    const same = (await all.json()) as OpenAI.ChatCompletion;
    assert.equal(same.choices[0]?.message.content, plain.choices[0]?.message.content);
    const names = Object.keys({ ...neutral, ...neutralChat, temperature: 0, stream: false, max_completion_tokens: 1 });
    const nulls = Object.fromEntries(names.map((name) => [name, null]));
    const nothing = await post('/v1/chat/completions', { ...nulls, messages, max_tokens: 2 });
    assert.equal(nothing.status, 200, await nothing.text());
    const completion = await post('/v1/completions', {
      ...neutral,
      prompt: 'Hello',
      max_tokens: 2,
      suffix: '',
      logprobs: null,
    });
    assert.equal(completion.status, 200, await completion.text());
  });

  test.each([
    ...[{ use_beam_search: true }, { length_penalty: 2 }],
    ...[{ prompt_embeds: 'x' }, { structural_tag: '{}' }],
    ...[{ vllm_xargs: { a: 1 } }, { kv_transfer_params: {} }, { logits_processors: ['x'] }],
  ])('%j is refused by name, with what to do', async (body) => {
    const response = await post('/v1/completions', { prompt: 'Hello', max_tokens: 1, ...body });
    assert.equal(response.status, 400);
    const { message, param } = await errorOf(response);
    assert.equal(param, Object.keys(body)[0]);
    assert.match(message, /is not supported; leave it out or set it to/);
  });

  test('keys that no document knows are ignored and named', async () => {
    const response = await post('/v1/completions', { prompt: 'Hello', max_tokens: 1, frobnicate: 1, 'ü x': 2 });
    assert.equal(response.status, 200);
    assert.equal(response.headers.get('x-penstock-ignored'), 'frobnicate, ??x');
  });

  test('continuous_usage_stats: every chunk has usage, growing by a token (GuideLLM)', async () => {
    const stream_options = { include_usage: true, continuous_usage_stats: true };
    for (const [path, prompt] of [
      ['/v1/completions', { prompt: 'Hello' }],
      ['/v1/chat/completions', { messages }],
    ] as const) {
      const response = await post(path, {
        ...prompt,
        max_tokens: 6,
        ignore_eos: true,
        stream: true,
        stream_options,
        return_token_ids: true,
      });
      const usages = (await response.text())
        .split('\n')
        .filter((line) => line.startsWith('data: {'))
        .map(
          (line) => (JSON.parse(line.slice(6)) as { usage?: OpenAI.CompletionUsage }).usage?.completion_tokens ?? NaN,
        );
      assert(
        usages.every((count) => count >= 0),
        usages.join(),
      );
      assert.equal(usages.at(-1), 6);
      assert.deepEqual(
        usages,
        [...usages].sort((a, b) => a - b),
      );
    }
  });

  test('stop_reason, include_stop_str_in_output, min_tokens, skip_special_tokens', async () => {
    const ask = async (
      body: object,
    ): Promise<{ text: string; finish_reason: string; stop_reason: unknown; ids: number[] }> => {
      const response = await post('/v1/completions', {
        prompt: 'Nadia likes',
        max_tokens: 12,
        temperature: 0,
        return_token_ids: true,
        ...body,
      });
      const text = await response.text();
      assert.equal(response.status, 200, text);
      const [choice] = (
        JSON.parse(text) as {
          choices: { text: string; finish_reason: string; stop_reason: unknown; token_ids: number[] }[];
        }
      ).choices;
      assert(choice);
      return { ...choice, ids: choice.token_ids };
    };
    const plain = await ask({ ignore_eos: true });
    assert.equal(plain.stop_reason, null);
    const stop = plain.text.slice(3, 5);
    const cut = await ask({ ignore_eos: true, stop });
    assert.deepEqual([cut.stop_reason, cut.text], [stop, plain.text.slice(0, plain.text.indexOf(stop))]);
    const kept = await ask({ ignore_eos: true, stop, include_stop_str_in_output: true });
    assert.equal(kept.text, plain.text.slice(0, plain.text.indexOf(stop) + stop.length));
    const token = plain.ids[2] ?? 0;
    const byToken = await ask({ ignore_eos: true, stop_token_ids: [token] });
    assert.deepEqual([byToken.finish_reason, byToken.stop_reason], ['stop', token]);
    const later = await ask({ ignore_eos: true, stop_token_ids: [token], min_tokens: 8 });
    assert(!later.ids.slice(0, 8).includes(token));
    const ended = await ask({ max_tokens: 40, logit_bias: { '2': 100 } });
    assert.deepEqual([ended.text, ended.stop_reason], ['', null]);
    const shown = await ask({ max_tokens: 3, ignore_eos: true, skip_special_tokens: false, logit_bias: { '2': 100 } });
    assert.equal(shown.text, '<|im_end|>'.repeat(3));
    // A stop text that is a special token ends at the token, which texts leave out.
    for (const special of ['<|im_start|>', '<|im_end|>']) {
      const bias = { ignore_eos: true, stop: special, logit_bias: { [special === '<|im_end|>' ? '2' : '1']: 100 } };
      for (const skips of [true, false]) {
        const { text, ...ends } = await ask({ ...bias, skip_special_tokens: skips });
        assert.deepEqual([text, ends.finish_reason, ends.stop_reason, ends.ids.length], ['', 'stop', special, 1]);
      }
      const included = await ask({ ...bias, include_stop_str_in_output: true });
      assert.equal(included.text, special);
      assert.equal((await ask({ ignore_eos: true, stop: special, max_tokens: 3 })).finish_reason, 'length');
    }
  });

  test('continue_final_message goes on where the assistant was', async () => {
    const [first = ''] = example.answer.split(' opens');
    const response = await post('/v1/chat/completions', {
      messages: [...example.messages, { role: 'assistant', content: first }],
      continue_final_message: true,
      add_generation_prompt: false,
      temperature: 0,
    });
    const text = await response.text();
    assert.equal(response.status, 200, text);
    const { choices } = JSON.parse(text) as OpenAI.ChatCompletion;
    assert.equal(first + (choices[0]?.message.content ?? ''), example.answer);
    const both = await post('/v1/chat/completions', {
      messages,
      continue_final_message: true,
      add_generation_prompt: true,
    });
    assert.equal(both.status, 400);
  });

  test('messages as clients of tools send them go to the template', async () => {
    const call = { id: 'c1', type: 'function', function: { name: 'look', arguments: '{"at": [1, 2]}' } };
    const nested = (depth: number): object => ({
      ...call,
      function: { name: 'look', arguments: '['.repeat(depth) + ']'.repeat(depth) },
    });
    // The template reads no calls, so they are text of the prompt; the deepest do not fit.
    for (const [tool_calls, status] of [
      [[call], 200],
      [[nested(300)], 200],
      [[nested(7_000)], 400],
    ] as const) {
      const response = await post('/v1/chat/completions', {
        messages: [
          { role: 'developer', content: 'Be brief.' },
          {
            role: 'user',
            name: 'mira',
            content: [{ type: 'text', text: 'Where is the key?', cache_control: { type: 'x' } }],
          },
          { role: 'assistant', content: null, tool_calls },
          { role: 'tool', tool_call_id: 'c1', content: 'In the boathouse.' },
          { role: 'assistant', content: null, refusal: null, tool_calls: null },
        ],
        max_tokens: 2,
      });
      assert.equal(response.status, status, await response.text());
    }
  });

  test('empty prompts, mixed lists, token strings', async () => {
    const response = await post('/v1/completions', { prompt: ['', [5, 6], 'Hello'], max_tokens: 2, ignore_eos: true });
    const text = await response.text();
    assert.equal(response.status, 200, text);
    assert.equal((JSON.parse(text) as OpenAI.Completion).choices.length, 3);
    const tokens = (await (
      await post('/tokenize', { prompt: 'Hello there', return_token_strs: true, add_special_tokens: false })
    ).json()) as { tokens: number[]; token_strs: string[]; count: number };
    assert.equal(tokens.token_strs.length, tokens.count);
    assert.equal(tokens.token_strs.join('').replaceAll('Ġ', ' '), 'Hello there');
  });

  test('logprobs without alternatives, whole and streamed, say the same', async () => {
    const body = { messages: example.messages, logprobs: true, top_logprobs: 2, temperature: 0 };
    const whole = (await (await post('/v1/chat/completions', body)).json()) as OpenAI.ChatCompletion;
    const stream = await client.chat.completions.create({ model, ...body, stream: true });
    const parts: unknown[] = [];
    for await (const { choices } of stream) parts.push(...(choices[0]?.logprobs?.content ?? []));
    assert.deepEqual(parts, whole.choices[0]?.logprobs?.content);
  });
});

describe('every error has OpenAI’s shape', () => {
  const cases: [string, string, unknown, number, RegExp, string | null, string?][] = [
    [
      'an unknown model',
      '/v1/completions',
      { model: 'gpt-4', prompt: 'x' },
      404,
      /`gpt-4` does not exist/,
      'model',
      'model_not_found',
    ],
    [
      'too many new tokens',
      '/v1/completions',
      { prompt: [1, 2], max_tokens: 5_000 },
      400,
      /^This model's maximum context length is 2048 tokens\. However, you requested 5002 tokens \(2 in the prompt, 5000 in the completion\)/,
      'prompt',
      'context_length_exceeded',
    ],
    [
      'a prompt as long as the context',
      '/v1/completions',
      { prompt: Array.from({ length: 2_048 }, () => 5) },
      400,
      /you requested 2049 tokens \(2048 in the prompt, 1 in/,
      'prompt',
      'context_length_exceeded',
    ],
    [
      'bad bias keys, all of them',
      '/v1/completions',
      { prompt: 'x', logit_bias: { '5': 1, '05': 1, a: 1, '99999': 1, '7': 900 } },
      400,
      /"05", "a"; 99999 outside the vocabulary of \d+; the bias of 7/,
      'logit_bias',
    ],
    [
      'a stop token outside the vocabulary',
      '/v1/completions',
      { prompt: 'x', stop_token_ids: [1, 70_000] },
      400,
      /70000/,
      'stop_token_ids',
    ],
    [
      'an id outside the vocabulary to /detokenize',
      '/detokenize',
      { tokens: [1, 70_000] },
      400,
      /70000 is outside/,
      'tokens.1',
    ],
    ['a text to /detokenize', '/detokenize', { tokens: ['abc'] }, 400, /whole number/, 'tokens.0'],
    ['top_k beyond 32 bits', '/v1/completions', { prompt: 'x', top_k: 4_294_967_297 }, 400, /top_k/, 'top_k'],
    [
      'min_tokens over the default length',
      '/v1/completions',
      { prompt: 'x', min_tokens: 100 },
      400,
      /min_tokens: 100 is more than/,
      'min_tokens',
    ],
    [
      'a body nested 10,000 deep',
      '/v1/chat/completions',
      `{"messages":${'['.repeat(10_000)}${']'.repeat(10_000)}}`,
      400,
      /nested over 64 levels/,
      null,
    ],
    ['an empty body', '/v1/completions', '', 400, /body is empty/, null],
    ['no JSON', '/v1/completions', '{"prompt": [', 400, /not JSON/, null],
    ['a path that is none', '/v1/nothing', {}, 404, /does not exist/, null, 'not_found'],
  ];
  test.each(cases)('%s', async (_name, path, body, status, pattern, param, code) => {
    const response = await post(path, body);
    const error = await errorOf(response);
    assert.equal(response.status, status, error.message);
    assert.match(error.message, pattern);
    assert.match(error.type, /error$/);
    assert.equal(error.param, param);
    if (code !== undefined) assert.equal(error.code, code);
  });

  test('bad addresses, methods, types, sizes and requests without a body', async () => {
    for (const [path, options, status] of [
      ['/v1/models/%', {}, 400],
      [`/v1/models/${'a'.repeat(300)}`, {}, 404],
      ['/v1/models/some/other', {}, 404],
      ['/v1/completions', { method: 'GET' }, 405],
      ['/health', { method: 'DELETE' }, 405],
      ['/v1/completions', { method: 'POST', body: 'x', headers: { 'content-type': 'text/plain' } }, 415],
      ['/v1/completions', { method: 'POST' }, 400],
      [
        '/v1/completions',
        { method: 'POST', body: `"${'a'.repeat(5 << 20)}"`, headers: { 'content-type': 'application/json' } },
        413,
      ],
    ] as const) {
      const response = await fetch(`${cluster.url}${path}`, options);
      assert.equal(response.status, status, path);
      const { message, type } = await errorOf(response);
      assert(message !== '' && type.endsWith('error'), `${path}: ${message}`);
      if (status === 405) assert.match(response.headers.get('allow') ?? '', /POST|GET/);
      if (status === 413) assert.match(message, /over \d+ bytes: .*--max-body-bytes/);
    }
  });

  test('X-Request-Id and traceparent are taken over, in answers and in errors', async () => {
    const headers = {
      'x-request-id': 'my-request.1',
      traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
    };
    const response = await post('/v1/completions', { prompt: [5], max_tokens: 1 }, headers);
    assert.equal(response.headers.get('x-request-id'), 'my-request.1');
    assert.equal(((await response.json()) as { id: string }).id, 'cmpl-my-request.1');
    const view = (await cluster.requests(1))[0] as unknown as { client_id: string; trace_id: string };
    assert.deepEqual([view.client_id, view.trace_id], ['my-request.1', '0af7651916cd43dd8448eb211c80319c']);
    const refused = await post('/v1/completions', { prompt: [5], n: -3 }, headers);
    assert.equal(refused.headers.get('x-request-id'), 'my-request.1');
  });

  test('/version and /ping', async () => {
    assert.match(((await (await fetch(`${cluster.url}/version`)).json()) as { version: string }).version, /^\d+\.\d+/);
    assert.equal((await fetch(`${cluster.url}/ping`)).status, 200);
    assert.equal((await fetch(`${cluster.url}/ping`, { method: 'POST' })).status, 200);
  });
});

test('every metric of vLLM’s dashboards whose meaning we have shows data; failures are counted by reason and status', async () => {
  await post('/v1/completions', { prompt: 'x', n: -7 });
  await fetch(`${cluster.url}/v1/nothing`);
  await until('heartbeats have told', async () => (await cluster.node('decode-1')).tiers['device'] !== undefined);
  const text = await (await fetch(`${cluster.url}/metrics`)).text();
  const types = new Map([...text.matchAll(/^# TYPE (\S+) (\S+)$/gm)].map(([, name = '', type = '']) => [name, type]));
  const sampled = new Set([...text.matchAll(/^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})? (\S+)$/gm)].map(([, name]) => name));
  for (const name of [
    ...['e2e_request_latency_seconds', 'time_to_first_token_seconds', 'inter_token_latency_seconds'],
    ...['request_time_per_output_token_seconds', 'time_per_output_token_seconds', 'request_queue_time_seconds'],
    ...['request_prefill_time_seconds', 'request_decode_time_seconds', 'request_inference_time_seconds'],
    ...['request_prompt_tokens', 'request_generation_tokens', 'request_max_num_generation_tokens'],
  ]) {
    assert.equal(types.get(`vllm:${name}`), 'histogram', name);
    const count = Number(new RegExp(`^vllm:${name}_count\\{[^}]*\\} (\\d+)`, 'm').exec(text)?.[1]);
    assert(count > 0, `${name} has ${count}`);
  }
  for (const name of [
    ...['vllm:prompt_tokens_total', 'vllm:generation_tokens_total', 'vllm:request_success_total'],
    ...['vllm:num_preemptions_total', 'vllm:prefix_cache_queries_total', 'vllm:prefix_cache_hits_total'],
    ...['penstock_tier_hits_total', 'penstock_tier_misses_total', 'penstock_tier_evictions_total'],
    ...['penstock_requests_failed_total', 'process_cpu_seconds_total'],
  ]) {
    assert.equal(types.get(name), 'counter', name);
    assert(sampled.has(name), name);
  }
  for (const name of [
    'vllm:num_requests_running',
    'vllm:num_requests_waiting',
    'vllm:kv_cache_usage_perc',
    'process_resident_memory_bytes',
  ]) {
    assert.equal(types.get(name), 'gauge', name);
    assert(sampled.has(name), name);
  }
  assert.match(text, /penstock_requests_failed_total\{[^}]*reason="invalid_request",status="400"[^}]*\} [1-9]/);
  assert.match(text, /penstock_requests_failed_total\{[^}]*reason="http_404",status="404"[^}]*\} [1-9]/);
});
