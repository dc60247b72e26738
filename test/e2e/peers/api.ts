/** A server's HTTP API as the checks of peers use it: whole answers, refusals and streams, and the form that each has. */
import { ADMIN_KEY, CLIENT_KEY } from '../../support/cluster.ts';
import assert from 'node:assert/strict';

export interface UsageView {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
  readonly prompt_tokens_details?: { readonly cached_tokens: number } | null;
}

interface TokenView {
  readonly token: string;
  readonly logprob: number;
  readonly bytes: number[] | null;
}

interface TokenLogprobs extends TokenView {
  readonly top_logprobs: TokenView[];
}

type PromptLogprobs = (Record<string, { readonly logprob: number }> | null)[];

interface ToolCallView {
  readonly function: { readonly name: string; readonly arguments: string };
}

interface ChatChoice {
  readonly index: number;
  readonly message: {
    readonly role: string;
    readonly content: string | null;
    readonly tool_calls?: ToolCallView[] | null;
  };
  readonly logprobs: { readonly content: TokenLogprobs[] } | null;
  readonly finish_reason: string;
  readonly stop_reason?: unknown;
  readonly matched_stop?: unknown;
  readonly token_ids?: number[] | null;
}

interface Answer {
  readonly id: string;
  readonly object: string;
  readonly created: number;
  readonly model: string;
  readonly system_fingerprint?: string;
}

export interface ChatView extends Answer {
  readonly choices: ChatChoice[];
  readonly usage: UsageView;
  readonly prompt_logprobs?: PromptLogprobs | null;
  readonly prompt_token_ids?: number[] | null;
}

export interface CompletionLogprobs {
  readonly tokens: string[];
  readonly token_logprobs: (number | null)[];
  readonly top_logprobs: (Record<string, number> | null)[];
  readonly text_offset: number[];
}

interface CompletionChoice {
  readonly index: number;
  readonly text: string;
  readonly logprobs: CompletionLogprobs | null;
  readonly finish_reason: string | null;
  readonly stop_reason?: unknown;
  readonly matched_stop?: unknown;
  readonly prompt_logprobs?: PromptLogprobs | null;
  readonly prompt_token_ids?: number[] | null;
  readonly token_ids?: number[] | null;
}

export interface CompletionView extends Answer {
  readonly choices: CompletionChoice[];
  readonly usage: UsageView;
}

/** A chunk of a completion stream. */
export interface CompletionChunk extends Answer {
  readonly choices: CompletionChoice[];
  readonly usage?: UsageView | null;
}

interface DeltaChoice extends Omit<ChatChoice, 'message' | 'finish_reason'> {
  readonly delta: {
    readonly role?: string;
    readonly content?: string | null;
    readonly reasoning_content?: string | null;
    readonly tool_calls?: unknown[];
  };
  readonly finish_reason: string | null;
}

/** A chunk of a chat stream. */
export interface ChatChunk extends Answer {
  readonly choices: DeltaChoice[];
  readonly usage?: UsageView | null;
  readonly prompt_token_ids?: number[] | null;
}

/** A refused request. */
export interface RefusalView {
  readonly status: number;
  /** The whole body, as text. */
  readonly body: string;
  readonly error: {
    readonly message: string;
    readonly type: string;
    readonly param: string | null;
    readonly code: string;
  };
}

export type Body = Readonly<Record<string, unknown>>;

export const CHAT = '/v1/chat/completions';
export const COMPLETIONS = '/v1/completions';

/** Reads and checks answers of the server at `url()`. */
export class Api {
  readonly #url: () => string;

  constructor(url: () => string) {
    this.#url = url;
  }

  get url(): string {
    return this.#url();
  }

  fetch(path: string, options: RequestInit = {}): Promise<Response> {
    const headers = new Headers(options.headers);
    // Routers that ask for no keys take any.
    const key = /^\/(metrics|api\/)/.test(path) ? ADMIN_KEY : CLIENT_KEY;
    if (!headers.has('authorization')) headers.set('authorization', `Bearer ${key}`);
    return fetch(`${this.#url()}${path}`, { ...options, headers });
  }

