/**
 * A running cluster shows nothing of a prompt after its request, in any route, stream, metric, log, span or line of the audit log; with
 * `--log-prompts` exactly `/api/requests/{id}` has it. What travels on a bus is in bus_attacks.test.ts. Budget: 40 s.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, expect, test } from 'vitest';
import { Cluster, temporaryFolder } from '../support/cluster.ts';
import { SpanReceiver } from '../support/span_receiver.ts';
import { until } from '../support/until.ts';

const WORD = 'heliotrope';
const IDS = [901, 742, 688, 533];
/** Id that no vocabulary has. */
const FAR_ID = 87_654_321;
const MARKS = [new RegExp(WORD), new RegExp(IDS.slice(0, 2).join('[\\s,"]+')), new RegExp(String(FAR_ID))];

let cluster: Cluster | undefined;
let receiver: SpanReceiver | undefined;
const folder = temporaryFolder();
afterAll(() => {
  folder.remove();
});
afterEach(async () => {
  await cluster?.close();
  receiver?.close();
  [cluster, receiver] = [undefined, undefined];
});

const hasMark = (text: string): boolean => MARKS.some((mark) => mark.test(text));

async function post(path: string, body: object | string, clientId: string, signal?: AbortSignal): Promise<Response> {
  return fetch(`${cluster?.url}${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-request-id': clientId },
    body: typeof body === 'string' ? body : JSON.stringify(body),
    ...(signal ? { signal } : {}),
  });
}

/** Sends prompts with marks in all ways, the last one after the next tick of `/api/stream`. Returns the text of the chat's answer. */
async function sendAll(ticks: readonly string[]): Promise<string> {
  const messages = [{ role: 'user', content: `${WORD} ${'and more '.repeat(40)}` }];
  const limits = { max_tokens: 12, temperature: 0, ignore_eos: true };
  const chat = await post('/v1/chat/completions', { messages, ...limits }, 'chat');
  const { choices } = (await chat.json()) as { choices: [{ message: { content: string } }] };
  for (const [clientId, path, body] of [
    ['text', '/v1/completions', { prompt: `${WORD} once upon a time`, ...limits }],
    ['ids', '/v1/completions', { prompt: IDS, ...limits }],
    ['embedding', '/v1/embeddings', { input: [`${WORD} and`, IDS] }],
    ['tokenize', '/tokenize', { prompt: WORD }],
    ['lookup', '/api/lookup', { messages }],
    ['lookup', '/api/lookup', { tokens: IDS }],
  ] as const)
    assert.equal((await post(path, body, clientId)).status, 200, path);
  for (const [path, body] of [
    ['/v1/chat/completions', { messages, temperature: -5 }],
    ['/v1/chat/completions', { messages: [...messages, { role: 'user', content: [{ type: 'image', text: WORD }] }] }],
    ['/v1/completions', { prompt: [...IDS, FAR_ID] }],
    ['/v1/completions', `{"prompt": "${WORD}" x}`],
    ['/v1/completions', { prompt: `${WORD} `.repeat(10_000) }],
    ['/api/lookup', { tokens: [...IDS, FAR_ID] }],
  ] as const)
    assert.equal((await post(path, body, 'refused')).status, 400, path);
  // A tick has room for some requests only, failed ones first: all of them in one second would leave the last one out.
  const numTicks = (): number => ticks.join('').split('event: tick').length;
  const numBefore = numTicks();
  await until('the others have had their tick', () => numTicks() > numBefore);
  const leaving = new AbortController();
  const long = { prompt: `${WORD} a long one`, max_tokens: 200, ignore_eos: true, stream: true };
  const streamed = await post('/v1/completions', long, 'left', leaving.signal);
  await streamed.body?.getReader().read();
  leaving.abort();
  await cluster?.idle();
  return choices[0].message.content;
}

interface Row {
  readonly id: string;
  readonly client_id: string | null;
}

async function textOf(path: string): Promise<string> {
  return (await fetch(`${cluster?.url}${path}`)).text();
}

/** Returns what each route of the router's inside shows, by its path; the routes are those that the router lists. */
async function shown(rows: readonly Row[]): Promise<Map<string, string>> {
  const routes = [...(await textOf('/api/none')).matchAll(/GET (\/(?:api\/[\w/{}]+|metrics))/g)].map(
    ([, path = '']) => path,
  );
  expect(routes).toEqual(expect.arrayContaining(['/api/requests', '/api/decisions', '/api/history', '/metrics']));
  const paths = routes
    .filter((path) => path !== '/api/stream')
    .flatMap((path) => {
      if (path === '/api/profile') return [`${path}?seconds=1`];
      return path.includes('{id}') ? rows.map(({ id }) => path.replace('{id}', id)) : [path];
    });
  const wanted = [...new Set([...paths, '/api/requests?view=rows', ...rows.map(({ id }) => `/api/requests/${id}`)])];
  return new Map(await Promise.all(wanted.map(async (path) => [path, await textOf(path)] as const)));
}

/** Collects the text of `/api/stream` until `signal` aborts. */
async function collect(texts: string[], signal: AbortSignal): Promise<void> {
  try {
    const response = await fetch(`${cluster?.url}/api/stream`, { signal });
    for await (const chunk of response.body ?? []) texts.push(Buffer.from(chunk as Uint8Array).toString('utf8'));
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

test.each([[false], [true]])('after a request nothing shows its prompt; --log-prompts %s', async (isLogging) => {
  receiver = await SpanReceiver.open();
  const spans = receiver;
  const auditFile = join(folder.path, `${isLogging}.jsonl`);
  const logging = isLogging ? ['--log-prompts'] : [];
  cluster = await Cluster.up('--otlp-endpoint', spans.url, '--audit-log', auditFile, ...logging);
  const streaming = new AbortController();
  const ticks: string[] = [];
  const collected = collect(ticks, streaming.signal);
  const answer = await sendAll(ticks);
  assert(answer.length >= 10, answer);
  const hasPrompt = (text: string): boolean => hasMark(text) || text.includes(JSON.stringify(answer).slice(1, -1));
  const rows = (await cluster.requests()) as readonly Row[];
  const idOf = (clientId: string): string => rows.find((row) => row.client_id === clientId)?.id ?? clientId;
  await until('the stream has told of the last request', () => ticks.join('').includes(idOf('left')));
  await until('the span of the last request has come', () => spans.text.includes(idOf('left')));
  const auditText = (): string => readFileSync(auditFile, 'utf8');
  await until('the audit log has the last request', () => auditText().includes(idOf('left')));
  streaming.abort();
  await collected;

  expect(hasPrompt(ticks.join(''))).toBe(false);
  expect(hasPrompt(spans.text)).toBe(false);
  expect(hasPrompt(auditText())).toBe(false);
  expect(hasPrompt(cluster.errors.join('\n'))).toBe(false);
  const bodies = await shown(rows);
  const withPrompt = [...bodies].filter(([, text]) => hasPrompt(text)).map(([path]) => path);
  const logged = ['chat', 'text', 'ids', 'left'].map((name) => `/api/requests/${idOf(name)}`);
  expect(withPrompt.sort()).toEqual(isLogging ? logged.sort() : []);
  const detail = (name: string): { prompt?: unknown; answer?: unknown } =>
    JSON.parse(bodies.get(`/api/requests/${idOf(name)}`) ?? '') as object;
  if (isLogging) {
    expect(detail('chat').prompt).toContain(`${WORD} and more`);
    expect(detail('chat').answer).toBe(answer);
    expect(detail('text').prompt).toContain(`${WORD} once upon a time`);
    expect(detail('ids').prompt).toEqual(IDS);
  } else for (const name of ['chat', 'ids', 'left']) expect(Object.keys(detail(name))).not.toContain('prompt');
});
