/**
 * The AI SDK against a cluster of real processes, under the names of the list of checks: its provider for servers that speak OpenAI's
 * API, and OpenAI's own over chats and over Responses. Budget: 10 s.
 */
import assert from 'node:assert/strict';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import {
  APICallError,
  embed,
  embedMany,
  generateText,
  NoObjectGeneratedError,
  Output,
  stepCountIs,
  streamText,
  tool,
  type LanguageModel,
  type LanguageModelUsage,
  type ModelMessage,
} from 'ai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import type { Cluster } from '../../support/cluster.ts';
import {
  assertAborted,
  EMBEDDING_SIZE,
  endless,
  json,
  model,
  NO_END,
  plain,
  startCluster,
  thinking,
  tide,
  untilDecoding,
} from './demo_cluster.ts';

(globalThis as { AI_SDK_LOG_WARNINGS?: boolean }).AI_SDK_LOG_WARNINGS = false;

let cluster: Cluster;
let compatible: ReturnType<typeof createOpenAICompatible>;
/** The same provider, which sends schemas: without this option it asks for any JSON, and checks the answer itself. */
let structured: ReturnType<typeof createOpenAICompatible>;
let openai: ReturnType<typeof createOpenAI>;
beforeAll(async () => {
  cluster = await startCluster();
  const options = { name: 'penstock', baseURL: `${cluster.url}/v1`, apiKey: 'none', includeUsage: true };
  compatible = createOpenAICompatible(options);
  structured = createOpenAICompatible({ ...options, supportsStructuredOutputs: true });
  openai = createOpenAI({ baseURL: `${cluster.url}/v1`, apiKey: 'none' });
});
afterAll(async () => {
  await cluster.close();
});

function assertUsage({ inputTokens, outputTokens, totalTokens }: LanguageModelUsage, want = plain): void {
  const { promptTokens, answerTokens } = want;
  assert.deepEqual([inputTokens, outputTokens, totalTokens], [promptTokens, answerTokens, promptTokens + answerTokens]);
}

const ask = { system: plain.system, prompt: plain.user, temperature: 0, maxRetries: 0 };
const tools = {
  tide: tool({
    description: tide.description,
    inputSchema: z.object({ place: z.string().max(20) }),
    execute: (given) => tide.run(given),
  }),
};
const askTide = { system: tide.system, prompt: tide.user, tools, stopWhen: stepCountIs(3), temperature: 0 };
const likes = z.object({ person: z.string().max(20), food: z.enum(['mushrooms', 'almonds', 'plums']) });
const askJson = { system: json.system, prompt: json.user, output: Output.object({ schema: likes }) };