  /** Sends a body as JSON; a text is sent as it is. */
  post(path: string, body: Body | string, options: RequestInit = {}): Promise<Response> {
    return this.fetch(path, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: typeof body === 'string' ? body : JSON.stringify(body),
      ...options,
    });
  }

  /** Returns the JSON of a route without a body. */
  async get<T>(path: string): Promise<T> {
    const response = await this.fetch(path);
    const text = await response.text();
    assert.equal(response.status, 200, text);
    return JSON.parse(text) as T;
  }

  /** Returns the JSON of an answer with status 200. */
  async answer<T>(path: string, body: Body): Promise<T> {
    const response = await this.post(path, body);
    const text = await response.text();
    assert.equal(response.status, 200, text);
    return JSON.parse(text) as T;
  }

  /** Returns how many requests the server has. */
  async load(): Promise<number> {
    return (await this.get<{ server_load: number }>('/load')).server_load;
  }

  chat(body: Body): Promise<ChatView> {
    return this.answer(CHAT, body);
  }

  complete(body: Body): Promise<CompletionView> {
    return this.answer(COMPLETIONS, body);
  }

  /** Returns the error of a request that is refused with this status. */
  async refused(path: string, body: Body | string, status = 400): Promise<RefusalView> {
    const response = await this.post(path, body);
    const text = await response.text();
    assert.equal(response.status, status, text);
    assert.match(response.headers.get('content-type') ?? '', /^application\/json/);
    const { error } = JSON.parse(text) as RefusalView;
    assert(error.message !== '', 'the error has a message');
    assert.match(error.type, /error$/);
    return { status: response.status, body: text, error };
  }

  /** Returns the events of a stream, which has status 200, no error in it, and [DONE] at its end. */
  async events<T>(path: string, body: Body): Promise<T[]> {
    const response = await this.post(path, { ...body, stream: true });
    const text = await response.text();
    assert.equal(response.status, 200, text);
    assert.match(response.headers.get('content-type') ?? '', /^text\/event-stream/);
    const lines = text.split('\n').filter((line) => line.startsWith('data: '));
    assert.equal(lines.pop(), 'data: [DONE]');
    const events = lines.map((line) => JSON.parse(line.slice(6)) as T & { error?: unknown });
    for (const { error } of events) assert.equal(error, undefined);
    assert(events.length > 0, 'a stream has events');
    return events;
  }

  chatStream(body: Body): Promise<ChatChunk[]> {
    return this.events(CHAT, body);
  }

  completionStream(body: Body): Promise<CompletionChunk[]> {
    return this.events(COMPLETIONS, body);
  }

  /** Returns the token ids of a text, without special tokens. */
  async tokens(prompt: string): Promise<number[]> {
    return (await this.answer<{ tokens: number[] }>('/tokenize', { prompt, add_special_tokens: false })).tokens;
  }

  /** Returns the text of token ids, special tokens included. */
  async text(tokens: readonly number[]): Promise<string> {
    return (await this.answer<{ prompt: string }>('/detokenize', { tokens })).prompt;
  }
}

/** Checks that usage counts something, and that its total is the sum. */
export function assertUsage(usage: UsageView | null | undefined): asserts usage is UsageView {
  assert(usage, 'there is a usage');
  const { prompt_tokens: prompt, completion_tokens: completion, total_tokens: total } = usage;
  assert(prompt > 0 && completion > 0, `${prompt} and ${completion} tokens`);
  assert.equal(total, prompt + completion);
}

/** Joins the texts of a completion stream by choice. */
export function textsOf(chunks: readonly CompletionChunk[], numChoices = 1): string[] {
  const texts = Array.from({ length: numChoices }, () => '');
  for (const { choices } of chunks) for (const { index, text } of choices) texts[index] = `${texts[index]}${text}`;
  return texts;
}

/** Joins the contents of a chat stream by choice. */
export function contentsOf(chunks: readonly ChatChunk[], numChoices = 1): string[] {
  const texts = Array.from({ length: numChoices }, () => '');
  for (const { choices } of chunks)
    for (const { index, delta } of choices) texts[index] = `${texts[index]}${delta.content ?? ''}`;
  return texts;
}

/**
 * Checks where a stream's usage stands: in no chunk (`none`), in one of its own after the finish and nothing after it (`last`), or in
 * every chunk (`all`).
 */
export function assertUsageChunks(
  chunks: readonly (ChatChunk | CompletionChunk)[],
  where: 'none' | 'last' | 'all',
): void {
  const ends = chunks.flatMap(({ choices }, i) => (choices[0]?.finish_reason ? [i] : []));
  assert.equal(ends.length, 1, 'one chunk has the finish reason');
  const end = ends[0]!;
  assert.equal(chunks.length, end + (where === 'none' ? 1 : 2));
  for (const { choices } of chunks.slice(0, end + 1)) assert.equal(choices.length, 1);
  const counts = chunks.map(({ usage }) => usage ?? null);
  if (where === 'none') assert.deepEqual(new Set(counts), new Set([null]));
  else {
    assert.deepEqual(chunks.at(-1)!.choices, []);
    assertUsage(counts.at(-1));
    if (where === 'last') assert.deepEqual(new Set(counts.slice(0, -1)), new Set([null]));
    else for (const one of counts) assert(one && one.total_tokens === one.prompt_tokens + one.completion_tokens);
  }
}
