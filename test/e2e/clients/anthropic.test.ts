/**
 * Anthropic's client against a cluster of real processes: creates, streams, counts, calls tools and thinks. What `/v1/messages` does
 * besides that is in test/e2e/messages.test.ts. Budget: 10 s.
 */
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod';
import { betaZodTool } from '@anthropic-ai/sdk/helpers/beta/zod';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import type { Cluster } from '../../support/cluster.ts';
import {
  assertAborted,
  json,
  model,
  ORIGIN,
  pageFetch,
  plain,
  questions,
  startCluster,
  tide,
  untilDecoding,
  type Example,
} from './demo_cluster.ts';

let cluster: Cluster;
let client: Anthropic;
beforeAll(async () => {
  cluster = await startCluster();
  client = new Anthropic({ baseURL: cluster.url, apiKey: 'none', maxRetries: 0 });
});
afterAll(async () => {
  await cluster.close();
});

const question = { role: 'user' as const, content: plain.user };
const wish = { model, max_tokens: 64, temperature: 0, system: plain.system, messages: [question] };
const promptOf = ({ input_tokens: computed, cache_read_input_tokens: cached }: Anthropic.Usage): number =>
  computed + (cached ?? 0);

function bodyOf({ messages, tools = [], chat_template_kwargs: kwargs }: Example) {
  const [system, user] = messages;
  return {
    model,
    max_tokens: 256,
    temperature: 0,
    system: system?.content ?? '',
    messages: [{ role: 'user' as const, content: user?.content ?? '' }],
    tools: tools.map(({ function: { name, description, parameters } }) => ({
      name,
      description,
      input_schema: parameters,
    })),
    ...(kwargs?.enable_thinking === true ? { thinking: { type: 'enabled' as const, budget_tokens: 1_024 } } : {}),
  };
}

const seen = (content: Anthropic.ContentBlock[]): object => ({
  text: content.flatMap((block) => (block.type === 'text' ? [block.text] : [])).join(''),
  thinking: content.flatMap((block) => (block.type === 'thinking' ? [block.thinking] : [])).join(''),
  calls: content.flatMap((block) => (block.type === 'tool_use' ? [{ name: block.name, arguments: block.input }] : [])),
});

