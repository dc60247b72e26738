/** `/v1/messages` and `/v1/messages/count_tokens` over plain HTTP; Anthropic's client asks in clients/anthropic.test.ts. Budget: 20 s. */
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Cluster } from '../support/cluster.ts';
import { NEVER_SILENT, until } from '../support/until.ts';
import { Api } from './peers/api.ts';
import { answer, CONTEXT, messages, model } from './peers/samples.ts';

const PATH = '/v1/messages';
const COUNT = '/v1/messages/count_tokens';
let cluster: Cluster;
const api = new Api(() => cluster.url);
beforeAll(async () => {
  cluster = await Cluster.inProcess('--prefill', '0', '--store', '0');
});
afterAll(async () => {
  await cluster.close();
});

const system = messages[0]!.content;
const question = { role: 'user' as const, content: messages[1]!.content };
const wish = { model, max_tokens: 64, temperature: 0, system, messages: [question] };

interface MessageView {
  readonly content: { readonly type: string; readonly text?: string }[];
  readonly stop_reason: string;
  readonly stop_sequence: string | null;
  readonly usage: Record<'input_tokens' | 'output_tokens' | 'cache_read_input_tokens', number>;
}
const ask = (keys: object): Promise<MessageView> => api.answer<MessageView>(PATH, { ...wish, ...keys });
const promptOf = ({ usage }: MessageView): number => usage.input_tokens + usage.cache_read_input_tokens;

