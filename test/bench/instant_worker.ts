/** A model server that answers every completion at once: what stands behind a peer's router. Says its port to its parent. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';

const completion = JSON.stringify({
  id: 'x',
  object: 'text_completion',
  created: 1,
  model: 'ids-only',
  choices: [{ index: 0, text: 'a', finish_reason: 'length', logprobs: null }],
  usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
});
const info = JSON.stringify({
  model_path: 'ids-only',
  served_model_name: 'ids-only',
  is_generation: true,
  status: 'ok',
});

const server = createServer((asked, reply) => {
  asked.resume();
  asked.on('end', () => {
    reply.writeHead(200, { 'content-type': 'application/json' });
    reply.end(asked.method === 'POST' ? completion : info);
  });
}).listen(0, '127.0.0.1', () => process.send?.((server.address() as AddressInfo).port));
