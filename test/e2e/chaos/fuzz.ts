/**
 * Malformed input of every kind: bodies that were right before they were changed, bytes that are no HTTP. Every answer is one of
 * the API's, or an error in the shape of its path that is the client's fault; no process ends, and no log tells of an exception. Keys of the
 * access layer are access_fuzz.ts's.
 */
import assert from 'node:assert/strict';
import { connect } from 'node:net';
import type { Random } from '../../../shared/base/random.ts';
import type { Cluster } from '../../support/cluster.ts';
import { assertNoLines } from '../../support/no_lines.ts';

const bodies: readonly [path: string, body: Record<string, unknown>][] = [
  [
    '/v1/chat/completions',
    {
      model: 'harbour',
      messages: [
        { role: 'system', content: 'You keep the harbour log.' },
        { role: 'user', content: [{ type: 'text', text: 'Hello' }], name: 'x' },
        {
          role: 'assistant',
          content: null,
          tool_calls: [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }],
        },
        { role: 'tool', tool_call_id: 'c', content: '1' },
      ],
      max_tokens: 2,
      temperature: 0.5,
      top_p: 0.9,
      top_k: 5,
      logit_bias: { '5': 1 },
      stop: ['x'],
      logprobs: true,
      top_logprobs: 2,
      seed: 1,
      stream_options: null,
      chat_template_kwargs: {},
      tools: [
        {
          type: 'function',
          function: {
            name: 'f',
            description: 'd',
            parameters: { type: 'object', properties: { a: { type: ['string', 'null'] }, b: { $ref: '#/$defs/c' } } },
          },
        },
        { type: 'function', function: { name: 'g', strict: false } },
      ],
      tool_choice: 'auto',
      parallel_tool_calls: false,
      include_reasoning: true,
    },
  ],
  [
    '/v1/chat/completions',
    {
      messages: [
        { role: 'assistant', reasoning: 'r', reasoning_content: 'r', content: '<think>' },
        { role: 'tool', content: 'x' },
        { role: 'user', content: '<tool_call>{"name": "f", "arguments": {}}</tool_call>' },
      ],
      max_tokens: 3,
      tools: [{ type: 'function', function: { name: 'f', parameters: {} } }],
      tool_choice: { type: 'function', function: { name: 'f' } },
      n: 2,
    },
  ],
  [
    '/v1/completions',
    { prompt: ['a', [1, 2]], max_tokens: 2, logprobs: 1, stream: false, min_tokens: 1, stop_token_ids: [3] },
  ],
  [
    '/v1/embeddings',
    { model: 'harbour', input: ['a', [1, 2]], encoding_format: 'base64', dimensions: null, user: 'x', cache_salt: 's' },
  ],
  [
    '/v1/responses',
    {
      model: 'harbour',
      instructions: 'You keep the harbour log.',
      input: [
        { role: 'user', content: [{ type: 'input_text', text: 'Hello' }] },
        { type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text: 'Hm' }] },
        { type: 'function_call', call_id: 'c', name: 'f', arguments: '{}' },
        { type: 'function_call_output', call_id: 'c', output: '1' },
      ],
      tools: [
        { type: 'function', name: 'f', parameters: { type: 'object' }, strict: false },
        { type: 'namespace', name: 'n', tools: [{ type: 'custom', name: 'g' }] },
        { type: 'web_search' },
      ],
      tool_choice: { type: 'allowed_tools', mode: 'auto', tools: [{ type: 'function', name: 'f' }] },
      text: { format: { type: 'text' }, verbosity: 'low' },
      reasoning: { effort: 'low', summary: null },
      include: ['message.output_text.logprobs'],
      max_output_tokens: 2,
      metadata: { a: 'b' },
      truncation: 'auto',
      store: true,
      background: false,
    },
  ],
  [
    '/v1/messages',
    {
      model: 'harbour',
      max_tokens: 2,
      system: [{ type: 'text', text: 'You keep the harbour log.', cache_control: { type: 'ephemeral' } }],
      messages: [
        { role: 'user', content: 'Hello' },
        {
          role: 'assistant',
          content: [
            { type: 'thinking', thinking: 'x', signature: 's' },
            { type: 'tool_use', id: 'c', name: 'f', input: { a: 1 } },
          ],
        },
        { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'c', content: [{ type: 'text', text: '1' }] }] },
      ],
      tools: [
        { name: 'f', description: 'x', input_schema: { type: 'object' } },
        { type: 'web_search_20250305', name: 'web_search' },
      ],
      tool_choice: { type: 'auto', disable_parallel_tool_use: true },
      thinking: { type: 'disabled' },
      stop_sequences: ['x'],
      temperature: 0.5,
      top_p: 0.9,
      top_k: 5,
      metadata: { user_id: 'x' },
      stream: false,
    },
  ],
  [
    '/v1/messages/count_tokens',
    { model: 'harbour', messages: [{ role: 'user', content: [{ type: 'text', text: 'Hello' }] }] },
  ],
  ['/tokenize', { prompt: 'Hello', add_special_tokens: true, return_token_strs: true }],
  ['/tokenize', { messages: [{ role: 'user', content: 'x' }], tools: [{ type: 'function', function: { name: 'f' } }] }],
  ['/detokenize', { tokens: [1, 2, 3] }],
  [
    '/invocations',
    {
      messages: [{ role: 'user', content: 'Hello' }],
      prompt: 'Hello',
      max_tokens: 2,
      logprobs: true,
      truncate_prompt_tokens: 3,
      truncation_side: 'right',
      return_tokens_as_token_ids: true,
    },
  ],
  ['/completions', { prompt: [5, 6, 7, 8], max_tokens: 1, truncate_prompt_tokens: -1, echo: true, logprobs: 1 }],
  ['/apply-template', { messages: [{ role: 'user', content: 'Hello' }], add_generation_prompt: true }],
];