const JSON_TYPE = { 'content-type': 'application/json' };
function post(path: string, body: object | string): Promise<Response> {
  return fetch(`${cluster.url}${path}`, {
    method: 'POST',
    headers: JSON_TYPE,
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
}

interface ErrorView {
  readonly type: string;
  readonly error: { readonly type: string; readonly message: string };
  readonly request_id: string | null;
}
async function refused(path: string, body: object | string, status: number): Promise<ErrorView> {
  const response = await post(path, body);
  assert.equal(response.status, status);
  const error = (await response.json()) as ErrorView;
  assert.deepEqual(Object.keys(error), ['type', 'error', 'request_id']);
  assert.equal(error.type, 'error');
  return error;
}

interface EventView {
  readonly name: string;
  readonly data: { readonly type: string; readonly [key: string]: unknown };
}
async function streamed(keys: object, url = cluster.url): Promise<EventView[]> {
  const body = JSON.stringify({ ...wish, stream: true, ...keys });
  const response = await fetch(`${url}${PATH}`, { method: 'POST', headers: JSON_TYPE, body });
  assert.equal(response.status, 200);
  assert.match(response.headers.get('content-type') ?? '', /^text\/event-stream/);
  const parts = (await response.text()).split('\n\n');
  assert.equal(parts.pop(), '');
  return parts.map((part) => {
    const [, name = '', data = ''] = /^event: (\w+)\ndata: (.*)$/.exec(part) ?? assert.fail(part);
    return { name, data: JSON.parse(data) as EventView['data'] };
  });
}

describe('over plain HTTP', () => {
  test('a message is the text of the chat, with its usage', async () => {
    const own = await ask({});
    const chat = await api.chat({ messages, temperature: 0, max_tokens: 64 });
    expect(own).toMatchObject({
      type: 'message',
      role: 'assistant',
      model,
      stop_reason: 'end_turn',
      stop_sequence: null,
    });
    assert.deepEqual(own.content, [{ type: 'text', text: answer, citations: null }]);
    assert.deepEqual(
      [promptOf(own), own.usage.output_tokens],
      [chat.usage.prompt_tokens, chat.usage.completion_tokens],
    );
  });

  test('a stream has its events in order, each with its name, and ends with the usage of the message', async () => {
    const events = await streamed({});
    for (const { name, data } of events) assert.equal(name, data.type);
    const names = events.map(({ name }) => name);
    const deltas = names.filter((name) => name === 'content_block_delta');
    assert.deepEqual(names, [
      ...['message_start', 'ping', 'content_block_start', ...deltas],
      ...['content_block_stop', 'message_delta', 'message_stop'],
    ]);
    const texts = events.map(({ data }) => (data['delta'] as { text?: string } | undefined)?.text ?? '');
    assert.equal(texts.join(''), answer);
    const { delta, usage } = events.at(-2)?.data as unknown as { delta: MessageView; usage: MessageView['usage'] };
    assert.deepEqual([delta.stop_reason, delta.stop_sequence], ['end_turn', null]);
    assert.equal(usage.output_tokens, (await ask({})).usage.output_tokens);
  });

  test('why it ended: length, a stop sequence, the end of the context', async () => {
    const cut = await ask({ max_tokens: 2 });
    assert.deepEqual([cut.stop_reason, cut.usage.output_tokens], ['max_tokens', 2]);
    const stop = answer.split(' ')[2]!;
    const stopped = await ask({ stop_sequences: ['nothing', stop] });
    assert.deepEqual([stopped.stop_reason, stopped.stop_sequence], ['stop_sequence', stop]);
    assert.equal(stopped.content[0]?.text, answer.slice(0, answer.indexOf(stop)));
    // More than the context has room for is shortened to what fits: here to an answer that cannot end before the context does.
    const long = Array.from({ length: CONTEXT - 60 }, () => ' a').join('');
    const whole = await ask({
      system: undefined,
      max_tokens: 32_000,
      messages: [{ role: 'user', content: long }],
      output_config: { format: { type: 'json_schema', schema: { const: 'x'.repeat(1_000) } } },
    });
    const wanted = ['model_context_window_exceeded', CONTEXT - promptOf(whole)];
    assert.deepEqual([whole.stop_reason, whole.usage.output_tokens], wanted);
  });

  test("an assistant's last message is continued", async () => {
    const half = answer.slice(0, answer.indexOf(' ', answer.length / 2));
    const { content } = await ask({ messages: [question, { role: 'assistant', content: half }] });
    assert.equal(half + (content[0]?.text ?? ''), answer);
  });

  test('the line of billing spoils no hit, and a count is what the request takes', async () => {
    const log = `${system}\n${Array.from({ length: 12 }, (_, i) => `Locker ${i} opens with code ${1_000 + i}.`).join('\n')}`;
    const asked = (hash: string): object => ({
      system: [
        {
          type: 'text',
          text: `x-anthropic-billing-header: cc_version=2.1.15.${hash}; cc_entrypoint=cli; cch=${hash};`,
        },
        { type: 'text', text: log, cache_control: { type: 'ephemeral' } },
      ],
    });
    const first = await ask(asked('0a1b2'));
    const second = await ask(asked('9f8e7'));
    assert.equal(promptOf(first), promptOf(second));
    expect(second.usage.cache_read_input_tokens).toBeGreaterThanOrEqual(promptOf(second) - 64);
    assert.deepEqual(second.content, first.content);
    const body = { model, messages: [question], ...asked('5') };
    assert.deepEqual(await api.answer(COUNT, body), { input_tokens: promptOf(first) });
  });

  test('what is not there is named in a header', async () => {
    const tools = [{ type: 'web_search_20250305', name: 'web_search' }];
    const response = await post(`${PATH}?beta=true`, { ...wish, tools, context_management: { edits: [] } });
    assert.equal(response.status, 200);
    assert.equal(response.headers.get('x-penstock-ignored'), 'context_management, tools.0:web_search_20250305');
    assert.equal(response.headers.get('request-id'), response.headers.get('x-request-id'));
    await response.text();
  });

  test("every error has Anthropic's form", async () => {
    const image = { role: 'user', content: [{ type: 'image', source: { type: 'url', url: 'x' } }] };
    const bad = await refused(PATH, { ...wish, messages: [image] }, 400);
    assert.equal(bad.error.type, 'invalid_request_error');
    assert.match(bad.error.message, /^messages\.0\.content\.0: .*"image"/);
    assert.match(bad.request_id ?? '', /^\w+$/);
    assert.match((await refused(PATH, { ...wish, max_tokens: undefined }, 400)).error.message, /^max_tokens: /);
    assert.match((await refused(PATH, '{', 400)).error.message, /JSON/);
    const unknown = await refused(COUNT, { ...wish, model: 'claude' }, 404);
    assert.equal(unknown.error.type, 'not_found_error');
    const long = { role: 'user', content: 'Tide '.repeat(CONTEXT) };
    assert.match((await refused(PATH, { ...wish, messages: [long] }, 400)).error.message, /^prompt is too long: /);
    assert.equal((await refused(PATH, ' '.repeat(5 << 20), 413)).error.type, 'request_too_large');
    assert.equal((await refused(`${PATH}/batches`, {}, 404)).error.type, 'not_found_error');
    const got = await fetch(`${cluster.url}${PATH}`);
    assert.deepEqual([got.status, ((await got.json()) as ErrorView).error.type], [405, 'invalid_request_error']);
  });
});

test('a stream that waits sends pings, ends with its client, and with an event of the error when it fails', async () => {
  // eslint-disable-next-line time/speed -- the instance is stopped: their own limit ends requests
  const times = ['--sse-keep-alive-ms', '300', '--request-timeout-ms', '4000', ...NEVER_SILENT];
  const slow = await Cluster.up('--prefill', '0', '--store', '0', ...times);
  const pid = slow.pidOf('decode-1');
  try {
    const own = new Anthropic({ baseURL: slow.url, apiKey: 'none', maxRetries: 0 });
    // The requests time out together; the instance that says nothing is not dropped before.
    process.kill(pid, 'SIGSTOP');
    const failed = streamed({}, slow.url);
    const failing = own.messages.stream(wish).finalMessage();
    const rejected = assert.rejects(failing, (error: unknown) => {
      assert(error instanceof Anthropic.APIError && error.status === undefined, String(error));
      assert.equal(error.type, 'timeout_error');
      return true;
    });
    await until('a request has ended with its client, before its limit', async () => {
      const leaving = new AbortController();
      const left = await own.messages.create({ ...wish, stream: true }, { signal: leaving.signal }).asResponse();
      await left.body?.getReader().read();
      leaving.abort();
      const id = left.headers.get('request-id');
      const ended = await until('it has ended', async () =>
        (await slow.requests()).find((view) => view.id === id && /cancelled|failed/.test(view.phase)),
      );
      return ended.phase === 'cancelled';
    });
    const events = await failed;
    await rejected;
    const last = events.pop();
    expect(events.length).toBeGreaterThan(1);
    for (const { name, data } of events) assert.deepEqual([name, data], ['ping', { type: 'ping' }]);
    expect(last).toMatchObject({ name: 'error', data: { type: 'error', error: { type: 'timeout_error' } } });
    assert.match(String(last?.data['request_id']), /^[0-9a-f]+$/);
  } finally {
    process.kill(pid, 'SIGCONT');
    await slow.close();
  }
});
