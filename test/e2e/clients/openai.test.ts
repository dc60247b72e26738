/**
 * OpenAI's client for JavaScript against a cluster of real processes: what people call first, under the names of the list of checks.
 * Other tests of the API are in test/e2e/openai.test.ts, responses.test.ts, embeddings.test.ts, samples.test.ts and tools.test.ts.
 * Budget: 15 s.
 */
import assert from 'node:assert/strict';
import { Ajv2020 } from 'ajv/dist/2020.js';
import OpenAI from 'openai';
import { LengthFinishReasonError } from 'openai/core/error';
import { zodFunction, zodResponseFormat, zodTextFormat } from 'openai/helpers/zod';
import { ChatCompletionStream } from 'openai/lib/ChatCompletionStream';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import type { Cluster } from '../../support/cluster.ts';
import { NEVER_SILENT, until } from '../../support/until.ts';
import {
  assertAborted,
  EMBEDDING_SIZE,
  endless,
  json,
  model,
  ORIGIN,
  pageFetch,
  plain,
  startProcesses,
  tide,
  untilDecoding,
} from './demo_cluster.ts';

let cluster: Cluster;
let client: OpenAI;
beforeAll(async () => {
  // A test freezes the decode instance for some seconds.
  cluster = await startProcesses(...NEVER_SILENT);
  client = new OpenAI({ baseURL: `${cluster.url}/v1`, apiKey: 'none', maxRetries: 0 });
});
afterAll(async () => {
  await cluster.close();
});

const messagesOf = ({ system, user }: { readonly system: string; readonly user: string }) => [
  { role: 'system' as const, content: system },
  { role: 'user' as const, content: user },
];
const body = { model, messages: messagesOf(plain), temperature: 0 };
const long = { model, messages: [{ role: 'user' as const, content: endless.user }], max_tokens: endless.maxTokens };
/** A body that `create` of the client accepts with a key that only other servers have. */
const endlessBody = { ...long, ignore_eos: true };

function assertUsage(usage: OpenAI.CompletionUsage | null | undefined, want = plain): void {
  assert(usage, 'there is a usage');
  const { prompt_tokens: prompt, completion_tokens: completion, total_tokens: total } = usage;
  assert.deepEqual([prompt, completion, total], [want.promptTokens, want.answerTokens, prompt + completion]);
}

