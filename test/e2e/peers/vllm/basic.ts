/** vLLM's checks of small routes, of requests that end early, and of token ids in answers (`basic/…`). */
import assert from 'node:assert/strict';
import { until } from '../../../support/until.ts';
import { COMPLETIONS, CHAT, contentsOf, type Api, type Body, type CompletionChunk } from '../api.ts';
import { CONTEXT, END, messages, model, openPrompt } from '../samples.ts';
import type { Check, PeerSuite } from '../suite.ts';

/** Defines the checks of `basic/test_basic` and `basic/test_return_token_ids`. */
export function basicChecks(suite: PeerSuite, api: Api): void {
  suite.group('basic/test_basic', (check) => {
    routes(check, api);
    requests(check, api);
  });
  suite.group('basic/test_return_token_ids', (check) => {
    completionIds(check, api);
    chatIds(check, api);
  });
}

function routes(check: Check, api: Api): void {
  check('version', async () => {
    const body = await api.get<Record<string, string>>('/version');
    assert.deepEqual(Object.keys(body), ['version']);
    assert.match(body['version'] ?? '', /^\d+\.\d+\.\d+/);
  });
  check('health', async () => {
    assert.equal((await api.get<{ status: string }>('/health')).status, 'ok');
  });
  check('server_load /load', async () => {
    assert.equal(await api.load(), 0);
    const gone = new AbortController();
    const wish = { prompt: openPrompt, max_tokens: 1_000, temperature: 0, ignore_eos: true };
    const running = api.post(COMPLETIONS, wish, { signal: gone.signal });
    await until('the request counts', async () => (await api.load()) === 1);
    gone.abort();
    await Promise.allSettled([running]);
    await until('it counts no longer', async () => (await api.load()) === 0);
  });
}

function requests(check: Check, api: Api): void {
  check('request_cancellation (60 x)', async () => {
    const most = CONTEXT - 200;
    const long = { model, messages, max_tokens: most, min_tokens: most };
    // The instance computes none of them to its end before the last has come.
    const gone = new AbortController();
    const asked = Array.from({ length: 60 }, () => api.post(CHAT, long, { signal: gone.signal }));
    await until('all count', async () => (await api.load()) === 60);
    gone.abort();
    for (const one of await Promise.allSettled(asked)) {
      assert.equal(one.status, 'rejected', 'none was refused and none has finished');
      assert.equal((one.reason as Error).name, 'AbortError');
    }
    const { choices } = await api.chat({ model, messages, max_tokens: 10 });
    assert.equal(choices.length, 1);
    const metrics = async (): Promise<string> => (await api.fetch('/metrics')).text();
    await until('nothing of them runs', async () => /^vllm:num_requests_running\{.*\} 0$/m.test(await metrics()));
  });
  check('wrong_content_type -> APIStatusError', async () => {
    const headers = { 'content-type': 'application/x-www-form-urlencoded' };
    const response = await api.post(CHAT, { model, messages }, { headers });
    assert.equal(response.status, 415);
    const { error } = (await response.json()) as { error: { message: string } };
    assert.match(error.message, /application\/json/);
  });
  check('min_tokens accepted', async () => {
    const { usage, choices } = await api.chat({ model, messages, temperature: 0, max_tokens: 40, min_tokens: 40 });
    assert.deepEqual([usage.completion_tokens, choices[0]?.finish_reason], [40, 'length']);
  });
}

function completionIds(check: Check, api: Api): void {
  const prompt = 'Complete this sentence with emojis: I love coding 🚀';
  check('completion emoji', async () => {
    const wish = { model, prompt, max_tokens: 10, temperature: 0, logprobs: 1 };
    for (const more of [{}, { return_token_ids: false }]) {
      const [choice] = (await api.complete({ ...wish, ...more })).choices;
      assert(choice && Object.hasOwn(choice, 'prompt_token_ids'));
      assert.deepEqual([choice.prompt_token_ids, choice.token_ids ?? null], [null, null]);
    }
    const [choice] = (await api.complete({ ...wish, return_token_ids: true })).choices;
    assert.deepEqual(choice?.prompt_token_ids, await api.tokens(prompt));
    assert(choice.token_ids && choice.token_ids.length > 0);
    assert((await api.text(choice.token_ids)).startsWith(choice.text));
  });
  check('prompt_logprobs+echo+tokens_as_ids', async () => {
    const asIds = { model, temperature: 0, return_token_ids: true, return_tokens_as_token_ids: true, logprobs: 1 };
    const wish = {
      ...asIds,
      prompt: 'Hello, world! How are you today?',
      max_tokens: 20,
      echo: true,
      prompt_logprobs: 1,
    };
    const [choice] = (await api.complete(wish)).choices;
    const { token_ids: ids, prompt_token_ids: promptIds, prompt_logprobs: list, logprobs: lists } = choice!;
    assert(ids && promptIds && list && lists);
    assert.equal(list.length, promptIds.length);
    assert.deepEqual(idsOf(lists.tokens), [...promptIds, ...ids]);
    for (const top of lists.top_logprobs.slice(1)) for (const name of Object.keys(top ?? {})) assert.match(name, AS_ID);
    assert.equal(choice!.text, 'Hello, world! How are you today?' + withoutEnd(await api.text(ids)));
    const chunks = await api.completionStream({ ...asIds, prompt: openPrompt, max_tokens: 30 });
    assert.deepEqual(chunks[0]?.choices[0]?.prompt_token_ids, await api.tokens(openPrompt));
    assert.deepEqual(idsOf(chunks.flatMap(({ choices }) => choices[0]!.logprobs!.tokens)), streamedIds(chunks));
  });
}

