/**
 * A server with OpenAI's completions and chats that computes nothing: the first token of an answer comes after a fixed time, each further one
 * after another, whatever the load. It keeps by its own clock when requests came and when tokens were written, which is the truth that a load
 * generator has to find. As a process of its own: `node dist/test/support/fixed_delay_server.js TTFT_MS TOKEN_MS [PORT]` prints its port.
 */
/* eslint-disable time/speed -- it plays times, and tells its users what they were */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

/** A request as the server saw it; times in milliseconds of its own clock. */
export interface TrueTimes {
  readonly id: string;
  readonly ttftMs: number;
  /** Mean time of the tokens after the first one. */
  readonly tpotMs: number;
  readonly totalMs: number;
  readonly outputTokens: number;
  readonly body: Body;
}

interface Body {
  readonly prompt?: string | readonly number[];
  readonly messages?: readonly { readonly role: string; readonly content: string }[];
  readonly max_tokens?: number;
  readonly max_completion_tokens?: number;
  readonly stream?: boolean;
  readonly ignore_eos?: boolean;
  readonly temperature?: number;
}

export interface FixedDelays {
  readonly ttftMs: number;
  readonly tokenMs: number;
  /** Every so many requests one is refused with 503; 0: none. */
  readonly failEvery?: number;
}

/** Most requests whose times are kept; those before them are forgotten. */
const MAX_KEPT = 100_000;

export class FixedDelayServer {
  readonly #delays: FixedDelays;
  readonly #server: Server;
  #numRequests = 0;
  times: TrueTimes[] = [];

  constructor(delays: FixedDelays) {
    this.#delays = delays;
    this.#server = createServer((request, response) => {
      this.#answer(request, response, performance.now()).catch(() => response.destroy());
    });
  }

  async listen(port = 0): Promise<number> {
    this.#server.listen(port, '127.0.0.1');
    await once(this.#server, 'listening');
    return (this.#server.address() as AddressInfo).port;
  }

  close(): void {
    this.#server.closeAllConnections();
    this.#server.close();
  }

  async #answer(request: IncomingMessage, response: ServerResponse, cameMs: number): Promise<void> {
    const json = (status: number, value: unknown): void => {
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(value));
    };
    if (request.url === '/v1/models') {
      json(200, { object: 'list', data: [{ id: 'fixed', object: 'model' }] });
      return;
    }
    if (request.url === '/health') {
      json(200, {});
      return;
    }
    if (request.url === '/times') {
      json(200, this.times);
      return;
    }
    const parts: Buffer[] = [];
    for await (const part of request) parts.push(part as Buffer);
    const body = JSON.parse(Buffer.concat(parts).toString()) as Body & { readonly [key: string]: unknown };
    if (request.url === '/tokenize') {
      json(200, { tokens: tokensOf(String(body.prompt)) });
      return;
    }
    const { failEvery = 0 } = this.#delays;
    if (failEvery > 0 && ++this.#numRequests % failEvery === 0) {
      json(503, { error: { message: 'the server is overloaded' } });
      return;
    }
    const numTokens = body.max_completion_tokens ?? body.max_tokens ?? 16;
    const promptTokens = Array.isArray(body.prompt)
      ? body.prompt.length
      : tokensOf(JSON.stringify(body.messages ?? body.prompt)).length;
    const usage = {
      prompt_tokens: promptTokens,
      completion_tokens: numTokens,
      total_tokens: promptTokens + numTokens,
      prompt_tokens_details: { cached_tokens: Math.floor(promptTokens / 2) },
    };
    const isChat = request.url === '/v1/chat/completions';
    const head = {
      id: 'fixed',
      object: isChat ? 'chat.completion.chunk' : 'text_completion',
      created: 0,
      model: 'fixed',
    };
    if (body.stream !== true) {
      json(200, { ...head, choices: [{ index: 0, text: 'a' }], usage });
      return;
    }
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    const send = (value: object): void => {
      response.write(`data: ${JSON.stringify({ ...head, ...value })}\n\n`);
    };
    if (isChat) send({ choices: [{ index: 0, delta: { role: 'assistant', content: '' } }] });
    const [firstMs, lastMs] = await this.#tokens(numTokens, cameMs, (token, isLast) => {
      const finish = { index: 0, finish_reason: isLast ? 'length' : null };
      send({ choices: [isChat ? { ...finish, delta: { content: token } } : { ...finish, text: token }] });
    });
    send({ choices: [], usage });
    response.end('data: [DONE]\n\n');
    if (this.times.length === MAX_KEPT) this.times = [];
    this.times.push({
      id: String(request.headers['x-request-id']),
      outputTokens: numTokens,
      body,
      ttftMs: firstMs - cameMs,
      tpotMs: (lastMs - firstMs) / (numTokens - 1),
      totalMs: lastMs - cameMs,
    });
  }

  /** Calls `write` at fixed times after `cameMs`, so that a late timer delays no further token. @returns when first and last were written */
  async #tokens(
    numTokens: number,
    cameMs: number,
    write: (token: string, isLast: boolean) => void,
  ): Promise<[firstMs: number, lastMs: number]> {
    const { ttftMs, tokenMs } = this.#delays;
    let [firstMs, lastMs] = [0, 0];
    for (let i = 0; i < numTokens; i++) {
      const leftMs = cameMs + ttftMs + i * tokenMs - performance.now();
      if (leftMs > 0) await sleep(leftMs);
      write(` w${i}`, i === numTokens - 1);
      lastMs = performance.now();
      if (i === 0) firstMs = lastMs;
    }
    return [firstMs, lastMs];
  }
}

/** A token for each word. */
function tokensOf(text: string): number[] {
  return text
    .split(/\s+/)
    .filter((word) => word !== '')
    .map((word) => Buffer.from(word).reduce((sum, byte) => (31 * sum + byte) % 30_000, 7));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [ttftMs = 200, tokenMs = 20, port = 0] = process.argv.slice(2).map(Number);
  const bound = await new FixedDelayServer({ ttftMs, tokenMs }).listen(port);
  process.stdout.write(`${bound}\n`);
}
