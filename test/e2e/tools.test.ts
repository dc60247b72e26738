/** Tool calls and reasoning of the demo model that was taught both, as the official client sees them. Budget: 60 s. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import OpenAI, { APIError } from 'openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Cluster, mapConcurrently } from '../support/cluster.ts';
import { projectPath } from '../support/project.ts';
import { stoppedIn } from '../support/stopped_in.ts';

interface Expected {
  readonly content?: string;
  readonly reasoning?: string;
  readonly tool_calls?: readonly { readonly name: string; readonly arguments: unknown }[];
}

interface Case {
  readonly kind: string;
  readonly messages: OpenAI.ChatCompletionMessageParam[];
  readonly tools?: OpenAI.ChatCompletionTool[];
  readonly chat_template_kwargs?: Readonly<Record<string, unknown>>;
  readonly expected: Expected;
  readonly prompt_tokens: number;
  readonly answer_tokens: number;
}

const examples = projectPath('config/models/harbour-tools/examples.json');
const { cases } = JSON.parse(readFileSync(examples, 'utf8')) as { cases: Case[] };
const model = 'harbour-tools';

let cluster: Cluster;
let client: OpenAI;
beforeAll(async () => {
  cluster = await Cluster.up('--model', model, '--prefill', '1', '--decode', '2', '--store', '1');
  client = new OpenAI({ baseURL: `${cluster.url}/v1`, apiKey: 'none', maxRetries: 0 });
});
afterAll(async () => {
  await cluster.close();
});

/** A message or all deltas of a stream, with what other servers add to OpenAI's. */
interface Answer {
  content?: string | null;
  reasoning?: string;
  reasoning_content?: string;
  tool_calls?: { id: string; type: string; function: { name: string; arguments: string } }[];
}

/** Delta of a stream's chunk, with what other servers add to OpenAI's. */
interface Delta extends OpenAI.ChatCompletionChunk.Choice.Delta {
  reasoning?: string;
  reasoning_content?: string;
}

function bodyOf({ messages, tools, chat_template_kwargs }: Case): OpenAI.ChatCompletionCreateParamsNonStreaming {
  return { model, messages, ...(tools ? { tools } : {}), ...(chat_template_kwargs ? { chat_template_kwargs } : {}) };
}

/** The answer in the form of the examples. */
function seen({ content, reasoning, tool_calls: calls }: Answer): Expected {
  return {
    ...(content ? { content } : {}),
    ...(calls
      ? {
          tool_calls: calls.map(({ function: { name, arguments: json } }) => ({
            name,
            arguments: JSON.parse(json) as unknown,
          })),
        }
      : {}),
    ...(reasoning ? { reasoning } : {}),
  };
}

interface Streamed {
  readonly answer: Answer;
  readonly finish: string | null;
  readonly usage: OpenAI.CompletionUsage | null | undefined;
  readonly numArgumentChunks: number;
}

/** Joins a choice's chunks, and checks that they come as OpenAI sends them. */
async function streamed(body: object, wanted = 0): Promise<Streamed> {
  const stream = await client.chat.completions.create({
    ...(body as OpenAI.ChatCompletionCreateParamsStreaming),
    stream: true,
    stream_options: { include_usage: true },
  });
  const answer: Answer = {};
  let finish: string | null = null;
  let usage: Streamed['usage'];
  let numArgumentChunks = 0;
  for await (const chunk of stream) {
    usage = chunk.usage ?? usage;
    const choice = chunk.choices.find(({ index }) => index === wanted);
    if (!choice) continue;
    assert.equal(finish, null, 'nothing comes after the finish');
    finish = choice.finish_reason;
    const { content, reasoning, tool_calls: calls = [] } = choice.delta as Delta;
    if (content) answer.content = (answer.content ?? '') + content;
    if (reasoning !== undefined) {
      assert.equal((choice.delta as Delta).reasoning_content, reasoning);
      answer.reasoning = (answer.reasoning ?? '') + reasoning;
    }
    for (const call of calls) {
      answer.tool_calls ??= [];
      const { id, type, index, function: { name, arguments: json = '' } = {} } = call;
      if (id !== undefined) {
        assert.deepEqual([index, type, json], [answer.tool_calls.length, 'function', ''], 'the name comes first');
        answer.tool_calls.push({ id, type: 'function', function: { name: name ?? '', arguments: '' } });
      } else {
        const open = answer.tool_calls[index];
        assert(open && index === answer.tool_calls.length - 1);
        open.function.arguments += json;
        numArgumentChunks++;
      }
    }
  }
  return { answer, finish, usage, numArgumentChunks };
}