describe.each<[name: string, modelOf: (id?: string) => LanguageModel, structuredModel: () => LanguageModel]>([
  ['ai-compat', (id = model) => compatible(id), () => structured(model)],
  ['ai-openai.chat', (id = model) => openai.chat(id), () => openai.chat(model)],
])('%s', (_, modelOf, structuredModel) => {
  test('generateText', async () => {
    const { text, finishReason, usage, response } = await generateText({ model: modelOf(), ...ask });
    assert.deepEqual([text, finishReason, response.modelId], [plain.answer, 'stop', model]);
    assertUsage(usage);
    await assert.rejects(generateText({ model: modelOf('gpt-5'), ...ask }), (error: unknown) => {
      assert(APICallError.isInstance(error), String(error));
      assert.deepEqual([error.statusCode, error.isRetryable], [404, false]);
      assert.equal(error.message, `The model \`gpt-5\` does not exist; this cluster serves \`${model}\``);
      return true;
    });
  });

  test('streamText', async () => {
    const { textStream, usage, finishReason } = streamText({ model: modelOf(), ...ask });
    const deltas: string[] = [];
    for await (const delta of textStream) deltas.push(delta);
    assert.equal(deltas.join(''), plain.answer);
    expect(deltas.length).toBeGreaterThan(5);
    assertUsage(await usage);
    assert.equal(await finishReason, 'stop');
  });

  test('generateText settings', async () => {
    const story = { model: modelOf(), prompt: 'Tell me a story.', temperature: 1.5, topP: 0.95, maxOutputTokens: 9 };
    const texts: string[] = [];
    for (const seed of [1, 1, 2]) {
      const { text, finishReason, usage, warnings } = await generateText({ ...story, seed });
      assert.deepEqual([finishReason, usage.outputTokens, warnings], ['length', 9, []]);
      texts.push(text);
    }
    assert.equal(texts[0], texts[1]);
    assert.notEqual(texts[0], texts[2]);
    const greedy = { ...story, temperature: 0, maxOutputTokens: 50 };
    const penalised = await generateText({ ...greedy, presencePenalty: 2, frequencyPenalty: 2 });
    assert.notEqual(penalised.text, (await generateText(greedy)).text);
    const word = plain.answer.split(' ')[2]!;
    const { text, finishReason } = await generateText({ model: modelOf(), ...ask, stopSequences: [word] });
    assert.deepEqual([text, finishReason], [plain.answer.slice(0, plain.answer.indexOf(word)), 'stop']);
  });

  test('generateObject', async () => {
    const { output, usage } = await generateText({ model: structuredModel(), ...askJson, temperature: 0 });
    assert.deepEqual(output, json.value);
    assertUsage(usage, json);
    const { partialOutputStream, output: last } = streamText({ model: structuredModel(), ...askJson, temperature: 0 });
    const parts: unknown[] = [];
    for await (const part of partialOutputStream) parts.push(part);
    assert.deepEqual([parts.at(-1), await last], [json.value, json.value]);
    expect(parts.length).toBeGreaterThan(2);
    // Sampled, it has other values, and its form.
    for (const seed of [0, 1, 2, 3]) {
      const sampled = { ...askJson, temperature: 1.5, seed, maxOutputTokens: 60 };
      expect(likes.safeParse((await generateText({ model: structuredModel(), ...sampled })).output).success).toBe(true);
    }
    const cut = generateText({ model: structuredModel(), ...askJson, temperature: 0, maxOutputTokens: 4 });
    await assert.rejects(
      async () => (await cut).output,
      (error: unknown) => NoObjectGeneratedError.isInstance(error),
    );
  });

  test('tools', async () => {
    const { text, steps, totalUsage } = await generateText({ model: modelOf(), ...askTide });
    assert.equal(text, tide.answer);
    const [first, second] = steps;
    assert.deepEqual([steps.length, first?.finishReason, second?.finishReason], [2, 'tool-calls', 'stop']);
    assert.deepEqual(
      first?.toolCalls.map(({ toolName, input }) => [toolName, input]),
      [[tide.name, { place: tide.place }]],
    );
    assert.equal(totalUsage.totalTokens, (totalUsage.inputTokens ?? NaN) + (totalUsage.outputTokens ?? NaN));
    const streamed = streamText({ model: modelOf(), ...askTide });
    const inputs: string[] = [];
    for await (const part of streamed.fullStream) if (part.type === 'tool-input-delta') inputs.push(part.delta);
    assert.deepEqual(JSON.parse(inputs.join('')), { place: tide.place });
    assert.equal(await streamed.text, tide.answer);
    // A call is made even to what asks for none.
    const forced = await generateText({ model: modelOf(), prompt: 'Hello.', tools, toolChoice: 'required' });
    const input = z.object({ place: z.string().max(20) });
    expect(forced.toolCalls.map(({ input: given }) => input.safeParse(given).success)).toEqual([true]);
  });

  test('messages parts', async () => {
    const half = plain.user.length / 2;
    const parts = [plain.user.slice(0, half), plain.user.slice(half)].map((text) => ({ type: 'text' as const, text }));
    const messages: ModelMessage[] = [{ role: 'user', content: parts }];
    const settings = { model: modelOf(), system: plain.system, temperature: 0 };
    const { text, usage, response } = await generateText({ ...settings, messages });
    // Parts are lines of one text.
    const lines: ModelMessage = { role: 'user', content: parts.map(({ text: line }) => line).join('\n') };
    const want = await generateText({ ...settings, messages: [lines] });
    assert.deepEqual([text, usage.inputTokens], [want.text, want.usage.inputTokens]);
    const more: ModelMessage[] = [...messages, ...response.messages, { role: 'user', content: parts }];
    const again = await generateText({ ...settings, messages: more });
    const wanted = await generateText({ ...settings, messages: [lines, ...want.response.messages, lines] });
    assert.deepEqual([again.text, again.usage.inputTokens], [wanted.text, wanted.usage.inputTokens]);
  });

  test('abort', async () => {
    const leaving = new AbortController();
    // Each provider reads the options under its name.
    const providerOptions = { penstock: { logit_bias: NO_END }, openai: { logitBias: NO_END } };
    const asked = { model: modelOf(), prompt: endless.user, maxOutputTokens: endless.maxTokens, providerOptions };
    const whole = generateText({ ...asked, abortSignal: leaving.signal, maxRetries: 0 });
    const rejected = assert.rejects(whole, { name: 'AbortError' });
    const types = new Set<string>();
    for await (const { type } of streamText({ ...asked, abortSignal: leaving.signal }).fullStream) {
      if (type === 'text-delta' && !types.has(type)) {
        await untilDecoding(cluster, 2);
        leaving.abort();
      }
      types.add(type);
    }
    assert(types.has('abort') && !types.has('finish') && !types.has('error'), [...types].join());
    await rejected;
    await assertAborted(cluster, 2);
  });
});

