/** SGLang's checks of completions and chats in all their forms (`test_openai_server`). */
import assert from 'node:assert/strict';
import {
  assertUsage,
  type Api,
  type Body,
  type ChatChunk,
  type CompletionChunk,
  type CompletionView,
  type UsageView,
} from '../api.ts';
import { messages, model } from '../samples.ts';
import type { Check } from '../suite.ts';

const prompt = 'The Heron came in at';
const flag = (is: boolean): string => (is ? 'True' : 'False');

interface Form {
  readonly isEchoing: boolean;
  readonly numLogprobs: number | null;
  readonly isList: boolean;
  readonly numSamples: number;
  readonly isIds: boolean;
}

/** Defines the checks of every combination of stream, echo, log-probabilities, several prompts, samples, and token ids. */
export function completionForms(check: Check, api: Api): void {
  const both = [false, true];
  const forms = both.flatMap((isEchoing) =>
    [null, 5].flatMap((numLogprobs) =>
      [true, false].flatMap((isList) =>
        [1, 2].flatMap((numSamples) =>
          both.map((isIds): Form => ({ isEchoing, numLogprobs, isList, numSamples, isIds })),
        ),
      ),
    ),
  );
  for (const isStream of both) {
    for (const form of forms) {
      const { isEchoing, numLogprobs, isList, numSamples, isIds } = form;
      const name = `stream=${flag(isStream)} echo=${flag(isEchoing)} lp=${numLogprobs ?? 'None'} list=${flag(isList)} n=${numSamples} tok=${flag(isIds)}`;
      check(`completion ${name}`, async () => {
        await (isStream ? streamed(api, form) : whole(api, form));
      });
    }
  }
}

async function wishOf(api: Api, { isEchoing, numLogprobs, isList, numSamples, isIds }: Form): Promise<Body> {
  const one = isIds ? await api.tokens(prompt) : prompt;
  return {
    model,
    temperature: 0,
    max_tokens: 32,
    echo: isEchoing,
    logprobs: numLogprobs,
    n: numSamples,
    prompt: isList ? [one, one] : one,
  };
}

/** Whole answers by their wish, which the checks of streams compare with. */
const answers = new Map<string, Promise<CompletionView>>();

async function wholeOf(api: Api, form: Form): Promise<CompletionView> {
  const wish = await wishOf(api, form);
  const key = JSON.stringify(wish);
  const answer = answers.get(key) ?? api.complete(wish);
  answers.set(key, answer);
  return answer;
}

async function whole(api: Api, form: Form): Promise<void> {
  const { id, created, choices, usage } = await wholeOf(api, form);
  const numPrompts = form.isList ? 2 : 1;
  assert(id !== '' && created > 0);
  assert.equal(choices.length, numPrompts * form.numSamples);
  assertUsage(usage);
  assert.equal(usage.prompt_tokens, numPrompts * (await api.tokens(prompt)).length, 'samples share their prompt');
  for (const { text, logprobs } of choices) {
    assert.equal(text.startsWith(prompt), form.isEchoing);
    if (form.numLogprobs === null) {
      assert.equal(logprobs, null);
      continue;
    }
    assert(logprobs);
    assert.equal(logprobs.tokens.join(''), text);
    // A token that is not among the best ones stands next to them.
    const { length } = Object.keys(logprobs.top_logprobs[1] ?? {});
    assert(length === form.numLogprobs || (form.isEchoing && length === form.numLogprobs + 1), `${length}`);
    if (form.isEchoing) assert.equal(logprobs.token_logprobs[0], null);
    else assert((logprobs.token_logprobs[0] ?? 0) < 0);
  }
}