const odd: readonly unknown[] = [
  ...[null, true, false, 0, -1, 1e308, -1e308, 4_294_967_297, 0.5, '', 'x', '\u0000', '\ud800', [], {}, [[]], [null]],
  ...['a'.repeat(5_000), Array.from({ length: 3_000 }, (_, i) => i), { __proto__: { x: 1 } }, { constructor: 1 }],
];

function changed(value: unknown, random: Random): unknown {
  if (random.chance(1, 6)) return odd[random.below(odd.length)];
  if (Array.isArray(value)) return value.map((one: unknown) => changed(one, random));
  if (typeof value !== 'object' || value === null) return value;
  const entries = Object.entries(value).filter(() => !random.chance(1, 12));
  if (random.chance(1, 6))
    entries.push([random.chance(1, 2) ? '__proto__' : `k${random.below(9)}`, odd[random.below(odd.length)]]);
  return Object.fromEntries(entries.map(([key, one]) => [key, changed(one, random)]));
}

export function changedText(text: string, random: Random): string {
  const at = random.below(text.length);
  const cut = [text.slice(0, at), text.slice(at), text.slice(0, at) + text.slice(at + 1 + random.below(8))];
  const odds = ['\u0000', '"', '[[[[', '}', '\\u12', '1e999', '\ufeff', String.fromCharCode(random.below(65_536))];
  return (
    [...cut, text.slice(0, at) + (odds[random.below(odds.length)] ?? '') + text.slice(at)][random.below(4)] ?? text
  );
}

/** Asserts that an answer is one that went well, or an error that is the client's fault, in the form of the API of its path. */
export function expectFromApi(path: string, status: number, answer: string, asked: string): void {
  const what = `${asked}\n${status} ${answer}`;
  assert((status >= 200 && status < 300) || (status >= 400 && status < 500), what);
  if (status < 400) return;
  const { type, error } = JSON.parse(answer) as { type?: unknown; error: { message: unknown; type: unknown } };
  assert.equal(type, path.startsWith('/v1/messages') ? 'error' : undefined, what);
  assert(typeof error.message === 'string' && error.message !== '', what);
  assert(typeof error.type === 'string' && /error$|^request_too_large$/.test(error.type), what);
}

/** Returns the lines of logs that tell of an exception, whichever process has written them. */
export function exceptionsIn(lines: readonly string[]): readonly string[] {
  return lines.filter((line) => EXCEPTION.test(line));
}

/** A fault of the program leaves one of these in a log: an entry of level error, a stack, a class of errors that no input may cause. */
const EXCEPTION =
  /"level":[56]0|"stack":|^\s+at |\b(?:Type|Reference|Range|Syntax|Assertion|Internal)Error\b|\b[Uu]n(?:handled|caught)|MaxListeners/;

export interface FuzzResult {
  readonly numInputs: number;
  readonly statuses: Readonly<Record<number, number>>;
}

export async function runFuzz(cluster: Cluster, count: number, random: Random): Promise<FuzzResult> {
  const statuses: Record<number, number> = {};
  const names = ['router', 'prefill-1', 'decode-1', 'store-1'];
  const pids = names.map((name) => cluster.pidOf(name));
  const one = async (): Promise<void> => {
    const [path, body] = bodies[random.below(bodies.length)] ?? ['/v1/completions', {}];
    const json = JSON.stringify(changed(body, random));
    const text = random.chance(1, 3) ? changedText(json, random) : json;
    const response = await fetch(`${cluster.url}${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...cluster.clientHeaders(random.below(64)) },
      body: text,
    });
    const answer = await response.text();
    statuses[response.status] = (statuses[response.status] ?? 0) + 1;
    assert(![401, 403].includes(response.status), `the key of a client is known: ${answer}`);
    expectFromApi(path, response.status, answer, text);
  };
  const worker = async (share: number): Promise<void> => {
    for (let i = 0; i < share; i++) {
      if (random.chance(1, 20)) await rubbish(cluster, random);
      else await one();
    }
  };
  await Promise.all(Array.from({ length: 4 }, () => worker(Math.ceil(count / 4))));
  assert.deepEqual(
    names.map((name) => cluster.pidOf(name)),
    pids,
    'no process ended',
  );
  assertNoLines(exceptionsIn(cluster.errors));
  return { numInputs: count, statuses };
}

/** Bytes that are no HTTP, or almost. */
async function rubbish(cluster: Cluster, random: Random): Promise<void> {
  const { hostname, port } = new URL(cluster.url);
  const heads = [
    'GET / HTTP/1.1\r\n',
    'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n',
    'PRI * HTTP/2.0\r\n\r\n',
    'GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer \u0000\r\n\r\n',
    'GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer\r\n a\r\n\r\n',
    `GET /metrics HTTP/1.1\r\nhost: x\r\n${'x-api-key: a\r\n'.repeat(1_000)}\r\n`,
    `GET /metrics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${'a'.repeat(100_000)}`,
    '',
  ];
  const bytes = Buffer.from(Array.from({ length: random.below(400) }, () => random.below(256)));
  await new Promise<void>((resolve) => {
    const socket = connect({ host: hostname, port: Number(port) });
    socket.on('error', () => undefined);
    socket.once('close', () => {
      resolve();
    });
    socket.setTimeout(500, () => socket.destroy());
    socket.write(heads[random.below(heads.length)] ?? '');
    socket.end(bytes);
    socket.resume();
  });
}