const AS_ID = /^token_id:\d+$/;

function idsOf(names: readonly string[]): number[] {
  return names.map((name) => {
    assert.match(name, AS_ID);
    return Number(name.slice('token_id:'.length));
  });
}

function streamedIds(chunks: readonly CompletionChunk[]): number[] {
  return chunks.flatMap(({ choices }) => {
    assert(choices[0]?.token_ids, 'every chunk has ids');
    return choices[0].token_ids;
  });
}

const withoutEnd = (text: string): string => (text.endsWith(END.text) ? text.slice(0, -END.text.length) : text);

function chatIds(check: Check, api: Api): void {
  const repeat = [
    { role: 'system', content: 'You like to use emojis in your responses.' },
    { role: 'user', content: 'Repeat after me: I love cats 🐱' },
  ];
  const wish: Body = { model, messages: repeat, max_tokens: 50, temperature: 0, return_token_ids: true };
  const rendered = `<|im_start|>system\n${repeat[0]!.content}<|im_end|>\n<|im_start|>user\n${repeat[1]!.content}<|im_end|>\n<|im_start|>assistant\n`;
  check('chat (without tools)', async () => {
    const { choices, prompt_token_ids: promptIds } = await api.chat({ ...wish, logprobs: true });
    assert(promptIds && choices[0]?.token_ids);
    assert((await api.text(promptIds)).endsWith(rendered));
    const { message, token_ids: ids, finish_reason: finish } = choices[0];
    assert.equal(await api.text(ids), `${message.content}${finish === 'stop' ? END.text : ''}`);
  });
  check('chat with tools', async () => {
    const parameters = {
      type: 'object',
      properties: { location: { type: 'string' }, unit: { type: 'string', enum: ['celsius', 'fahrenheit'] } },
      required: ['location'],
    };
    const question = "What's the weather like in Paris?";
    const asked = {
      ...wish,
      tool_choice: 'auto',
      tools: [{ type: 'function', function: { name: 'get_weather', description: 'The weather', parameters } }],
      messages: [repeat[0], { role: 'user', content: question }],
    };
    const { choices, prompt_token_ids: promptIds } = await api.chat(asked);
    const [choice] = choices;
    assert(promptIds && choice?.token_ids && choice.token_ids.length > 0);
    const prompt = await api.text(promptIds);
    assert(prompt.includes('get_weather') && prompt.includes('celsius'), 'the template has the tools');
    assert(prompt.endsWith(`${question}<|im_end|>\n<|im_start|>assistant\n`));
    for (const { function: called } of choice.message.tool_calls ?? []) assert.equal(called.name, 'get_weather');
    const silent = await api.chat({ ...asked, return_token_ids: false });
    assert(Object.hasOwn(silent, 'prompt_token_ids') && Object.hasOwn(silent.choices[0]!, 'token_ids'));
    assert.deepEqual([silent.prompt_token_ids, silent.choices[0]!.token_ids], [null, null]);
  });
  check('chat emoji stream', async () => {
    const whole = await api.chat(wish);
    const [first, ...rest] = await api.chatStream(wish);
    assert.deepEqual(first?.prompt_token_ids, whole.prompt_token_ids);
    for (const chunk of rest) assert(!Object.hasOwn(chunk, 'prompt_token_ids'));
    const choices = [first!, ...rest].map(({ choices: [choice] }) => choice!);
    for (const choice of choices) assert(!Object.hasOwn(choice, 'token_ids') || Array.isArray(choice.token_ids));
    const ids = choices.flatMap(({ token_ids: some }) => some ?? []);
    assert.deepEqual(ids, whole.choices[0]?.token_ids);
    const [content] = contentsOf([first!, ...rest]);
    assert.equal(withoutEnd(await api.text(ids)), content);
    assert.notEqual(content, '');
  });
}
