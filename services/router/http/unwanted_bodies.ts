/**
 * Bodies of requests that are answered without them: refused ones, and those of routes that take none. A client that asks first
 * (`Expect: 100-continue`) is told to send its body only when somebody reads it; of other clients Node reads and drops what is left, here
 * up to a limit.
 */
import type { IncomingMessage, Server, ServerResponse } from 'node:http';

/**
 * Bytes of an unwanted body that are read, for clients that look for an answer only after sending all of it. Reading on would let anybody,
 * without a key too, keep the router at it.
 */
export const MAX_DROPPED_BYTES = 64 << 20;

/** Requests whose clients wait to be told to send the body. */
const asking = new WeakMap<IncomingMessage, ServerResponse>();

/** Leaves a client that asks whether to send its body without an answer until {@link wantBody}, or until its request is answered. */
export function holdContinue(server: Server): void {
  server.on('checkContinue', (request: IncomingMessage, response: ServerResponse) => {
    asking.set(request, response);
    server.emit('request', request, response);
  });
}

/** Whether a client waits to be told to send the body. */
export function isAsking(request: IncomingMessage): boolean {
  return asking.has(request);
}

/** Tells a client that waits for it to send the body. */
export function wantBody(request: IncomingMessage): void {
  asking.get(request)?.writeContinue();
  asking.delete(request);
}

/** Ends a connection that sends more than MAX_DROPPED_BYTES of a request after its answer (P1). */
export function boundUnwanted(server: Server): void {
  server.prependListener('request', (request: IncomingMessage, response: ServerResponse) => {
    response.once('prefinish', () => {
      if (request.complete) return;
      let numDropped = 0;
      request.on('data', (chunk: Buffer) => {
        numDropped += chunk.length;
        if (numDropped > MAX_DROPPED_BYTES) request.socket.destroy();
      });
      // Node drops what nobody has begun to read when the answer has left, without a limit.
      request.read(0);
    });
  });
}
