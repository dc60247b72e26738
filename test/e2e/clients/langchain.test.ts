/**
 * LangChain for JavaScript against a cluster of real processes, under the names of the list of checks. Of its 13 `getNumTokens` is
 * left out: the library downloads the ranks of GPT-2's tokenizer for it, whatever the model, and never asks the server, whose
 * `/tokenize` has the real count. Budget: 10 s.
 */
import assert from 'node:assert/strict';
import { ContextOverflowError } from '@langchain/core/errors';
import { AIMessage, HumanMessage, SystemMessage, type AIMessageChunk } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import { ChatOpenAI, OpenAI, OpenAIEmbeddings, type ChatOpenAIFields } from '@langchain/openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import type { Cluster } from '../../support/cluster.ts';
import { EMBEDDING_SIZE, endless, json, model, plain, startCluster, tide } from './demo_cluster.ts';

let cluster: Cluster;
let options: { model: string; apiKey: string; maxRetries: number; configuration: { baseURL: string } };
beforeAll(async () => {
  cluster = await startCluster();
  options = { model, apiKey: 'none', maxRetries: 0, configuration: { baseURL: `${cluster.url}/v1` } };
});
afterAll(async () => {
  await cluster.close();
});

const chat = (more: ChatOpenAIFields = {}): ChatOpenAI => new ChatOpenAI({ ...options, temperature: 0, ...more });
const messagesOf = ({ system, user }: { readonly system: string; readonly user: string }) => [
  new SystemMessage(system),
  new HumanMessage(user),
];
const messages = messagesOf(plain);

function assertUsage({ usage_metadata: usage }: AIMessage | AIMessageChunk): void {
  const { promptTokens, answerTokens } = plain;
  assert(usage, 'there is a usage');
  const { input_tokens: input, output_tokens: output, total_tokens: total } = usage;
  assert.deepEqual([input, output, total], [promptTokens, answerTokens, promptTokens + answerTokens]);
}

const likes = z.object({ person: z.string().max(20), food: z.enum(['mushrooms', 'almonds', 'plums']) });
type Method = 'jsonSchema' | 'functionCalling' | 'jsonMode';
const structured = (method: Method) => chat().withStructuredOutput(likes, { method, name: 'likes', includeRaw: true });

const tideTool = tool((given: { place: string }) => tide.run(given), {
  name: tide.name,
  description: tide.description,
  schema: z.object({ place: z.string().max(20) }),
});

/** Asks a chat with the tool bound, calls it, and asks again with its result. Returns the answer. */
async function callTide(asked: ChatOpenAI): Promise<AIMessage> {
  const bound = asked.bindTools([tideTool]);
  const question = messagesOf(tide);
  const called = await bound.invoke(question);
  const [call] = called.tool_calls ?? [];
  assert(called.tool_calls?.length === 1 && call);
  assert.deepEqual([call.name, call.args], [tide.name, { place: tide.place }]);
  return bound.invoke([...question, called, await tideTool.invoke(call)]);
}