describe('the 60 examples are answered right', () => {
  test('whole', async () => {
    assert.equal(cases.length, 60);
    await mapConcurrently(cases, 4, async (one) => {
      const { choices, usage } = await client.chat.completions.create(bodyOf(one));
      const [choice] = choices;
      assert(choice);
      const message = choice.message as Answer;
      assert.deepEqual(seen(message), one.expected);
      const hasCalls = one.expected.tool_calls !== undefined;
      assert.equal(choice.finish_reason, hasCalls ? 'tool_calls' : 'stop');
      assert.equal(message.content, one.expected.content ?? null);
      assert.equal(message.reasoning_content, message.reasoning);
      for (const { id, type } of message.tool_calls ?? []) {
        assert.match(id, /^call_[0-9a-f]{24}$/);
        assert.equal(type, 'function');
      }
      assert.deepEqual(
        [usage?.prompt_tokens, usage?.completion_tokens],
        // The token that ends the answer counts.
        [one.prompt_tokens, one.answer_tokens],
      );
      const thought = usage?.completion_tokens_details?.reasoning_tokens ?? -1;
      if (one.expected.reasoning === undefined) assert.equal(thought, 0);
      else expect(thought).toBeGreaterThan(4);
    });
  });

  test('streamed', async () => {
    await mapConcurrently(cases, 4, async (one) => {
      const { answer, finish, usage, numArgumentChunks } = await streamed(bodyOf(one));
      assert.deepEqual(seen(answer), one.expected);
      assert.equal(finish, one.expected.tool_calls ? 'tool_calls' : 'stop');
      assert.equal(usage?.completion_tokens, one.answer_tokens);
      if (one.expected.tool_calls) expect(numArgumentChunks).toBeGreaterThan(2 * one.expected.tool_calls.length);
    });
  });
});

const byKind = (kind: string): Case => cases.find((one) => one.kind === kind) ?? assert.fail(kind);

describe('what a request says of calls and reasoning', () => {
  test('tool_choice none: the prompt has no tools, and text is text', async () => {
    const one = byKind('call');
    const without = await client.chat.completions.create({ model, messages: one.messages, max_tokens: 1 });
    const none = await client.chat.completions.create({ ...bodyOf(one), tool_choice: 'none' });
    assert.equal(none.usage?.prompt_tokens, without.usage?.prompt_tokens);
    assert.equal(none.choices[0]?.message.tool_calls ?? undefined, undefined);
    assert.equal(none.choices[0]?.finish_reason, 'stop');
  });

  test('parallel_tool_calls false: one call', async () => {
    const one = byKind('parallel');
    const body = { ...bodyOf(one), parallel_tool_calls: false };
    const { choices } = await client.chat.completions.create(body);
    assert.deepEqual(seen(choices[0]?.message as Answer).tool_calls, one.expected.tool_calls?.slice(0, 1));
    assert.deepEqual(seen((await streamed(body)).answer).tool_calls, one.expected.tool_calls?.slice(0, 1));
  });

  test('include_reasoning false: it is generated and counted, and not sent', async () => {
    const one = byKind('think');
    const body = { ...bodyOf(one), include_reasoning: false };
    const { choices, usage } = await client.chat.completions.create(body);
    assert.deepEqual(seen(choices[0]?.message as Answer), { content: one.expected.content });
    expect(usage?.completion_tokens_details?.reasoning_tokens).toBeGreaterThan(4);
    assert.deepEqual(seen((await streamed(body)).answer), { content: one.expected.content });
  });

  test('several choices have a parser each', async () => {
    const one = byKind('think_call');
    const body = { ...bodyOf(one), n: 3 };
    const { choices } = await client.chat.completions.create(body);
    for (const { message } of choices) assert.deepEqual(seen(message as Answer), one.expected);
    for (const index of [0, 2]) assert.deepEqual(seen((await streamed(body, index)).answer), one.expected);
  });

  test('log-probabilities are those of all tokens, those of the call included', async () => {
    const one = byKind('call');
    const body = { ...bodyOf(one), logprobs: true, return_token_ids: true };
    const { choices } = await client.chat.completions.create(body);
    const [choice] = choices as (OpenAI.ChatCompletion.Choice & { token_ids: number[] })[];
    const names = choice?.logprobs?.content?.map(({ token }) => token) ?? [];
    assert(names[0] === '<tool_call>' && names.includes('</tool_call>'));
    assert.equal(names.length, choice?.token_ids.length);
    const stream = await client.chat.completions.create({ ...body, stream: true });
    const streamedNames: string[] = [];
    const ids: number[] = [];
    for await (const chunk of stream)
      for (const part of chunk.choices as (OpenAI.ChatCompletionChunk.Choice & { token_ids?: number[] })[]) {
        streamedNames.push(...(part.logprobs?.content ?? []).map(({ token }) => token));
        ids.push(...(part.token_ids ?? []));
      }
    assert.deepEqual([streamedNames, ids], [names, choice?.token_ids]);
  });

  test('a length that cuts a call leaves what is there, and says so', async () => {
    const one = byKind('call');
    const { choices } = await client.chat.completions.create({ ...bodyOf(one), max_tokens: 14 });
    const [choice] = choices;
    assert.equal(choice?.finish_reason, 'length');
    const [call] = (choice.message as Answer).tool_calls ?? [];
    assert.equal(call?.function.name, one.expected.tool_calls?.[0]?.name);
    assert.throws(() => JSON.parse(call?.function.arguments ?? ''));
  });

  test('stop strings count in the text of calls too', async () => {
    const one = byKind('call');
    const { choices } = await client.chat.completions.create({ ...bodyOf(one), stop: '"arguments"' });
    const [choice] = choices;
    assert.equal(choice?.finish_reason, 'stop');
    assert.match(choice.message.content ?? '', /^<tool_call>\n\{"name": "\w+", $/);
  });

  test('the prompt of /tokenize has the tools', async () => {
    const { messages, tools, prompt_tokens: count } = byKind('call');
    const response = await fetch(`${cluster.url}/tokenize`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ messages, tools }),
    });
    assert.equal(((await response.json()) as { count: number }).count, count);
  });

  test.each([
    [{ tool_choice: { type: 'function', function: { name: 'none of them' } } }, 'tool_choice.function.name'],
    [{ tools: [{ type: 'function', function: { name: 'a b' } }] }, 'tools.0.function.name'],
    [{ tools: [{ type: 'custom', custom: { name: 'a' } }] }, 'tools.0.type'],
  ])('%j is refused with its path', async (more, param) => {
    const body = { ...bodyOf(byKind('call')), ...more } as OpenAI.ChatCompletionCreateParamsNonStreaming;
    const error: unknown = await client.chat.completions.create(body).catch((reason: unknown) => reason);
    assert(error instanceof APIError, 'it is refused');
    assert.deepEqual([error.status, error.param], [400, param]);
  });
});

