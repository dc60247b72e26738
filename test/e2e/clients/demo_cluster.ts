/**
 * The cluster that the checks of client libraries ask, and questions to its model whose answers are known. The model calls tools,
 * thinks and answers in JSON by itself.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { Cluster } from '../../support/cluster.ts';
import { projectPath } from '../../support/project.ts';
import { until } from '../../support/until.ts';

/** Name under which the model is served. */
export const model = 'harbour-tools';
/** Number of values of an embedding. */
export const EMBEDDING_SIZE = 192;
/** The origin whose pages may use the API. */
export const ORIGIN = 'https://harbour.example';

/** One of the model's examples: a chat, and the answer that it is given without doubt. */
export interface Example {
  readonly kind: string;
  readonly messages: readonly { readonly role: string; readonly content: string }[];
  readonly tools?: readonly {
    readonly function: {
      readonly name: string;
      readonly description: string;
      readonly parameters: { readonly type: 'object' };
    };
  }[];
  readonly chat_template_kwargs?: { readonly enable_thinking?: boolean };
  readonly expected: {
    readonly content?: string;
    readonly reasoning?: string;
    readonly tool_calls?: readonly { readonly name: string; readonly arguments: object }[];
  };
  readonly prompt_tokens: number;
  readonly answer_tokens: number;
}

/** A log, a question about it, and the answer with its counts of tokens. */
interface Question {
  readonly system: string;
  readonly user: string;
  readonly answer: string;
  readonly reasoning: string;
  readonly promptTokens: number;
  readonly answerTokens: number;
}

const { cases } = JSON.parse(readFileSync(projectPath(`config/models/${model}/examples.json`), 'utf8')) as {
  readonly cases: readonly Example[];
};
/** Examples that are one question, one of each kind. */
export const questions: readonly Example[] = [
  ...new Map(
    cases
      .filter(({ messages }) => messages.map(({ role }) => role).join() === 'system,user')
      .map((one) => [one.kind, one] as const),
  ).values(),
];

function questionOf(kind: string, word: string): Question {
  const example = cases.find((one) => one.kind === kind && one.expected.content?.includes(word));
  assert(example?.messages.length === 2, `${kind} with ${word} is among the examples`);
  const { messages, expected, prompt_tokens: promptTokens, answer_tokens: answerTokens } = example;
  const [system = '', user = ''] = messages.map(({ content }) => content);
  const { content: answer = '', reasoning = '' } = expected;
  return { system, user, answer, reasoning, promptTokens, answerTokens };
}

/** A question that is answered in a sentence. */
export const plain = questionOf('plain', 'Locker 55');
/** A question that is answered in JSON, which the model closes by itself; `value` is the answer parsed. */
export const json = { ...questionOf('json', 'Ulrich'), value: { person: 'Ulrich', food: 'almonds' } } as const;
/** A question that is answered after reasoning, when `enable_thinking` is set. */
export const thinking = questionOf('think', 'Locker 59');

/** A tool, the question for which the model calls it, and the answer that it gives from the tool's result. */
export const tide = {
  name: 'tide',
  description: 'When the tide is high at a place',
  parameters: { type: 'object' as const, properties: { place: { type: 'string' } }, required: ['place'] },
  system: 'You keep the harbour log.',
  user: 'When is the tide high at the old mill?',
  place: 'old mill',
  run: ({ place }: { readonly place: string }): { high: string } => ({ high: place === 'old mill' ? '9:15' : '10:40' }),
  answer: 'The tide at the old mill is high at 9:15.',
};

/** A prompt, and a number of new tokens that take the model seconds. */
export const endless = { user: 'The Heron came in at', maxTokens: 1_900 } as const;
/** Bias by token id that keeps the model from ending its answer. */
export const NO_END = { '0': -100, '2': -100 } as const;

const OPTIONS = [
  ...['--model', model, '--allowed-origins', ORIGIN],
  ...['--prefill', '1', '--decode', '1', '--store', '1', '--local-prefill-tokens', '48'],
];

/** Starts a cluster that serves `model` and lets pages of ORIGIN call it. */
export function startCluster(): Promise<Cluster> {
  return Cluster.withKeys(...OPTIONS);
}

/** Starts the same cluster as processes, which can be stopped. */
export function startProcesses(...more: string[]): Promise<Cluster> {
  return Cluster.upWithKeys(...OPTIONS, ...more);
}

/** Resolves when the newest `numRequests` requests decode: a client that leaves now cancels all of them. */
export async function untilDecoding(cluster: Cluster, numRequests: number): Promise<void> {
  await until('the requests decode', async () => {
    const requests = await cluster.requests(numRequests);
    return requests.length === numRequests && requests.every(({ phase }) => phase === 'decoding');
  });
}

/** Resolves when the newest `numRequests` requests have ended because their client left, and nothing of them is left (R2). */
export async function assertAborted(cluster: Cluster, numRequests = 1): Promise<void> {
  await until('the requests have ended with their client', async () => {
    const requests = await cluster.requests(numRequests);
    return requests.length === numRequests && requests.every(({ phase }) => phase === 'cancelled');
  });
  for (const request of await cluster.requests(numRequests)) {
    assert.equal(request.finish_reason, 'abort');
    assert(request.output_tokens < endless.maxTokens, 'it ended before its length');
  }
  await until('the router has none', async () => (await cluster.open()).requests === 0);
  await cluster.idle();
}

/**
 * Returns a `fetch` that obeys CORS as a browser does for a page of `origin`: asks by a preflight for the method and every header of a
 * request, then sends it, and rejects with a TypeError where the server allows either not.
 */
export function pageFetch(origin: string): typeof fetch {
  return async (input, options = {}) => {
    const sent = new Request(input, options);
    // A body of JSON is never sent without a preflight; `accept` needs no leave.
    const names = [...sent.headers.keys()].filter((name) => name !== 'accept');
    const asked = { 'access-control-request-method': sent.method, 'access-control-request-headers': names.join(',') };
    const preflight = await fetch(sent.url, { method: 'OPTIONS', headers: { origin, ...asked } });
    const allowed = (preflight.headers.get('access-control-allow-headers') ?? '').split(/, ?/);
    const methods = (preflight.headers.get('access-control-allow-methods') ?? '').split(/, ?/);
    for (const name of names) if (!allowed.includes(name)) throw new TypeError(`the header ${name} is not allowed`);
    if (!preflight.ok || !methods.includes(sent.method)) throw new TypeError(`${sent.method} is not allowed`);
    sent.headers.set('origin', origin);
    const response = await fetch(sent);
    for (const { headers } of [preflight, response])
      if (headers.get('access-control-allow-origin') !== origin) throw new TypeError(`${origin} is not allowed`);
    return response;
  };
}