describe('anthropic-js', () => {
  test('create', async () => {
    const message = await client.messages.create(wish);
    assert.deepEqual(message.content, [{ type: 'text', text: plain.answer, citations: null }]);
    assert.deepEqual([message.model, message.role, message.stop_reason], [model, 'assistant', 'end_turn']);
    assert.deepEqual([promptOf(message.usage), message.usage.output_tokens], [plain.promptTokens, plain.answerTokens]);
    assert.equal(message._request_id, message.id.replace('msg_', ''));
  });

  test('stream', async () => {
    const texts: string[] = [];
    const stream = client.messages.stream(wish).on('text', (text) => texts.push(text));
    const { content, stop_reason: stop, usage } = await stream.finalMessage();
    assert.equal(texts.join(''), plain.answer);
    expect(texts.length).toBeGreaterThan(5);
    assert.deepEqual([content, stop], [[{ type: 'text', text: plain.answer, citations: null }], 'end_turn']);
    assert.deepEqual([promptOf(usage), usage.output_tokens], [plain.promptTokens, plain.answerTokens]);
    const types: string[] = [];
    for await (const { type } of await client.messages.create({ ...wish, stream: true })) types.push(type);
    assert.deepEqual([types[0], ...types.slice(-2)], ['message_start', 'message_delta', 'message_stop']);
  });

  test('tools', async () => {
    const body = { model, max_tokens: 64, temperature: 0, system: tide.system };
    const { name, description } = tide;
    const messages: Anthropic.MessageParam[] = [{ role: 'user', content: tide.user }];
    const called = await client.messages.create({
      ...body,
      messages,
      tools: [{ name, description, input_schema: tide.parameters }],
    });
    assert.deepEqual(seen(called.content), {
      text: '',
      thinking: '',
      calls: [{ name, arguments: { place: tide.place } }],
    });
    assert.equal(called.stop_reason, 'tool_use');
    const places: string[] = [];
    const tool = betaZodTool({
      name,
      description,
      inputSchema: z.object({ place: z.string().max(20) }),
      run: (given) => {
        places.push(given.place);
        return JSON.stringify(tide.run(given));
      },
    });
    for (const stream of [false, true]) {
      const asked = { ...body, messages: [{ role: 'user' as const, content: tide.user }], tools: [tool], stream };
      const final = await client.beta.messages.toolRunner(asked).runUntilDone();
      assert.deepEqual(final.content, [{ type: 'text', text: tide.answer, citations: null }]);
    }
    assert.deepEqual(places, [tide.place, tide.place]);
  });

  test('a failed tool is answered for', async () => {
    const body = bodyOf(questions.find(({ expected }) => expected.tool_calls?.length === 1)!);
    const { content } = await client.messages.create(body);
    const use = content.find((block) => block.type === 'tool_use');
    assert(use);
    const result = { type: 'tool_result' as const, tool_use_id: use.id, content: '{"error": "busy"}', is_error: true };
    const messages: Anthropic.MessageParam[] = [
      ...body.messages,
      { role: 'assistant', content },
      { role: 'user', content: [result] },
    ];
    const next = await client.messages.create({ ...body, messages });
    assert.deepEqual(seen(next.content), { text: 'That did not work: busy.', thinking: '', calls: [] });
  });

  test('every kind of call, text and thought, whole and streamed', async () => {
    // One of each kind: test/e2e/tools.test.ts has them all.
    assert.equal(questions.length, 8);
    for (const one of questions) {
      const { content = '', reasoning: thinking = '', tool_calls: calls = [] } = one.expected;
      const message = await client.messages.create(bodyOf(one));
      assert.deepEqual(seen(message.content), { text: content, thinking, calls }, one.kind);
      assert.equal(message.stop_reason, calls.length > 0 ? 'tool_use' : 'end_turn');
      const final = await client.messages.stream(bodyOf(one)).finalMessage();
      assert.deepEqual(seen(final.content), seen(message.content), one.kind);
      assert.equal(final.stop_reason, message.stop_reason);
    }
  });

  test('count', async () => {
    const { system, messages } = wish;
    assert.deepEqual(await client.messages.countTokens({ model, system, messages }), {
      input_tokens: plain.promptTokens,
    });
    for (const one of questions) {
      const { model: served, system: log, messages: asked, tools, thinking } = bodyOf(one);
      const more = thinking ? { thinking } : {};
      const counted = await client.messages.countTokens({
        model: served,
        system: log,
        messages: asked,
        tools,
        ...more,
      });
      assert.equal(counted.input_tokens, one.prompt_tokens, one.kind);
    }
  });

  test('parse', async () => {
    const shape = z.object({ person: z.string().max(20), food: z.enum(['mushrooms', 'almonds', 'plums']) });
    const { parsed_output: parsed } = await client.messages.parse({
      model,
      max_tokens: 64,
      temperature: 0,
      system: json.system,
      messages: [{ role: 'user', content: json.user }],
      output_config: { format: zodOutputFormat(shape) },
    });
    assert.deepEqual(parsed, json.value);
  });

  test('abort', async () => {
    // An answer that cannot end before the client leaves.
    const schema = { const: 'x'.repeat(1_500) };
    const endless = { ...wish, max_tokens: 1_900, output_config: { format: { type: 'json_schema' as const, schema } } };
    const leaving = new AbortController();
    const whole = client.messages.create(endless, { signal: leaving.signal });
    const stream = client.messages.stream(endless);
    const rejected = [whole, stream.finalMessage()].map((left) => assert.rejects(left, Anthropic.APIUserAbortError));
    await untilDecoding(cluster, 2);
    leaving.abort();
    stream.abort();
    await Promise.all(rejected);
    await assertAborted(cluster, 2);
  });

  test('errors are of the client’s classes', async () => {
    const image = { type: 'image' as const, source: { type: 'url' as const, url: 'http://x' } };
    await assert.rejects(
      client.messages.create({ ...wish, messages: [{ role: 'user', content: [image] }] }),
      (error: unknown) => {
        assert(error instanceof Anthropic.BadRequestError && error.type === 'invalid_request_error', String(error));
        assert.match(error.message, /messages\.0\.content\.0: .*image/);
        return true;
      },
    );
    await assert.rejects(client.messages.create({ ...wish, model: 'claude' }), (error: unknown) => {
      assert(error instanceof Anthropic.NotFoundError, String(error));
      assert.match(error.message, /`claude` does not exist; this cluster serves `harbour-tools`/);
      return true;
    });
    // eslint-disable-next-line time/speed -- the client's own limit, which is what is tested
    const hasty = client.withOptions({ timeout: 1 });
    await assert.rejects(hasty.messages.create(wish), Anthropic.APIConnectionTimeoutError);
  });

  test('browser preflight CORS', async () => {
    const pageOf = (origin: string): Anthropic =>
      client.withOptions({ dangerouslyAllowBrowser: true, fetch: pageFetch(origin) });
    const { content } = await pageOf(ORIGIN).messages.create(wish);
    assert.deepEqual(seen(content), { text: plain.answer, thinking: '', calls: [] });
    await assert.rejects(pageOf('https://other.example').messages.create(wish), Anthropic.APIConnectionError);
  });
});