/** Ids of the model's markers. */
const ids = { callOpen: 1944, callClose: 1945, thinkOpen: 1948, thinkClose: 1949 };

interface WithIds extends OpenAI.ChatCompletion.Choice {
  readonly token_ids: number[];
}

describe('a call that must come', () => {
  // The marker of reasoning, were it allowed, would come first.
  const wish = { tool_choice: 'required', return_token_ids: true, logit_bias: { [ids.thinkOpen]: 100 } } as const;

  test('comes at once where the template turns the reasoning off', async () => {
    const one = byKind('call');
    const body = { ...bodyOf(one), ...wish, n: 4, temperature: 1.5 };
    const { choices, usage } = await client.chat.completions.create(body);
    for (const { message, token_ids: tokens } of choices as WithIds[]) {
      assert.equal(tokens[0], ids.callOpen);
      assert((message as Answer).tool_calls?.length, 'it calls');
      assert.equal((message as Answer).reasoning, undefined);
    }
    assert.equal(usage?.completion_tokens_details?.reasoning_tokens, 0);
  });

  test('may have reasoning before it where the template leaves it on', async () => {
    const body = { ...bodyOf(byKind('think_call')), ...wish, max_tokens: 1 };
    const [choice] = (await client.chat.completions.create(body)).choices as WithIds[];
    assert.deepEqual(choice?.token_ids, [ids.thinkOpen]);
  });
});