async function streamed(api: Api, form: Form): Promise<void> {
  const chunks = await api.completionStream({ ...(await wishOf(api, form)), stream_options: { include_usage: true } });
  const usages: UsageView[] = [];
  const texts = new Map<number, string>();
  for (const chunk of chunks) {
    if (chunk.usage) {
      usages.push(chunk.usage);
      continue;
    }
    const [{ index, text }] = choiceOf(chunk);
    const isFirst = !texts.has(index);
    if (isFirst && form.isEchoing) assert(text.startsWith(prompt), 'the prompt comes in one part');
    texts.set(index, (texts.get(index) ?? '') + text);
    if (form.numLogprobs !== null) assertChunkLogprobs(chunk, isFirst && form.isEchoing);
  }
  assert.equal(usages.length, 1);
  const { choices, usage } = await wholeOf(api, form);
  assertUsage(usages[0]);
  assert.equal(usages[0].prompt_tokens, usage.prompt_tokens);
  assert.deepEqual(
    choices.map(({ index }) => texts.get(index)),
    choices.map(({ text }) => text),
  );
  assert.equal(texts.size, choices.length);
}

function choiceOf({ id, created, choices }: CompletionChunk): [CompletionChunk['choices'][number]] {
  assert(id !== '' && created > 0);
  assert.equal(choices.length, 1);
  return [choices[0]!];
}

function assertChunkLogprobs(chunk: CompletionChunk, isEcho: boolean): void {
  const { logprobs } = choiceOf(chunk)[0];
  assert(logprobs && logprobs.tokens.length > 0, 'every chunk has log-probabilities, the last too');
  assert.equal(typeof logprobs.tokens[0], 'string');
  if (!isEcho) assert(Object.keys(logprobs.top_logprobs[0] ?? {}).length > 0);
}

/** Defines the checks of chats, whole and streamed, with and without log-probabilities and several samples. */
export function chatForms(check: Check, api: Api): void {
  for (const numTop of [null, 5]) {
    for (const numSamples of [1, 2]) {
      const name = `lp=${numTop ?? 'None'} n=${numSamples}`;
      const wish = { model, messages, temperature: 0, logprobs: numTop !== null, top_logprobs: numTop, n: numSamples };
      check(`chat ${name}`, async () => {
        await wholeChat(api, wish, numTop, numSamples);
      });
      check(`chat stream ${name}`, async () => {
        await streamedChat(api, wish, numTop, numSamples);
      });
    }
  }
}

async function wholeChat(api: Api, wish: Body, numTop: number | null, numSamples: number): Promise<void> {
  const { id, created, choices, usage } = await api.chat(wish);
  assert(id !== '' && created > 0);
  assertUsage(usage);
  assert.equal(choices.length, numSamples);
  for (const { message, logprobs } of choices) {
    assert.equal(message.role, 'assistant');
    assert.equal(message.content, choices[0]?.message.content, 'greedy samples are equal');
    assert.notEqual(message.content, '');
    if (numTop === null) assert.equal(logprobs, null);
    else assert.equal(logprobs?.content[0]?.top_logprobs.length, numTop);
  }
}

async function streamedChat(api: Api, wish: Body, numTop: number | null, numSamples: number): Promise<void> {
  const chunks = await api.chatStream({ ...wish, stream_options: { include_usage: true } });
  const contents = new Map<number, string>();
  const ended = new Map<number, number>();
  for (const { id, created, usage, choices } of chunks) {
    if (usage) {
      assertUsage(usage);
      continue;
    }
    assert(id !== '' && created > 0);
    const choice = choices[0]!;
    const { index, delta, finish_reason: finish } = choice;
    if (!contents.has(index)) assert.equal(delta.role, 'assistant');
    else if (finish === null) assertDelta(choice, numTop);
    contents.set(index, (contents.get(index) ?? '') + (delta.content ?? ''));
    if (finish !== null) ended.set(index, (ended.get(index) ?? 0) + 1);
  }
  const all = await api.chat(wish);
  assert.deepEqual(
    [...contents].sort(([a], [b]) => a - b),
    all.choices.map(({ index, message }) => [index, message.content]),
  );
  assert.deepEqual([...ended.values()], Array<number>(numSamples).fill(1), 'each choice ends once');
}

function assertDelta({ delta, logprobs }: ChatChunk['choices'][number], numTop: number | null): void {
  assert.equal(typeof (delta.content ?? delta.reasoning_content), 'string');
  if (numTop === null) return;
  assert.equal(logprobs?.content[0]?.top_logprobs.length, numTop);
  assert.equal(typeof logprobs.content[0].top_logprobs[0]?.token, 'string');
}
