/** Finds out that the client of a route has left. */
import type { FastifyReply, FastifyRequest } from 'fastify';

/**
 * Calls `gone` once: when the answer has ended, or its connection. The connection counts too, since a response that waits for another one
 * of it emits no 'close'.
 */
export function whenGone({ raw: { socket } }: FastifyRequest, { raw: response }: FastifyReply, gone: () => void): void {
  const closed = (): void => {
    socket.removeListener('close', closed);
    response.removeListener('close', closed);
    gone();
  };
  // One for each request that the connection has sent ahead, which Node bounds by the bytes of their answers.
  socket.setMaxListeners(0);
  socket.once('close', closed);
  response.once('close', closed);
  if (socket.destroyed) closed();
}