test('usage with every chunk is that of its choice, reasoning included', async () => {
  const stream = await client.chat.completions.create({
    ...bodyOf(byKind('think')),
    n: 3,
    temperature: 1,
    seed: 2,
    max_tokens: 60,
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  } as OpenAI.ChatCompletionCreateParamsStreaming);
  const last = new Map<number, { tokens: number; thought: number }>();
  let total: { tokens: number; thought: number } | undefined;
  for await (const { choices, usage } of stream) {
    assert(usage);
    const seenUsage = {
      tokens: usage.completion_tokens,
      thought: usage.completion_tokens_details?.reasoning_tokens ?? -1,
    };
    const [choice] = choices;
    if (!choice) total = seenUsage;
    else {
      const before = last.get(choice.index) ?? { tokens: 0, thought: 0 };
      assert(seenUsage.tokens >= before.tokens && seenUsage.thought >= before.thought, 'counts grow');
      assert(seenUsage.thought <= seenUsage.tokens);
      last.set(choice.index, seenUsage);
    }
  }
  const sum = (of: (one: { tokens: number; thought: number }) => number): number =>
    [...last.values()].reduce((all, one) => all + of(one), 0);
  assert.deepEqual(
    [last.size, total],
    [3, { tokens: sum(({ tokens }) => tokens), thought: sum(({ thought }) => thought) }],
  );
  for (const { thought } of last.values()) expect(thought).toBeGreaterThan(4);
});

test('markers that are special tokens are enforced as such, in calls and around the reasoning', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'special-'));
  cpSync(projectPath('config/models/harbour-tools'), folder, { recursive: true });
  const tokenizer = JSON.parse(readFileSync(join(folder, 'tokenizer.json'), 'utf8')) as {
    added_tokens: { content: string; special: boolean }[];
  };
  for (const token of tokenizer.added_tokens) token.special = true;
  writeFileSync(join(folder, 'tokenizer.json'), JSON.stringify(tokenizer));
  const special = await Cluster.up('--model', folder, '--prefill', '0', '--decode', '1', '--store', '0');
  try {
    const own = new OpenAI({ baseURL: `${special.url}/v1`, apiKey: 'none', maxRetries: 0 });
    const [served] = (await own.models.list()).data;
    const ask = async (one: Case, more: object): Promise<WithIds> => {
      const body = { ...bodyOf(one), ...more, model: served?.id ?? '', return_token_ids: true };
      const { choices } = await own.chat.completions.create(body as OpenAI.ChatCompletionCreateParamsNonStreaming);
      return choices[0] as WithIds;
    };
    for (const kind of ['call', 'parallel', 'think_call']) {
      const one = byKind(kind);
      const { message, token_ids: tokens } = await ask(one, { tool_choice: 'required' });
      assert.deepEqual(seen(message as Answer), one.expected, kind);
      assert.equal(tokens[0], kind === 'think_call' ? ids.thinkOpen : ids.callOpen);
      assert.equal(tokens.filter((id) => id === ids.callClose).length, one.expected.tool_calls?.length);
    }
    // In JSON no special token stands anywhere, whatever the model wants.
    const all = { logit_bias: Object.fromEntries(Object.values(ids).map((id) => [id, 100])) };
    const { message, token_ids: tokens } = await ask(byKind('call'), {
      ...all,
      tools: undefined,
      response_format: { type: 'json_object' },
      max_tokens: 40,
    });
    assert.equal(tokens.filter((id) => Object.values(ids).includes(id)).length, 0);
    assert.match(message.content ?? '', /^\{/);
  } finally {
    await special.close();
    rmSync(folder, { recursive: true });
  }
});

test('the loop that the README shows prints the answer that it says', async () => {
  const page = readFileSync(projectPath('README.md'), 'utf8');
  const [, block = ''] = /```js\n([^]*?)```/.exec(page) ?? [];
  const said = /console\.log\(.*\); \/\/ (.+)/.exec(block)?.[1];
  const script = block.replace('http://127.0.0.1:8000', cluster.url);
  const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '--eval', script], {
    cwd: projectPath('.'),
  });
  assert.equal(stdout.trim(), said);
});

test('a decode instance killed mid-stream: reasoning and calls go on where they were (R1)', async () => {
  const one = byKind('think_call');
  const body = { ...bodyOf(one), temperature: 1.2, seed: 6, max_tokens: 1_500, ignore_eos: true };
  const textOf = ({ content, reasoning, tool_calls: calls = [] }: Answer): object => ({
    content: content ?? '',
    reasoning: reasoning ?? '',
    calls: calls.map(({ function: { name, arguments: json } }) => [name, json]),
  });
  const undisturbed = await client.chat.completions.create(body);
  const { answer: stream, victim } = await stoppedIn(cluster, 'answer', () => streamed(body));
  cluster.kill(victim, 'SIGKILL');
  const { answer, finish } = await stream;
  assert.deepEqual(textOf(answer), textOf(undisturbed.choices[0]?.message as Answer));
  assert.deepEqual([finish, answer.reasoning !== undefined], ['length', true]);
  const [request] = await cluster.requests(1);
  expect(new Set(request?.attempts.map(({ decode }) => decode)).size).toBe(2);
});
