/**
 * Structured output as clients ask for it: every answer that ends by itself is what its rule says, whole and streamed, sampled at
 * temperature 1; what cannot be followed is refused in time. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import { Ajv2020 } from 'ajv/dist/2020.js';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Cluster, mapConcurrently } from '../support/cluster.ts';
import { sized } from '../support/long.ts';
import { stoppedIn } from '../support/stopped_in.ts';
import { until } from '../support/until.ts';
import { Random } from '../../shared/base/random.ts';

const model = 'harbour';
let cluster: Cluster;
let client: OpenAI;
beforeAll(async () => {
  cluster = await Cluster.up('--prefill', '1', '--decode', '2', '--store', '0');
  client = new OpenAI({ baseURL: `${cluster.url}/v1`, apiKey: 'none', maxRetries: 0 });
});
afterAll(async () => {
  await cluster.close();
});

const messages = [{ role: 'user' as const, content: 'Who keeps the red key?' }];
const sampling = { model, messages, temperature: 1 };
type Extra = Record<string, unknown>;
const ask = async (more: Extra): Promise<OpenAI.ChatCompletion> =>
  client.chat.completions.create({
    ...sampling,
    max_tokens: 120,
    ...more,
  } as OpenAI.ChatCompletionCreateParamsNonStreaming);
const textOf = ({ choices }: OpenAI.ChatCompletion): string => choices[0]?.message.content ?? '';

async function post(body: Extra): Promise<{ status: number; error?: { param: string; message: string } }> {
  const response = await fetch(`${cluster.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  return { status: response.status, ...((await response.json()) as object) };
}

const address = {
  type: 'object',
  properties: {
    street: { type: 'string', maxLength: 8 },
    number: { type: 'integer', minimum: 5, maximum: 700 },
    kind: { enum: ['house', 'dock', null] },
    tags: { type: 'array', items: { type: 'string', pattern: '^[a-c]{1,3}$' }, maxItems: 3 },
    since: { type: 'string', format: 'date' },
    owner: { anyOf: [{ type: 'boolean' }, { $ref: '#/$defs/person' }] },
  },
  required: ['street', 'number', 'kind', 'tags'],
  $defs: {
    person: {
      type: 'object',
      properties: { name: { const: 'Mira' } },
      required: ['name'],
      additionalProperties: false,
    },
  },
};

test('a JSON schema: every answer that ends is valid, every one that is cut could go on', async () => {
  const isValid = new Ajv2020({ strict: false, validateFormats: false }).compile(address);
  const format = { type: 'json_schema', json_schema: { name: 'address', schema: address, strict: true } };
  const seeds = Array.from({ length: sized(100, 24) }, (_, seed) => seed);
  const answers = await mapConcurrently(seeds, 8, (seed) => ask({ response_format: format, seed }));
  let numWhole = 0;
  for (const answer of answers) {
    const text = textOf(answer);
    if (answer.choices[0]?.finish_reason !== 'stop') continue;
    numWhole++;
    assert(isValid(JSON.parse(text)), `${text}: ${JSON.stringify(isValid.errors)}`);
  }
  expect(numWhole).toBeGreaterThan(answers.length / 2);
});

test('a stream is the whole answer; n samples follow the rule each', async () => {
  const rule = { guided_regex: '(yes|no), [a-z ]{3,20}[.!]', seed: 3 };
  const whole = await ask({ ...rule, n: 3 });
  const stream = await client.chat.completions.create({
    ...sampling,
    ...rule,
    n: 3,
    max_tokens: 120,
    stream: true,
  } as never);
  const texts = ['', '', ''];
  for await (const { choices } of stream as unknown as AsyncIterable<OpenAI.ChatCompletionChunk>)
    for (const { index, delta } of choices) texts[index] = (texts[index] ?? '') + (delta.content ?? '');
  assert.deepEqual(
    texts,
    whole.choices.map(({ message }) => message.content),
  );
  for (const text of texts) assert.match(text, /^(yes|no), [a-z ]{3,20}[.!]$/);
});

test.each<[string, Extra, (text: string) => boolean]>([
  [
    'json_object',
    { response_format: { type: 'json_object' }, max_tokens: 60, logit_bias: {} },
    (text) => text.startsWith('{'),
  ],
  [
    'choice',
    { structured_outputs: { choice: ['a boat', 'a berth', 'é日本'] } },
    (text) => ['a boat', 'a berth', 'é日本'].includes(text),
  ],
  ['EBNF', { ebnf: 'root ::= "<" [a-f]{2,6} ">"' }, (text) => /^<[a-f]{2,6}>$/.test(text)],
  ['GBNF', { grammar: 'root ::= ws "k=" [0-9]{1,4}\nws ::= " "?' }, (text) => /^ ?k=\d{1,4}$/.test(text)],
  ['a constant', { json_schema: { const: { a: [1, 'x'] } } }, (text) => text === '{"a":[1,"x"]}'],
])('%s', async (_, more, isRight) => {
  for (let seed = 0; seed < 4; seed++) {
    const text = textOf(await ask({ ...more, seed }));
    assert(isRight(text), text);
  }
});

test('any text can be forced', async () => {
  const random = new Random(12);
  const texts = [
    ...[
      'plain',
      ' two  blanks ',
      'line\nend\r\n',
      '"quoted" \\ back',
      'naïve café',
      '日本語テキスト',
      '🦀 and 👩‍🚀',
      '\u0000\u0007',
      '<tool_call>',
    ],
    ...Array.from({ length: 3 }, () =>
      String.fromCodePoint(...Array.from({ length: 12 }, () => 0x21 + random.below(0x2ff))),
    ),
  ];
  for (const text of texts) {
    const answer = await ask({ structured_outputs: { choice: [text] } });
    assert.deepEqual([textOf(answer), answer.choices[0]?.finish_reason], [text, 'stop']);
  }
});

test('an end comes where the text is complete, whatever min_tokens and ignore_eos say', async () => {
  const { choices } = await ask({ guided_choice: ['x'], ignore_eos: true, min_tokens: 50 });
  assert.deepEqual([choices[0]?.message.content, choices[0]?.finish_reason], ['x', 'stop']);
});

test('allowed_token_ids and bad_words', async () => {
  const allowed = [60, 70, 80, 90];
  const { choices } = await cluster.completion({
    prompt: [5, 6, 7],
    max_tokens: 12,
    temperature: 1,
    allowed_token_ids: allowed,
  });
  for (const id of choices[0]?.token_ids ?? []) assert(allowed.includes(id));
  const usual = textOf(await ask({ temperature: 0 }));
  const word = usual.split(' ').at(-1)?.replace('.', '') ?? '';
  const without = textOf(await ask({ temperature: 0, bad_words: [word] }));
  assert(usual.includes(word) && word !== '');
  assert.notEqual(usual, without);
});

test('the state of a grammar follows an answer to another instance', async () => {
  const ruleOf = (round: number): Extra => ({
    guided_regex: '([a-z]{1,6} ){120}end',
    seed: 5 + round,
    max_tokens: 700,
    temperature: 0.8,
  });
  let rule = ruleOf(0);
  const { answer, victim } = await stoppedIn(cluster, 'answer', (round) => {
    rule = ruleOf(round);
    return ask(rule);
  });
  cluster.kill(victim);
  const text = textOf(await answer);
  const [request] = await cluster.requests(1);
  expect(new Set(request?.attempts.map(({ decode }) => decode)).size).toBe(2);
  assert.equal(text, textOf(await ask(rule)), 'as if nothing had happened');
  await until('both decode instances are there', async () => {
    const alive = (await cluster.pool()).filter(({ role, state }) => role === 'decode' && state === 'alive');
    return alive.length === 2;
  });
});

describe('what cannot be followed', () => {
  const deep = (depth: number): object =>
    depth === 0 ? { type: 'null' } : { type: 'object', properties: { a: deep(depth - 1) }, required: ['a'] };
  const properties = Object.fromEntries(Array.from({ length: 5_000 }, (_, i) => [`p${i}`, { type: 'string' }]));
  const hostile: readonly [string, Extra][] = [
    ['a schema of depth 3,000', { json_schema: deep(1_500) }],
    ['5,000 optional properties', { json_schema: { type: 'object', properties } }],
    ['maxLength 100,000', { json_schema: { type: 'string', maxLength: 100_000, pattern: '^(a|b)*c?d?$' } }],
    ['left recursion', { ebnf: 'root ::= root "a" | "b"' }],
    ['a regular expression of 1 MB', { regex: '(ab|cd)?'.repeat(1 << 17) }],
    ['nested repetitions', { regex: '((((a{0,900}){0,900}){0,900}){0,900}){0,900}' }],
    ['a grammar without an end', { grammar: 'root ::= "a" root' }],
    ['a remote reference', { json_schema: { $ref: 'https://example.org/a.json' } }],
    ['a schema that is none', { json_schema: { type: 'objekt' } }],
    ['no JSON', { json_schema: '{"type":' }],
  ];

  test.each(hostile)('%s: 400, or an answer', async (_, more) => {
    const { status, error } = await post({ ...sampling, max_tokens: 4, ...more });
    assert([200, 400].includes(status), `${status}: ${error?.message}`);
    // A body that is nested too deep is refused before its keys are read.
    if (error) assert([null, Object.keys(more)[0]].includes(error.param), error.message);
  });

  test('many in a row leave guided answers as they are', async () => {
    const guided = { guided_regex: '[a-z ]{100}', seed: 1 };
    const want = textOf(await ask(guided));
    let isOver = false;
    const others = async (): Promise<void> => {
      do assert.equal(textOf(await ask(guided)), want);
      while (!isOver);
    };
    const bodies = Array.from({ length: sized(1_000, 60) }, (_, i): Extra => ({
      ...hostile[i % hostile.length]?.[1],
      seed: i,
    }));
    const asked = mapConcurrently(bodies, 2, async (more) => {
      return (await post({ ...sampling, max_tokens: 1, ...more })).status;
    }).finally(() => {
      isOver = true;
    });
    const [statuses] = await Promise.all([asked, others()]);
    for (const status of statuses) assert([200, 400].includes(status), String(status));
    assert.equal(textOf(await ask({ guided_choice: ['still here'] })), 'still here');
  });
});