describe('ai-openai', () => {
  test('(responses) generateText', async () => {
    const { text, usage, finishReason } = await generateText({ model: openai(model), ...ask });
    assert.deepEqual([text, finishReason], [plain.answer, 'stop']);
    assertUsage(usage);
    const called = await generateText({ model: openai(model), ...askTide });
    assert.deepEqual([called.text, called.steps.length], [tide.answer, 2]);
    const streamed = streamText({ model: openai(model), ...askTide });
    assert.equal(await streamed.text, tide.answer);
    const { output } = await generateText({ model: openai(model), ...askJson, temperature: 0 });
    assert.deepEqual(output, json.value);
  });
});

describe('ai-compat', () => {
  test('reasoning', async () => {
    const providerOptions = { penstock: { chat_template_kwargs: { enable_thinking: true } } };
    const asked = { ...ask, system: thinking.system, prompt: thinking.user, providerOptions };
    const { text, reasoningText, usage } = await generateText({ model: compatible(model), ...asked });
    assert.deepEqual([text, reasoningText], [thinking.answer, thinking.reasoning]);
    assertUsage(usage, thinking);
    expect(usage.outputTokenDetails.reasoningTokens).toBeGreaterThan(4);
    const streamed = streamText({ model: compatible(model), ...asked });
    assert.deepEqual([await streamed.text, await streamed.reasoningText], [thinking.answer, thinking.reasoning]);
  });

  test('JSON without a schema', async () => {
    const { output } = await generateText({ model: compatible(model), ...askJson, temperature: 0 });
    assert.deepEqual(output, json.value);
  });

  test('completionModel', async () => {
    const asked = {
      model: compatible.completionModel(model),
      prompt: endless.user,
      temperature: 0,
      maxOutputTokens: 6,
    };
    const { text, usage, finishReason } = await generateText(asked);
    const tokens = { prompt: endless.user, max_tokens: 6, ignore_eos: false };
    // The provider puts a heading before the text, and one for the answer after it.
    const [plainly] = (await cluster.completion({ ...tokens, prompt: `user:\n${endless.user}\n\nassistant:\n` }))
      .choices;
    assert.deepEqual([text, finishReason, usage.outputTokens], [plainly?.text, 'length', 6]);
    const streamed = streamText(asked);
    assert.equal(await streamed.text, text);
  });

  test('embed', async () => {
    const values = ['Who keeps the red key?', 'A lighthouse stands on the pier.'];
    const embedder = compatible.embeddingModel(model);
    const { embeddings, usage } = await embedMany({ model: embedder, values });
    assert.deepEqual(
      embeddings.map(({ length }) => length),
      [EMBEDDING_SIZE, EMBEDDING_SIZE],
    );
    expect(usage.tokens).toBeGreaterThan(10);
    for (const [i, value] of values.entries())
      assert.deepEqual((await embed({ model: embedder, value })).embedding, embeddings[i]);
    assert.notDeepEqual(embeddings[0], embeddings[1]);
  });
});
