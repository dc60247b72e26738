/** A server with fixed delays under simulated time, so that a load generator's figures can be compared to the last digit. */
import type { HttpClient, HttpRequest } from '../../../services/cli/bench/http_client.ts';
import { RequestError } from '../../../services/cli/bench/http_client.ts';
import type { Clock } from '../../../shared/base/clock.ts';

export interface SentBody {
  readonly model: string;
  readonly prompt?: string | readonly number[];
  readonly messages?: readonly { readonly role: string; readonly content: string }[];
  readonly max_tokens?: number;
  readonly max_completion_tokens?: number;
  readonly stream?: boolean;
  readonly [key: string]: unknown;
}

export interface SimulatedDelays {
  readonly ttftMs: number;
  readonly tokenMs: number;
  /** Fails the request of this number (from 0) with the error; undefined: answers it. */
  readonly failure?: (number: number) => RequestError | undefined;
  /** How a stream ends: after its tokens; at once by an end-of-text token, which has no text; or broken off without a word. */
  readonly ending?: 'usual' | 'at once' | 'cut';
  /** Whether there is `/tokenize`, with a token for each word. */
  readonly canTokenize?: boolean;
}

/** Answers requests after their delays, in the API's format. */
export class SimulatedServer implements HttpClient {
  readonly bodies: SentBody[] = [];
  readonly ids: (string | undefined)[] = [];
  numOpen = 0;
  peakOpen = 0;
  readonly #clock: Clock;
  readonly #delays: SimulatedDelays;
  #numRequests = 0;

  constructor(clock: Clock, delays: SimulatedDelays) {
    [this.#clock, this.#delays] = [clock, delays];
  }

  async send(
    { path, body, headers }: HttpRequest,
    onBytes: (bytes: Uint8Array) => void,
    signal: AbortSignal,
  ): Promise<void> {
    const json = (value: unknown): void => {
      onBytes(Buffer.from(JSON.stringify(value)));
    };
    if (body === undefined) {
      json({ data: [{ id: 'simulated' }] });
      return;
    }
    const sent = JSON.parse(body) as SentBody;
    if (path === '/tokenize') {
      if (this.#delays.canTokenize !== true) throw new RequestError('HTTP 404', 'no such path');
      json({ tokens: words(String(sent.prompt)).map((_, i) => 100 + i + String(sent.prompt).length) });
      return;
    }
    const prompt = Array.isArray(sent.prompt) ? sent.prompt.length : words(textOf(sent)).length;
    const numTokens = sent.max_completion_tokens ?? sent.max_tokens ?? 16;
    const usage = { prompt_tokens: prompt, completion_tokens: numTokens, prompt_tokens_details: { cached_tokens: 3 } };
    if (sent.stream !== true) {
      json({ choices: [{ text: 'a' }], usage });
      return;
    }
    const failure = this.#delays.failure?.(this.#numRequests++);
    if (failure) throw failure;
    this.bodies.push(sent);
    this.ids.push(headers?.['x-request-id']);
    this.peakOpen = Math.max(this.peakOpen, ++this.numOpen);
    try {
      await this.#stream(path.includes('chat'), numTokens, usage, onBytes, signal);
    } finally {
      this.numOpen--;
    }
  }

  async #stream(
    isChat: boolean,
    numTokens: number,
    usage: object,
    onBytes: (bytes: Uint8Array) => void,
    signal: AbortSignal,
  ): Promise<void> {
    const send = (value: unknown): void => {
      onBytes(Buffer.from(`data: ${JSON.stringify(value)}\n\n`));
    };
    // Some servers open the message long before its first token.
    if (isChat) send({ choices: [{ delta: { role: 'assistant', content: '' } }] });
    const { ending = 'usual' } = this.#delays;
    if (ending === 'at once') await this.#clock.sleep(this.#delays.ttftMs, signal);
    for (let i = 0; i < (ending === 'at once' ? 0 : numTokens); i++) {
      await this.#clock.sleep(i === 0 ? this.#delays.ttftMs : this.#delays.tokenMs, signal);
      signal.throwIfAborted();
      const text = ` w${i}`;
      send({ choices: [isChat ? { delta: { content: text } } : { text }] });
    }
    if (ending === 'cut' && numTokens > 2) return;
    send({ choices: [isChat ? { delta: {}, finish_reason: 'length' } : { text: '', finish_reason: 'length' }] });
    send({ choices: [], usage });
    onBytes(Buffer.from('data: [DONE]\n\n'));
  }

  async close(): Promise<void> {
    this.numOpen = 0;
  }
}

function textOf({ prompt, messages }: SentBody): string {
  return messages ? messages.map(({ content }) => content).join(' ') : String(prompt);
}

function words(text: string): string[] {
  return text.split(/\s+/).filter((word) => word !== '');
}