describe('langchain-js', () => {
  test('invoke', async () => {
    const message = await chat().invoke(messages);
    const { finish_reason: finish, model_name: served } = message.response_metadata;
    assert.deepEqual([message.content, finish, served], [plain.answer, 'stop', model]);
    assertUsage(message);
    await assert.rejects(chat({ model: 'gpt-5' }).invoke(messages), (error: unknown) => {
      const { status, code, message: text } = error as { status: number; code: string; message: string };
      assert.deepEqual([status, code], [404, 'model_not_found']);
      assert.match(text, /The model `gpt-5` does not exist; this cluster serves `harbour-tools`/);
      return true;
    });
    await assert.rejects(chat().invoke('water '.repeat(4_000)), (error: unknown) => {
      assert(error instanceof ContextOverflowError, String(error));
      assert.match(error.message, /maximum context length is 2048 tokens.*Please reduce the length/);
      return true;
    });
  });

  test('stream', async () => {
    let whole: AIMessageChunk | undefined;
    let numTexts = 0;
    for await (const chunk of await chat().stream(messages)) {
      whole = whole?.concat(chunk) ?? chunk;
      if (chunk.content !== '') numTexts++;
    }
    assert(whole);
    assert.deepEqual([whole.content, whole.response_metadata['finish_reason']], [plain.answer, 'stop']);
    expect(numTexts).toBeGreaterThan(5);
    assertUsage(whole);
  });

  test('batch', async () => {
    const answers = await chat().batch([messages, messagesOf(json), messages], { maxConcurrency: 2 });
    assert.deepEqual(
      answers.map(({ content }) => content),
      [plain.answer, json.answer, plain.answer],
    );
  });

  test('logprobs', async () => {
    interface Logprobs {
      readonly content: { readonly token: string; readonly logprob: number; readonly top_logprobs: object[] }[];
    }
    const { response_metadata: metadata } = await chat({ logprobs: true, topLogprobs: 2 }).invoke(messages);
    const { content } = metadata['logprobs'] as Logprobs;
    assert.equal(content.map(({ token }) => token).join(''), `${plain.answer}<|im_end|>`);
    for (const { logprob, top_logprobs: top } of content) assert(logprob <= 0 && top.length === 2);
  });

  test('withStructuredOutput jsonSchema', async () => {
    const { parsed, raw } = await structured('jsonSchema').invoke(messagesOf(json));
    assert.deepEqual([parsed, raw.content], [json.value, json.answer]);
    for (let seed = 0; seed < 4; seed++) {
      // Sampled, it has other values, and its form.
      const sampled = chat({ temperature: 1.5, modelKwargs: { seed }, maxTokens: 60 });
      const answer: unknown = await sampled.withStructuredOutput(likes, { method: 'jsonSchema' }).invoke('Who?');
      expect(likes.safeParse(answer).success).toBe(true);
    }
  });

  test('withStructuredOutput functionCalling', async () => {
    const { parsed, raw } = await structured('functionCalling').invoke(messagesOf(json));
    assert(AIMessage.isInstance(raw));
    assert.deepEqual([parsed, raw.tool_calls?.map(({ name }) => name)], [json.value, ['likes']]);
  });

  test('withStructuredOutput jsonMode', async () => {
    const { parsed, raw } = await structured('jsonMode').invoke(messagesOf(json));
    assert.deepEqual([parsed, raw.content], [json.value, json.answer]);
  });

  test('bindTools', async () => {
    const { content, tool_calls: calls } = await callTide(chat());
    assert.deepEqual([content, calls], [tide.answer, []]);
    let whole: AIMessageChunk | undefined;
    let numParts = 0;
    for await (const chunk of await chat().bindTools([tideTool]).stream(messagesOf(tide))) {
      whole = whole?.concat(chunk) ?? chunk;
      numParts += chunk.tool_call_chunks?.length ?? 0;
    }
    assert.deepEqual(
      whole?.tool_calls?.map(({ name, args }) => [name, args]),
      [[tide.name, { place: tide.place }]],
    );
    expect(numParts).toBeGreaterThan(2);
  });

  test('LLM completions', async () => {
    const llm = new OpenAI({ ...options, temperature: 0, maxTokens: 6 });
    const prompts = [endless.user, 'Mira likes'];
    const { generations, llmOutput } = await llm.generate(prompts);
    for (const [i, prompt] of prompts.entries()) {
      const [one] = (await cluster.completion({ prompt, max_tokens: 6, ignore_eos: false })).choices;
      assert.deepEqual(
        generations[i]?.map(({ text, generationInfo }) => [text, generationInfo?.['finishReason'] as string]),
        [[one?.text, one?.finish_reason]],
      );
      assert.equal(await llm.invoke(prompt), one?.text);
      let streamed = '';
      for await (const text of await llm.stream(prompt)) streamed += text;
      assert.equal(streamed, one?.text);
    }
    const { promptTokens, completionTokens, totalTokens } = llmOutput?.['tokenUsage'] as Record<string, number>;
    assert.equal(totalTokens, promptTokens! + completionTokens!);
  });

  test('LLM default (bestOf,n..)', async () => {
    // Its defaults ask for one sample.
    const answer = await new OpenAI(options).invoke('Mira likes');
    expect(answer.length).toBeGreaterThan(0);
    const asked = { temperature: 1.5, topP: 0.95, maxTokens: 8, frequencyPenalty: 0.1, presencePenalty: 0.1 };
    const best = (seed: number): OpenAI => new OpenAI({ ...options, ...asked, n: 2, bestOf: 4, modelKwargs: { seed } });
    const textsOf = async (seed: number): Promise<string[]> =>
      (await best(seed).generate(['Mira likes'])).generations[0]?.map(({ text }) => text) ?? [];
    const texts = await textsOf(4);
    assert.deepEqual([texts.length, new Set(texts).size], [2, 2]);
    assert.deepEqual(await textsOf(4), texts);
    assert.notDeepEqual(await textsOf(40), texts);
  });

  test('useResponsesApi', async () => {
    const responses = chat({ useResponsesApi: true });
    const message = await responses.invoke(messages);
    assert.equal(message.text, plain.answer);
    assertUsage(message);
    let text = '';
    for await (const chunk of await responses.stream(messages)) text += chunk.text;
    assert.equal(text, plain.answer);
    assert.equal((await callTide(responses)).text, tide.answer);
    const asked = responses.withStructuredOutput(likes, { method: 'jsonSchema', name: 'likes' });
    assert.deepEqual(await asked.invoke(messagesOf(json)), json.value);
  });

  test('embeddings', async () => {
    const embeddings = new OpenAIEmbeddings({ ...options, batchSize: 2 });
    const texts = ['Who keeps the red key?', 'A lighthouse stands on the pier.', 'Locker 42.'];
    const vectors = await embeddings.embedDocuments(texts);
    assert.deepEqual(
      vectors.map(({ length }) => length),
      [EMBEDDING_SIZE, EMBEDDING_SIZE, EMBEDDING_SIZE],
    );
    for (const [i, text] of texts.entries()) assert.deepEqual(await embeddings.embedQuery(text), vectors[i]);
    assert.equal(new Set(vectors.map((vector) => vector.join())).size, 3);
  });
});
