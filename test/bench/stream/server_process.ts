/**
 * A model server that streams chats on a clock, for a peer's router; it answers all else at once. Sends its port to its parent, and the
 * number of its open sequences when the parent asks.
 */
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { serverInfo, wholeCompletion } from '../peer_answers.ts';
import { obeyParent, StepClock, type ClockedSequence } from './step_clock.ts';
import { tokenOf } from './stream_text.ts';

interface Chat {
  readonly model: string;
  readonly seed: number;
  /** SGLang's router writes `max_tokens` under this name. */
  readonly max_completion_tokens: number;
  readonly stream?: boolean;
}

const clock = new StepClock();

/** Returns an event of the size that the router's have. */
function eventOf({ model, seed }: Chat, content: string, isLast: boolean): string {
  const choice = { index: 0, delta: { content }, logprobs: null, finish_reason: isLast ? 'length' : null };
  const id = `chatcmpl-${String(seed).padStart(32, '0')}`;
  const rest = { object: 'chat.completion.chunk', created: 1_700_000_000, model, system_fingerprint: 'fp_0123456789' };
  return `data: ${JSON.stringify({ id, ...rest, choices: [choice] })}\n\n`;
}

function stream(chat: Chat, reply: ServerResponse): void {
  const sequence: ClockedSequence = {
    seed: chat.seed,
    next: 0,
    limit: chat.max_completion_tokens,
    emit: (index, isLast) => {
      reply.write(eventOf(chat, tokenOf(chat.seed, index).text, isLast));
      if (isLast) reply.end('data: [DONE]\n\n');
    },
  };
  reply.writeHead(200, { 'content-type': 'text/event-stream' });
  reply.on('close', () => {
    clock.remove(sequence);
  });
  clock.add(sequence);
}

obeyParent(clock);
const server = createServer((asked, reply) => {
  let body = '';
  asked.on('data', (bytes: Buffer) => (body += bytes.toString()));
  asked.on('end', () => {
    const chat = asked.method === 'POST' ? (JSON.parse(body) as Chat) : undefined;
    if (chat?.stream) {
      stream(chat, reply);
      return;
    }
    reply.writeHead(200, { 'content-type': 'application/json' });
    reply.end(chat ? wholeCompletion : serverInfo);
  });
}).listen(0, '127.0.0.1', () => process.send?.((server.address() as AddressInfo).port));
