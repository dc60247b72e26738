/** The API as its official client sees it. Budget: 60 s. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import OpenAI, { APIError } from 'openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Cluster, harbour } from '../support/cluster.ts';

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
  cluster = await Cluster.up('--local-prefill-tokens', '48');
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

test('the stream is the answer, piece by piece, with usage at the end', async () => {
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
    ['n', { n: 2 }, 400, /^400 n: is not supported/],
    [
      'tools',
      { tools: [{ type: 'function', function: { name: 'f', parameters: {} } }] },
      400,
      /tools: is not supported/,
    ],
    ['response_format', { response_format: { type: 'json_object' } }, 400, /response_format/],
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