describe('openai-js', () => {
  test('chat', async () => {
    const { choices, usage, model: served, object } = await client.chat.completions.create(body);
    assert.deepEqual([served, object, choices.length], [model, 'chat.completion', 1]);
    const [choice] = choices;
    assert.deepEqual([choice?.message.content, choice?.finish_reason], [plain.answer, 'stop']);
    assert.deepEqual([choice?.message.role, choice?.message.refusal], ['assistant', null]);
    assertUsage(usage);
  });

  test('stream usage', async () => {
    const ask = { ...body, stream: true, stream_options: { include_usage: true } } as const;
    const chunks: OpenAI.ChatCompletionChunk[] = [];
    for await (const chunk of await client.chat.completions.create(ask)) chunks.push(chunk);
    const deltas = chunks.map(({ choices }) => choices[0]?.delta.content ?? '');
    assert.equal(deltas.join(''), plain.answer);
    expect(deltas.filter((delta) => delta !== '').length).toBeGreaterThan(5);
    const last = chunks.pop();
    assert.deepEqual(last?.choices, []);
    assertUsage(last.usage);
    for (const { usage, id } of chunks) assert.deepEqual([usage ?? null, id], [null, last.id]);
    assert.equal(chunks.at(-1)?.choices[0]?.finish_reason, 'stop');
  });

  test('stream() helper', async () => {
    const stream = client.chat.completions.stream({ ...body, stream_options: { include_usage: true } });
    const snapshots: string[] = [];
    stream.on('content', (_, snapshot) => snapshots.push(snapshot));
    const { choices } = await stream.finalChatCompletion();
    assert.deepEqual([choices[0]?.message.content, choices[0]?.finish_reason], [plain.answer, 'stop']);
    assert.equal(snapshots.at(-1), plain.answer);
    expect(snapshots.length).toBeGreaterThan(5);
    assertUsage(await stream.totalUsage());
  });

  test('stream() helper logprobs', async () => {
    const asked = { ...body, logprobs: true, top_logprobs: 2 };
    const whole = await client.chat.completions.create(asked);
    const stream = client.chat.completions.stream(asked);
    let numEvents = 0;
    stream.on('logprobs.content.delta', ({ snapshot }) => {
      expect(snapshot.length).toBeGreaterThan(numEvents);
      numEvents = snapshot.length;
    });
    const { choices } = await stream.finalChatCompletion();
    const content = choices[0]?.logprobs?.content ?? [];
    assert.equal(content.length, plain.answerTokens);
    assert.deepEqual(content, whole.choices[0]?.logprobs?.content);
    for (const { token, logprob, top_logprobs: top } of content)
      assert.deepEqual([top.length, top[0]?.token, top[0]?.logprob], [2, token, logprob]);
    expect(numEvents).toBeGreaterThan(5);
  });

  test('parse zod', async () => {
    const shape = z.object({ person: z.string().max(20), food: z.enum(['mushrooms', 'almonds', 'plums']) });
    const asked = { model, messages: messagesOf(json), response_format: zodResponseFormat(shape, 'likes') };
    const { choices, usage } = await client.chat.completions.parse({ ...asked, temperature: 0 });
    assert.deepEqual(choices[0]?.message.parsed, json.value);
    assertUsage(usage, json);
    await assert.rejects(client.chat.completions.parse({ ...asked, max_tokens: 3 }), LengthFinishReasonError);
    // Sampled, it has other values, and its form.
    for (let seed = 0; seed < 4; seed++) {
      const sampled = await client.chat.completions.parse({ ...asked, temperature: 1.5, seed, max_tokens: 60 });
      expect(shape.safeParse(sampled.choices[0]?.message.parsed).success).toBe(true);
    }
    const tool = zodFunction({ name: tide.name, parameters: z.object({ place: z.string().max(20) }) });
    const called = await client.chat.completions.parse({ model, messages: messagesOf(tide), tools: [tool] });
    const [call] = called.choices[0]?.message.tool_calls ?? [];
    assert.deepEqual([call?.function.name, call?.function.parsed_arguments], [tide.name, { place: tide.place }]);
  });

  test('runTools', async () => {
    const called: string[] = [];
    const run = (given: { place: string }): object => {
      called.push(given.place);
      return tide.run(given);
    };
    const parse = (text: string): { place: string } => JSON.parse(text) as { place: string };
    const { name, description, parameters } = tide;
    const tool = { type: 'function' as const, function: { name, description, parameters, parse, function: run } };
    const runner = client.chat.completions.runTools({ model, messages: messagesOf(tide), tools: [tool] });
    assert.equal(await runner.finalContent(), tide.answer);
    const { prompt_tokens: prompt, completion_tokens: completion, total_tokens: total } = await runner.totalUsage();
    assert.equal(total, prompt + completion);
    const streaming = client.chat.completions.runTools({
      model,
      messages: messagesOf(tide),
      stream: true,
      tools: [tool],
    });
    assert.equal(await streaming.finalContent(), tide.answer);
    assert.deepEqual(
      streaming.messages.map(({ role }) => role),
      ['system', 'user', 'assistant', 'tool', 'assistant'],
    );
    assert.deepEqual(called, [tide.place, tide.place]);
  });

  test('abort', async () => {
    const leaving = new AbortController();
    const whole = client.chat.completions.create(endlessBody, { signal: leaving.signal });
    const rejected = assert.rejects(whole, OpenAI.APIUserAbortError);
    const helper = client.chat.completions.stream(endlessBody);
    const helperRejected = assert.rejects(helper.finalContent(), OpenAI.APIUserAbortError);
    await untilDecoding(cluster, 2);
    helper.abort();
    leaving.abort();
    await Promise.all([rejected, helperRejected]);
    await assertAborted(cluster, 2);
    // A stream that is left, and one that is aborted, end without an error.
    for (const leave of [true, false]) {
      const stream = await client.chat.completions.create({ ...endlessBody, stream: true });
      for await (const { choices } of stream) {
        if (!choices[0]?.delta.content) continue;
        if (leave) break;
        stream.controller.abort();
      }
      await assertAborted(cluster);
    }
  });

  test('timeout', async () => {
    const numBefore = (await cluster.requests()).length;
    // eslint-disable-next-line time/speed -- the client's own limit, which is what is tested
    const hasty = client.withOptions({ timeout: 1_000, maxRetries: 1 });
    // No answer comes in time, on no machine.
    cluster.kill('decode-1', 'SIGSTOP');
    try {
      await assert.rejects(hasty.chat.completions.create(endlessBody), (error: unknown) => {
        assert(error instanceof OpenAI.APIConnectionTimeoutError, String(error));
        assert.equal(error.message, 'Request timed out.');
        return true;
      });
      // The first try and the one that the client makes after it.
      await until('both have come', async () => (await cluster.requests()).length === numBefore + 2);
    } finally {
      cluster.kill('decode-1', 'SIGCONT');
    }
    await assertAborted(cluster, 2);
  });

  test('toReadableStream/tee', async () => {
    const [left, right] = (await client.chat.completions.create({ ...body, stream: true })).tee();
    const texts = await Promise.all(
      [left, right].map(async (stream) => {
        let text = '';
        for await (const { choices } of stream) text += choices[0]?.delta.content ?? '';
        return text;
      }),
    );
    assert.deepEqual(texts, [plain.answer, plain.answer]);
    const sent = (await client.chat.completions.create({ ...body, stream: true })).toReadableStream();
    assert.equal(await ChatCompletionStream.fromReadableStream(sent).finalContent(), plain.answer);
  });

  test('withResponse', async () => {
    const headers = { 'x-request-id': 'my-check.1' };
    const asked = client.chat.completions.create(body, { headers });
    const { data, response, request_id: id } = await asked.withResponse();
    assert.deepEqual([data.choices[0]?.message.content, response.status], [plain.answer, 200]);
    assert.deepEqual(
      [id, (data as { _request_id?: string })._request_id, data.id],
      ['my-check.1', 'my-check.1', 'chatcmpl-my-check.1'],
    );
    assert.match(response.headers.get('content-type') ?? '', /^application\/json/);
    const raw = await client.chat.completions.create({ ...body, stream: true }).asResponse();
    assert.match(raw.headers.get('content-type') ?? '', /^text\/event-stream/);
    assert.match(await raw.text(), /\ndata: \[DONE\]\n\n$/);
  });

  test('models', async () => {
    const listed: OpenAI.Model[] = [];
    for await (const one of client.models.list()) listed.push(one);
    assert.equal(listed.length, 1);
    const [one] = listed;
    assert.deepEqual([one?.id, one?.object, typeof one?.owned_by], [model, 'model', 'string']);
    assert(Number.isInteger(one?.created));
  });

  test('models.retrieve', async () => {
    const { data } = await client.models.list();
    assert.deepEqual(JSON.parse(JSON.stringify(await client.models.retrieve(model))), data[0]);
    await assert.rejects(client.models.retrieve('other'), OpenAI.NotFoundError);
  });

  test('responses', async () => {
    const { name, description, parameters } = tide;
    const input: OpenAI.Responses.ResponseInputItem[] = [{ role: 'user', content: tide.user }];
    const tools = [{ type: 'function' as const, name, description, parameters, strict: true }];
    const asked = { model, instructions: tide.system, tools, temperature: 0 };
    const first = await client.responses.create({ ...asked, input });
    const [call] = first.output;
    assert(first.output.length === 1 && call?.type === 'function_call');
    assert.deepEqual([call.name, JSON.parse(call.arguments)], [name, { place: tide.place }]);
    const output = JSON.stringify(tide.run({ place: tide.place }));
    const result = { type: 'function_call_output' as const, call_id: call.call_id, output };
    const second = await client.responses.create({ ...asked, input: [result], previous_response_id: first.id });
    assert.deepEqual([second.output_text, second.status], [tide.answer, 'completed']);
    assert.equal(second.usage?.total_tokens, second.usage!.input_tokens + second.usage!.output_tokens);
    const stream = client.responses.stream({ ...asked, input: [...input, call, result] });
    const deltas: string[] = [];
    stream.on('response.output_text.delta', ({ delta }) => deltas.push(delta));
    assert.equal((await stream.finalResponse()).output_text, tide.answer);
    assert.equal(deltas.join(''), tide.answer);
    const shape = z.object({ person: z.string().max(20), food: z.string().max(20) });
    const { output_parsed: parsed } = await client.responses.parse({
      model,
      instructions: json.system,
      input: json.user,
      temperature: 0,
      text: { format: zodTextFormat(shape, 'likes') },
    });
    assert.deepEqual(parsed, json.value);
  });

  test('embeddings', async () => {
    const input = ['Who keeps the red key?', 'A lighthouse stands on the pier.'];
    const { data, usage } = await client.embeddings.create({ model, input });
    assert.deepEqual(
      data.map(({ index, embedding }) => [index, embedding.length]),
      [
        [0, EMBEDDING_SIZE],
        [1, EMBEDDING_SIZE],
      ],
    );
    assert(usage.prompt_tokens > 10 && usage.total_tokens === usage.prompt_tokens);
    for (const [i, text] of input.entries()) {
      expect(Math.hypot(...(data[i]?.embedding ?? []))).toBeCloseTo(1, 5);
      // The client asks for base64 by itself, and decodes it.
      const alone = await client.embeddings.create({ model, input: text, encoding_format: 'float' });
      assert.deepEqual(alone.data[0]?.embedding, data[i]?.embedding);
    }
    assert.notDeepEqual(data[0]?.embedding, data[1]?.embedding);
  });

  test('bad model', async () => {
    for (const ask of [
      () => client.chat.completions.create({ ...body, model: 'gpt-5' }),
      () => client.chat.completions.create({ ...body, model: 'gpt-5', stream: true }),
      () => client.completions.create({ model: 'gpt-5', prompt: 'x' }),
      () => client.responses.create({ model: 'gpt-5', input: 'x' }),
      () => client.embeddings.create({ model: 'gpt-5', input: 'x' }),
    ])
      await assert.rejects(ask, (error: unknown) => {
        assert(error instanceof OpenAI.NotFoundError, String(error));
        assert.deepEqual([error.status, error.code, error.param], [404, 'model_not_found', 'model']);
        assert.equal(error.message, `404 The model \`gpt-5\` does not exist; this cluster serves \`${model}\``);
        return true;
      });
  });

  test('n=2', async () => {
    const messages = [{ role: 'user' as const, content: 'Tell me a story.' }];
    const asked = { model, messages, temperature: 1.5, seed: 5, n: 2, max_tokens: 24 };
    const { choices, usage } = await client.chat.completions.create(asked);
    const texts = choices.map(({ message }) => message.content);
    assert.deepEqual([choices.map(({ index }) => index), new Set(texts).size], [[0, 1], 2]);
    assert(usage && usage.prompt_tokens < 32 && usage.completion_tokens > 24, 'the prompt counts once');
    const streamed = await client.chat.completions.stream(asked).finalChatCompletion();
    assert.deepEqual(
      streamed.choices.map(({ message }) => message.content),
      texts,
    );
    const second = await client.chat.completions.create({ ...asked, n: 1, seed: 6 });
    assert.equal(second.choices[0]?.message.content, texts[1]);
  });

  test('json_schema', async () => {
    const schema = {
      type: 'object',
      properties: {
        code: { type: 'integer', minimum: 0, maximum: 9_999 },
        crates: { type: 'array', items: { enum: ['plums', 'tea'] }, maxItems: 3 },
        place: { anyOf: [{ type: 'null' }, { type: 'string', maxLength: 8 }] },
      },
      required: ['code', 'crates', 'place'],
      additionalProperties: false,
    };
    const isValid = new Ajv2020().compile(schema);
    const format = { type: 'json_schema' as const, json_schema: { name: 'locker', schema, strict: true } };
    for (let seed = 0; seed < 6; seed++) {
      const { choices } = await client.chat.completions.create({
        ...body,
        response_format: format,
        temperature: 1.5,
        seed,
        max_tokens: 120,
      });
      const text = choices[0]?.message.content ?? '';
      assert.equal(choices[0]?.finish_reason, 'stop');
      assert(isValid(JSON.parse(text)), `${text}: ${JSON.stringify(isValid.errors)}`);
    }
  });

  test('browser preflight CORS', async () => {
    const pageOf = (origin: string): OpenAI =>
      client.withOptions({ dangerouslyAllowBrowser: true, fetch: pageFetch(origin), apiKey: 'none' });
    const page = pageOf(ORIGIN);
    const { choices } = await page.chat.completions.create(body);
    assert.equal(choices[0]?.message.content, plain.answer);
    assert.equal(await page.chat.completions.stream(body).finalContent(), plain.answer);
    assert.equal((await page.models.list()).data[0]?.id, model);
    const { id } = await page.responses.create({ model, input: plain.user });
    await page.responses.delete(id);
    // A page may read why it was refused.
    await assert.rejects(page.chat.completions.create({ ...body, model: 'gpt-5' }), OpenAI.NotFoundError);
    await assert.rejects(pageOf('https://other.example').chat.completions.create(body), (error: unknown) => {
      assert(error instanceof OpenAI.APIConnectionError && error.cause instanceof TypeError, String(error));
      assert.match(error.cause.message, /is not allowed/);
      return true;
    });
  });
});
