/** A model server that answers every completion at once: what stands behind a peer's router. Says its port to its parent. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { serverInfo, wholeCompletion } from './peer_answers.ts';

const server = createServer((asked, reply) => {
  asked.resume();
  asked.on('end', () => {
    reply.writeHead(200, { 'content-type': 'application/json' });
    reply.end(asked.method === 'POST' ? wholeCompletion : serverInfo);
  });
}).listen(0, '127.0.0.1', () => process.send?.((server.address() as AddressInfo).port));
